"""What a search found, for people and for programs; both are made from the same rows."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import expm1
from pathlib import Path
from typing import Any

from perfgate.bisection.record import Record
from perfgate.bisection.repository import Line
from perfgate.bisection.search import Answer, Ending, Search, compare_ends, pick_metric
from perfgate.metrics import METRICS
from perfgate.report.escape import plain
from perfgate.report.table import Table
from perfgate.report.words.wording import percent
from perfgate.stats.looks import CONFIDENCE
from perfgate.stats.moderated import estimate
from perfgate.storage.rounding import format_count, format_percent

SHOWN = 0.001
"""A commit that was not measured and is less likely than this is counted, not listed."""

MEANINGS = {
    Ending.FOUND: "this commit made it slower",
    Ending.NARROWED: "the commit that made it slower is one of several that cannot be told apart",
    Ending.OUT_OF_BUDGET: "not found within the budget",
    Ending.NO_DIFFERENCE: "nothing to find",
    Ending.UNMEASURABLE: "GOOD or BAD cannot be measured",
}


def name_meaning(ending: Ending, noun: str) -> str:
    """What an ending means where the places of a line are commits, or packages."""
    return MEANINGS[ending].replace("commit", noun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A search that has ended, with where it took place; without a repository its places are packages."""

    repo: Path | None
    line: Line
    search: Search
    answer: Answer
    record: Record

    @property
    def metric(self) -> str:
        """The metric of the search; where it never came to one, the one that differs most, or none."""
        if self.answer.metric:
            return self.answer.metric
        decision, metrics = compare_ends(self.search)
        return pick_metric(decision, metrics) if decision.findings else ""


def describe(found: Found) -> dict[str, Any]:
    """Everything as plain values, for JSON."""
    answer, search = found.answer, found.search
    culprit = found.line.find(answer.found) if answer.found else None
    return {
        "outcome": answer.ending.value,
        "meaning": name_meaning(answer.ending, "commit" if found.repo else "package"),
        "reason": answer.reason,
        "culprit": culprit.sha if culprit else None,
        "command": shlex.join(["git", "-C", str(found.repo), "show", culprit.sha]) if culprit and found.repo else None,
        "confidence": search.rules.confidence,
        "credible": [found.line.find(place).sha for place in answer.credible],
        "no_fault": answer.belief.none if answer.belief else None,
        "metric": found.metric or None,
        "good": found.line.good.sha,
        "bad": found.line.commits[-1].sha,
        "minutes": round(search.minutes, 3),
        "budget_minutes": search.rules.budget,
        "measurements": len(search.measured),
        "blocks": sum(one.blocks for one in search.measured),
        "builds": len(search.build_minutes),
        "commits": [_describe_place(found, place) for place in range(search.places + 1)],
        "warnings": list(answer.warnings),
    }


def _describe_place(found: Found, place: int) -> dict[str, Any]:
    commit, answer = found.line.find(place), found.answer
    differences = found.search.gather(found.metric, place) if found.metric else ()
    row: dict[str, Any] = {
        "commit": commit.sha,
        "subject": commit.subject,
        "is_merge": commit.is_merge,
        "posterior": answer.belief.places[place - 1] if answer.belief and place else None,
        "blocks": len(differences),
        "change": None,
        "low": None,
        "high": None,
        "skipped": found.search.gone_around.get(place),
        "folders": list(found.record.list_folders(place)),
    }
    if differences:
        estimated = estimate(differences, found.search.find_prior(found.metric))
        sign = -1.0 if found.search.measured[0].metrics[found.metric].higher else 1.0
        row["change"] = expm1(sign * estimated.mean)
        reach = estimated.reach(CONFIDENCE)
        if reach < 1:
            row["low"], row["high"] = sorted(expm1(sign * (estimated.mean + side * reach)) for side in (-1, 1))
    return row


def tell(found: Found, lay: Callable[[Table], str]) -> Iterator[str]:
    """Yield the answer, the table of commits as `lay` lays it out, and the warnings."""
    facts = describe(found)
    yield f"{facts['outcome']}: {facts['meaning']}"
    if facts["reason"]:
        yield facts["reason"]
    if found.search.measured:
        title = METRICS[found.metric].title if found.metric in METRICS else found.metric or "change"
        table, left = _tabulate(facts["commits"], title)
        yield from ("", lay(table), left, "")
    yield from (*_tell_culprit(found, facts), *(f"warning: {warning}" for warning in facts["warnings"]), _tell_cost(facts))


def _tabulate(rows: list[dict[str, Any]], title: str) -> tuple[Table, str]:
    """The commits that anything is known of, newest last, and a line on the rest."""
    rows = [row | {"name": "GOOD" if index == 0 else str(index)} for index, row in enumerate(rows)]
    shown = [
        row for row in rows if row["blocks"] or row["skipped"] or (row["posterior"] or 0) >= SHOWN or row["name"] == "GOOD"
    ]
    left = [row["posterior"] or 0.0 for row in rows if row not in shown]
    table = Table(
        header=("commit", "place", "posterior", title, "90 % interval", "blocks", "subject"),
        rows=[
            (
                row["commit"][:12],
                row["name"],
                format_percent(row["posterior"]) if row["posterior"] is not None else "",
                _tell_change(row),
                f"{percent(row['low'])} .. {percent(row['high'])}" if row["low"] is not None else "",
                str(row["blocks"] or ""),
                plain(row["subject"])[:60],
            )
            for row in shown
        ],
    )
    return table, f"({len(left)} more were not measured; together {format_percent(sum(left))})" if left else ""


def _tell_change(row: dict[str, Any]) -> str:
    if row["change"] is not None:
        return percent(row["change"])
    return "skipped" if row["skipped"] else ""


def _tell_culprit(found: Found, facts: dict[str, Any]) -> Iterator[str]:
    answer = found.answer
    if answer.found and answer.belief:
        commit = found.line.find(answer.found)
        yield f"culprit: {commit.sha} {plain(commit.subject)}"
        shown = f"; to see it: {facts['command']}" if facts["command"] else ""
        yield f"posterior {format_percent(answer.belief.places[answer.found - 1])}{shown}"
        if commit.is_merge:
            name = commit.short
            yield f"it is a merge: `perfgate bisect $(git merge-base {name}^1 {name}^2) {name}^2` searches what it brought"
    elif answer.credible:
        names = ", ".join(found.line.find(place).short for place in answer.credible[:12])
        more = f" and {len(answer.credible) - 12} more" if len(answer.credible) > 12 else ""
        yield f"{format_percent(facts['confidence'], 0)} credible: {names}{more}"
    for row in facts["commits"]:
        if row["skipped"]:
            yield f"skipped {row['commit'][:12]}: {plain(row['skipped'])}"


def _tell_cost(facts: dict[str, Any]) -> str:
    done = ", ".join(format_count(facts[f"{noun}s"], noun) for noun in ("measurement", "block", "build"))
    return f"{facts['minutes']:.1f} of {facts['budget_minutes']:g} GPU-minutes: {done}"
