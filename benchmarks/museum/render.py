"""Write docs/evidence/museum.md from the exhibits and their results; no figure of a result in it is typed by hand.

Usage: python -m benchmarks.museum.render
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import expm1
from pathlib import Path

from benchmarks.museum.exhibits import PAGE as PLACE
from benchmarks.museum.exhibits import Absent, Placed, load_absent, load_all
from benchmarks.museum.host import HostAnswer, HostQuestion, HostSide, load_questions, read_answers
from benchmarks.museum.results import ExhibitResult, SideResult, describe_match, is_told, read_result
from benchmarks.museum.rivals import count_alarms
from perfgate.core import Outcome
from perfgate.errors import PerfgateError
from perfgate.metrics import METRICS
from perfgate.resolution.values import ResolveAnswer
from perfgate.scheduler.judge import RULES
from perfgate.stats.binomial import bound_rate, bound_rate_below
from perfgate.storage.rounding import format_count, format_percent

PAGE = Path(__file__).parents[2] / PLACE
NOT_RUN = "not run yet"
SOURCES = "../../benchmarks/museum"
INTRODUCTION = f"""\
# Museum: slow-downs that users reported

Each exhibit reproduces a regression that users of an engine reported: a flag or a patch of our own brings the original's
mechanism into a real server. `perfgate gate` as it ships compares the slow candidate with a base, and a repaired twin (a
candidate without the fault) with the same base. Exhibits, scenarios and expected verdicts were committed before each run
([benchmarks/museum]({SOURCES})). The tables show misses as well as hits. The original sizes come from the reports; they were
not measured here.
"""
COMMANDS = """\
`python -m benchmarks.museum.run NAME` runs an exhibit and its twin; `python -m benchmarks.museum.host` asks `perfgate
scheduler` and `perfgate resolve` about those in host.toml; `python -m benchmarks.museum.render` writes this page.
`python -m benchmarks.museum.trial broken` tries the patches for the CPU in one server.
`python -m benchmarks.museum.history NAME FOLDER` makes a git repository in which one commit introduces the fault.
An exhibit needs its machine's engine: `perfgate engine install` for `cpu`; SGLang and the scenario's GPUs for `h200`.

