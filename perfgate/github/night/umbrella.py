"""One issue for what became slower on the main branch: opened once, updated by each night, closed when all of it is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass

from perfgate.errors import GitHubError, GitHubUnavailableError, InputError
from perfgate.github.client import GitHub
from perfgate.github.comment.marks import find_address, list_own, read_mark, write_mark
from perfgate.github.comment.target import CommentTarget
from perfgate.github.handoff.handoff import Text, describe
from perfgate.github.handoff.subject import Label, Sha
from perfgate.report.escape import markdown
from perfgate.storage.journal import Time
from perfgate.storage.schema import FOREIGN, Count, adapt

MARK = "<!-- perfgate:night "
TITLE = "perfgate: the main branch became slower"
ROUNDS = 3
_ADVICE = (
    "`perfgate bisect GOOD BAD --scenario NAME` searches the commit. Where it is right, a person records why: "
    "`perfgate baseline add ... --accept-slower REASON`. The issue closes by itself."
)


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class NightFinding:
    """What one night says of a machine and a scenario: `slower` names the metric, `problem` why its session taught nothing."""

    hardware: Label
    scenario: Label
    slower: Text = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class _Lessons:
    jobs: Annotated[tuple[NightFinding, ...], Field(max_length=64)]


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class Night:
    """A run of the nightly workflow: when, of which commit, and what it found of each of its jobs."""

    at: Time
    head_sha: Sha
    run_id: Count
    findings: tuple[NightFinding, ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class _Row:
    """A machine and a scenario that became slower: since when, and for how many nights that measured it."""

    hardware: Label
    scenario: Label
    slower: Text
    since: Time
    since_sha: Sha
    nights: Count


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class _KeptRows:
    run_id: Count
    rows: Annotated[tuple[_Row, ...], Field(max_length=64)]


def read_findings(path: Path) -> tuple[NightFinding, ...]:
    """Read what `perfgate github learn --format json` wrote. Raise InputError for anything else."""
    try:
        return adapt(_Lessons).validate_json(path.read_bytes()).jobs
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give what `perfgate github learn` wrote") from None
    except ValidationError as error:
        raise InputError(f"{path}: {describe(error)}; give what `perfgate github learn --format json` wrote") from None


def keep_issue(github: GitHub, target: CommentTarget, night: Night) -> str:
    """Open, update or close the one issue by what a night found; return what was done.

    There is only one: a night looks before it opens, looks again after it, and closes what another opened meanwhile.
    """
    place = f"/repos/{target.repository}/issues"
    for _ in range(ROUNDS):
        found = _find_issues(github, target)
        kept = _read(found)
        if kept.run_id > night.run_id:
            return f"a later night, run {kept.run_id}, has written meanwhile; nothing was changed"
        rows = _merge(kept, night)
        if not found and not rows:
            return "nothing became slower, and no issue is open"
        if not found:
            try:
                github.send("POST", place, {"title": TITLE, "body": _render(rows, night, target)}, is_repeatable=False)
            except GitHubUnavailableError:
                # It may have been carried out; the next look says so.
                github.sleep(target.settle_s)
            continue
        for extra in found[1:]:
            github.send("PATCH", f"{place}/{extra['number']}", {"state": "closed", "state_reason": "not_planned"})
        return _update(github, f"{place}/{found[0]['number']}", found[0], rows, night, target)
    raise GitHubError(f"no issue was kept after {ROUNDS} tries; start the nightly workflow again")


def _update(  # noqa: PLR0913, PLR0917 - an issue, and what becomes of it
    github: GitHub, path: str, issue: Mapping[str, Any], rows: tuple[_Row, ...], night: Night, target: CommentTarget
) -> str:
    body = _render(rows, night, target)
    if not rows:
        github.send("PATCH", path, {"state": "closed", "state_reason": "completed", "body": body})
        return f"closed, as nothing is slower any more: {find_address(issue)}"
    if body != issue.get("body"):
        github.send("PATCH", path, {"body": body})
    return f"{len(rows)} slower: {find_address(issue)}"


def _find_issues(github: GitHub, target: CommentTarget) -> list[Mapping[str, Any]]:
    """Perfgate's own open issues of that kind, the oldest first; GitHub lists pull requests among issues."""
    listed = github.list_all(f"/repos/{target.repository}/issues", state="open", creator=target.bot)
    return list_own((issue for issue in listed if "pull_request" not in issue), target.bot, MARK, "number")


def _read(found: Sequence[Mapping[str, Any]]) -> _KeptRows:
    """What the oldest issue keeps; one that was edited into something else keeps nothing, and begins anew."""
    kept = read_mark(MARK, str(found[0]["body"]), _KeptRows) if found else None
    return kept or _KeptRows(run_id=0, rows=())


def _merge(kept: _KeptRows, night: Night) -> tuple[_Row, ...]:
    """What is slower after a night. One that could not measure says nothing, and a job that is gone from the settings ends."""
    known = {(row.hardware, row.scenario): row for row in kept.rows}
    merged = (_join(known.get((one.hardware, one.scenario)), one, night, kept.run_id) for one in night.findings)
    return tuple(row for row in merged if row is not None)


def _join(old: _Row | None, found: NightFinding, night: Night, last_run: int) -> _Row | None:
    if not found.slower:
        return old if found.problem else None
    if old is None:
        return _Row(
            hardware=found.hardware,
            scenario=found.scenario,
            slower=found.slower,
            since=night.at,
            since_sha=night.head_sha,
            nights=1,
        )
    return replace(old, slower=found.slower, nights=old.nights + (night.run_id != last_run))


def _render(rows: tuple[_Row, ...], night: Night, target: CommentTarget) -> str:
    """The issue's text: a line for programs, the table for readers."""
    problems = {(one.hardware, one.scenario): one.problem for one in night.findings if not one.slower}
    where = f"[last night]({target.runs_url}/{night.run_id}), {night.at}, commit {night.head_sha[:12]}"
    if not rows:
        said = "Nothing is slower than its noise band allows any more"
        return f"{write_mark(MARK, _KeptRows(run_id=night.run_id, rows=()))}\n{said}: {where}."
    lines = [
        f"| {row.hardware} | {row.scenario} | {markdown(row.slower)}"
        f"{'; not measured last night' if problems.get((row.hardware, row.scenario)) else ''} "
        f"| {row.since_sha[:12]}, {row.since} | {row.nights} |"
        for row in rows
    ]
    return "\n".join(
        (
            write_mark(MARK, _KeptRows(run_id=night.run_id, rows=rows)),
            f"Slower than the stored noise bands allow: {where}.",
            "",
            "| machine | scenario | what | first seen at | nights |",
            "|:--|:--|:--|:--|--:|",
            *lines,
            "",
            _ADVICE,
        )
    )