On 2026-11-23 other work on the machine made sessions INVALID, and they were run again: both of scheduler-log (gaps between
tokens were missing), and token-counts (others used the CPU). host-leak was run before `cpu-moe-memory` gated the growth of
memory. The twin of detokenizer-vocabulary still holds each token against a kept size: 2.2 % of a step's instructions, a true
loss beside a base without that check.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An exhibit and what is stored of it."""

    placed: Placed
    result: ExhibitResult | None

    question: HostQuestion | None = None
    host: HostAnswer | None = None

    @property
    def broken(self) -> SideResult | None:
        """What was said of the slow candidate."""
        return self.result.broken if self.result else None

    @property
    def fixed(self) -> SideResult | None:
        """What was said of its twin."""
        return self.result.fixed if self.result else None


OF_THEIR_DAY = (
    "Verdicts are by the rule of their day. By rule 2026-11.12 the twins of `graph-lookup-misses` and `overlap-barrier`,",
    "judged without stored noise, are [undecided](../../benchmarks/h200/serving/routed/README.md#verdicts). No other outcome",
    "on a GPU differs.",
)


def main() -> int:
    try:
        page = write_page(load_shown(), load_absent())
    except PerfgateError as error:
        print(f"museum: {error}", file=sys.stderr)
        return error.exit_code
    PAGE.write_text(page, encoding="utf-8")
    print(f"written to {PAGE}")
    return 0


def load_shown() -> list[Shown]:
    """Every exhibit with all that is stored of it. Raise InputError for a result of another text of an exhibit."""
    questions, answers = {one.exhibit: one for one in load_questions()}, read_answers(load_all()).answers
    return [
        Shown(placed=one, result=read_result(one), question=questions.get(one.name), host=answers.get(one.name))
        for one in load_all()
    ]


def write_page(shown: Sequence[Shown], absent: Sequence[Absent]) -> str:
    """The page."""
    return "\n".join(_write(shown, absent)) + "\n"


def _write(shown: Sequence[Shown], absent: Sequence[Absent]) -> Iterator[str]:
    yield from INTRODUCTION.splitlines()
    yield ""
    yield from _write_recall(shown)
    yield from _write_both(shown)
    yield from ("", "## Verdicts", "", *OF_THEIR_DAY, "")
    yield "| exhibit | report | original size | scenario | expected | verdict | our size | minutes | twin |"
    yield "|:--|:--|:--|:--|:--|:--|:--|--:|:--|"
    yield from (_write_row(one) for one in shown)
    yield from _write_host([one for one in shown if one.question is not None])
    yield from _write_rules([one.result for one in shown if one.result is not None])
    yield from ("", "## How each is reproduced", "")
    yield "Each entry has the cause in the report, what runs here, and why this verdict is expected. *A miss*: the gate is"
    yield "expected not to find it."
    yield ""
    yield from (_write_reenactment(one.placed) for one in shown)
    yield from ("", "## What is not reproduced here", "", "| report | size | why not |", "|:--|:--|:--|")
    yield from (f"| {_link(one.url)} | {one.size} | {one.reason} |" for one in absent)
    yield ""
    yield from COMMANDS.splitlines()


def _write_recall(shown: Sequence[Shown]) -> Iterator[str]:
    told = [one.broken for one in shown if one.broken is not None]
    twins = [one.fixed for one in shown if one.fixed is not None]
    yield f"{len(shown)} exhibits, {sum(one.placed.exhibit.machine == 'cpu' for one in shown)} of them on a CPU."
    if not told:
        yield "None was run yet, so the share of regressions found is unknown."
    else:
        found = sum(map(is_told, told))
        least = format_percent(bound_rate_below(found, len(told)), 0)
        share = format_percent(found / len(told), 0)
        yield f"{len(told)} were run. The gate called {found} slower ({share}); with 95 % confidence"
        yield f"the share is at least {least} (Clopper-Pearson, exact, one-sided)."
    if twins:
        false = sum(map(is_told, twins))
        most = format_percent(bound_rate(false, len(twins)), 0)
        yield f"It called {false} of {len(twins)} repaired twins slower; with 95 % confidence the share is at most {most}."


def _write_both(shown: Sequence[Shown]) -> Iterator[str]:
    """What a pull request's jobs find together: the gate, the count of the host's work, and what the engine chooses."""
    asked = [one for one in shown if one.broken is not None or one.host is not None]
    found = sum((one.broken is not None and is_told(one.broken)) or is_lost(one) for one in asked)
    false = sum((one.fixed is not None and is_told(one.fixed)) or is_lost(one, "fixed") for one in asked)
    if any(one.host for one in asked):
        share, least = format_percent(found / len(asked), 0), format_percent(bound_rate_below(found, len(asked)), 0)
        yield "A pull request runs [`perfgate scheduler` and `perfgate resolve`](../how-to/resolve.md#on-a-pull-request), too."
        yield f"Together they find {found} of {len(asked)} ({share}, at least {least}) and call"
        yield f"{format_count(false, 'repaired twin')} slower ([answers](#what-is-told-without-a-gpu))."


def is_lost(one: Shown, side: str = "broken") -> bool:
    """Whether a side is told as slower without a GPU."""
    return one.host is not None and getattr(one.host, side).answer is ResolveAnswer.LOST


def _write_host(asked: Sequence[Shown]) -> Iterator[str]:
    told = [one for one in asked if one.host is not None]
    found = [one for one in told if is_lost(one)]
    new = [one.placed.name for one in found if one.broken is None or not is_told(one.broken)]
    false = sum(is_lost(one, "fixed") for one in told)
    yield from ("", "## What is told without a GPU", "")
    yield "`perfgate scheduler` counts what scheduler, detokenizer and tokenizer manager do, and `perfgate resolve` reads what"
    yield "the engine chooses for a simulated GPU; neither has a noise band. They were asked about exhibits that patch one of"
    yield "these; expected answers were committed first. `resolve` starts no plug-in, so the fault is written into the source"
    yield "of a release, and the twin is an unchanged copy."
    if told:
        yield f"They found {len(found)} of {len(told)}, and a loss in {false} of {len(told)} repaired twins."
        names = f": {', '.join(new)}" if new else ""
        yield f"Of those found, the gate had missed or not yet run {len(new)}{names}."
    yield from ("", "| exhibit | asked | expected | answer | lost most | twin |", "|:--|:--|:--|:--|:--|:--|")
    for one in asked:
        yield f"| {one.placed.name} | {one.question.tool if one.question else ''} | {' | '.join(_describe_host(one))} |"


def _describe_host(one: Shown) -> tuple[str, str, str, str]:
    question, host = one.question, one.host
    expected = "" if question is None else f"{question.answer.value}{f', {question.key}' if question.key else ''}"
    if question is None or host is None:
        return expected, NOT_RUN, "", NOT_RUN
    is_expected = host.broken.answer is question.answer and (not question.key or question.key in host.broken.lost)
    answer = f"{host.broken.answer.value} ({'as' if is_expected else 'not as'} expected)"
    return expected, answer, _describe_lost(host.broken), host.fixed.answer.value


def _describe_lost(side: HostSide) -> str:
    shares = {key: more for key, more in side.lost.items() if key in RULES and RULES[key].margin_ratio is not None}
    if not shares:
        return next((_describe_number(key, more) for key, more in side.lost.items()), "")
    key = max(shares, key=lambda name: shares[name])
    return f"{key} {format_percent(shares[key], is_signed=True)}"


def _describe_number(key: str, more: float) -> str:
    return f"{key} +{more:,.10g}" if key in RULES else f"{key} of {format_count(int(more), 'model')}"


def _write_rules(results: Sequence[ExhibitResult]) -> Iterator[str]:
    if not results:
        return
    yield from ("", "## The same windows under other rules", "")
    yield "Each rule treats a window as a run. A rule that needs earlier runs gets the base of the exhibit's other comparison."
    yield ""
    yield "| rule | exhibits found | repaired twins called slower |"
    yield "|:--|--:|--:|"
    told, twins = [one.broken for one in results if one.broken], [one.fixed for one in results if one.fixed]
    yield f"| perfgate | {sum(map(is_told, told))} of {len(told)} | {sum(map(is_told, twins))} of {len(twins)} |"
    for rule in count_alarms(results):
        yield f"| {rule.name} | {rule.found} of {rule.exhibits} | {rule.false} of {rule.twins} |"


def _write_row(one: Shown) -> str:
    exhibit = one.placed.exhibit
    expected = f"{exhibit.expected.outcome.value}, {METRICS[exhibit.expected.metric].title}"
    cells = [
        f"[{one.placed.name}]({SOURCES}/{one.placed.name}/exhibit.toml)",
        _link(exhibit.report.url),
        exhibit.report.size,
        f"{exhibit.scenario} ({one.broken.hardware if one.broken else exhibit.machine})",
        expected,
        *_describe_broken(one),
        one.fixed.outcome.value if one.fixed else NOT_RUN,
    ]
    return f"| {' | '.join(cells)} |"


def _describe_broken(one: Shown) -> tuple[str, str, str]:
    side, expected = one.broken, one.placed.exhibit.expected
    if side is None:
        return NOT_RUN, "", ""
    metric = side.teller or expected.metric
    found = side.metrics.get(metric)
    worse = None if found is None else found.worse
    size = "" if worse is None else f"{METRICS[metric].title} {_describe_change(metric, worse)}"
    if side.is_counted:
        size = f"{side.reasons[0].partition(' (')[0]}; {size}"
    why = f": {side.reasons[0]}" if side.outcome is Outcome.INVALID and side.reasons else ""
    return f"{side.outcome.value} ({describe_match(side, expected)}){why}", size, f"{side.minutes:.1f}"


def _describe_change(metric: str, worse: float) -> str:
    """The change of a metric, of which a result keeps the logarithm with positive meaning worse."""
    return format_percent(expm1(METRICS[metric].sign * worse), is_signed=True)


def _write_reenactment(placed: Placed) -> str:
    exhibit = placed.exhibit
    told, why = exhibit.reenactment, exhibit.expected.why
    return f"- **{placed.name}** ({told.kind}): {exhibit.report.cause}. Here: {told.words}. Why expected: {why}."


def _link(url: str) -> str:
    owner, repository, _, number = url.removeprefix("https://github.com/").split("/")
    return f"[{owner}/{repository}#{number}]({url})"


if __name__ == "__main__":
    sys.exit(main())
