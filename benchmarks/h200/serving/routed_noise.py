"""Print what the sessions of a model that routes say of noise: windows, scatter, and differences of blocks.

    python -m benchmarks.h200.serving.routed_noise

Everything comes from stored windows, most of them in the history; nothing is measured. The last section of each folder's README
is renewed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import expm1, log, sqrt
from pathlib import Path
from statistics import mean, median, pvariance, stdev

from benchmarks.h200.serving.outcomes import list_outcome
from benchmarks.history import restore_all
from perfgate.core import Arm, CountState, Outcome, Role, Verdict, Window
from perfgate.evidence import Answers, Session
from perfgate.gate.case import load_case
from perfgate.scenario.schema import Scenario
from perfgate.stats.binomial import bound_rate
from perfgate.verdict.counters import COUNTERS, count_blocks
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.series import read_blocks, read_series
from perfgate.verdict.validity.equivalence import compare_starts

ROUTED = Path(__file__).with_name("routed")
H100 = ROUTED.parents[2] / "h100" / "serving"
PAGE, H100_PAGE = ROUTED / "README.md", H100 / "README.md"
HEADLINE = "## Tables\n\nMade by `python -m benchmarks.h200.serving.routed_noise`.\n\n"
SHOWN = {"output_tok_per_s": "throughput", "median_itl_ms": "median ITL", "p99_itl_ms": "P99 ITL"}
# Of an answer; random ids may lead all prompts into one text, of which agreement says little.
FIRST_TOKENS = 16
ANSWERED = "Answers: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A recorded session with its verdict."""

    name: str
    scenario: Scenario
    session: Session
    verdict: Verdict

    @property
    def is_equal(self) -> bool:
        """Whether both arms are the same build with the same settings."""
        return self.session.is_aa


def read_stored(folder: Path) -> list[Stored]:
    """All sessions in a folder, by name."""
    return [_read(path.parent) for path in sorted(folder.glob("*/session.json"))]


def _read(folder: Path) -> Stored:
    case = load_case(folder)
    return Stored(name=folder.name, scenario=case.scenario, session=case.session, verdict=case.verdict)


def main() -> None:
    """Print all tables, and renew each page's last section."""
    for page, folder in ((PAGE, restore_all(ROUTED)), (H100_PAGE, restore_all(H100))):
        tables = write_tables(read_stored(folder))
        print(tables)
        text, _, _ = page.read_text(encoding="utf-8").partition(HEADLINE)
        page.write_text(f"{text}{HEADLINE}{tables}\n", encoding="utf-8")


def write_tables(stored: Sequence[Stored]) -> str:
    """The tables, each below its headline."""
    measured = [one for one in stored if one.verdict.blocks]
    parts = (
        ("Verdicts", ("folder", "outcome", "exit code", "blocks", "moved"), _list_outcomes(stored)),
        (
            "Windows",
            ("folder", "arm", "windows", *(f"{title} (within a start)" for title in SHOWN.values())),
            (row for one in measured for row in list_arms(one)),
        ),
        (
            "Blocks, base to candidate, positive is worse",
            ("folder", "arms", "block", *SHOWN.values()),
            (row for one in measured for row in list_differences(one)),
        ),
        (
            "Counters of equal arms, each block by itself",
            ("counter", "blocks", "same in all windows", "scattered", "arms apart"),
            list_counters(one for one in stored if one.is_equal),
        ),
    )
    tables = "\n\n".join(f"### {title}\n\n{draw(head, rows)}" for title, head, rows in parts)
    return f"{tables}\n\n{tell_answers(stored)}\n\n{tell_scatter(measured)}\n\n{tell_false_alarms(stored)}"


def _list_outcomes(stored: Iterable[Stored]) -> Iterator[Sequence[str]]:
    return (tuple(list_outcome(one.name, one.verdict)) for one in stored)


def draw(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|:--" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def list_arms(stored: Stored) -> Iterator[Sequence[str]]:
    """A row an arm: how many windows count, each metric's median over them, and their scatter within a start."""
    for arm in Arm:
        windows = [one for one in stored.session.windows if one.arm is arm and one.role is not Role.WARMUP]
        cells = (
            f"{median(one.run.values[metric] for one in windows):,.2f} (±{100 * measure_scatter(windows, metric):.1f} %)"
            for metric in SHOWN
        )
        yield (f"`{stored.name}`", arm.value, str(len(windows)), *cells)


def measure_scatter(windows: Sequence[Window], metric: str) -> float:
    """The standard deviation of one window about its start's mean, as a ratio, pooled over starts by degrees of freedom."""
    starts = {one.start for one in windows}
    logs = [[log(one.run.values[metric]) for one in windows if one.start == start] for start in starts]
    squares = sum(pvariance(found) * len(found) for found in logs)
    return sqrt(squares / (len(windows) - len(starts)))


def read_differences(stored: Stored) -> dict[str, Sequence[float]]:
    """By metric, each block's difference of log badness, by the session's own noise alone; positive is worse."""
    policy = fix_policy(stored.session, stored.scenario, None)
    return {one.metric: one.series.differences for one in read_series(stored.session, policy)}


def list_differences(stored: Stored) -> Iterator[Sequence[str]]:
    """A row a block: by how much the candidate differs from the base, as the verdict sees it; positive is worse."""
    differences = read_differences(stored)
    for block in range(stored.verdict.blocks):
        cells = (f"{100 * expm1(differences[metric][block]):+.1f} %" if metric in differences else "" for metric in SHOWN)
        yield (f"`{stored.name}`", "equal" if stored.is_equal else "unlike", str(block + 1), *cells)


def list_counters(stored: Iterable[Stored]) -> Iterator[Sequence[str]]:
    """A row a counter: what each whole block of equal arms says of it, as a verdict of that block alone would.

    Prefix hits and retractions count in each load, also where a verdict leaves them out.
    """
    states: dict[str, list[CountState]] = {}
    for one in stored:
        scenario = replace(one.scenario, allow_retraction=True, load=replace(one.scenario.load, keep_cache=True))
        for block in read_blocks(one.session, fix_policy(one.session, one.scenario, None)):
            for count in count_blocks([block], scenario):
                states.setdefault(count.counter, []).append(count.state)
    for name in filter(states.__contains__, COUNTERS):
        found = states[name]
        same, scattered = found.count(CountState.SAME), found.count(CountState.SCATTERED)
        yield (COUNTERS[name].title, *map(str, (len(found), same, scattered, len(found) - same - scattered)))


def tell_answers(stored: Iterable[Stored]) -> str:
    """How many of a start's answers differ from each other in their first tokens, and how many equal arms do not drift.

    A pair is base and candidate of one block, in sessions of equal arms; without drift all their log-probs are the same.
    """
    asked: dict[str, list[Stored]] = defaultdict(list)
    for one in stored:
        if any(answers.replies for answers in one.session.answers):
            asked[one.scenario.name].append(one)
    every: list[tuple[int, int]] = []
    rows, still, paired = [], 0, 0
    for name, sessions in sorted(asked.items()):
        starts = [answers.replies for one in sessions for answers in one.session.answers if answers.replies]
        counts = [(len({reply.tokens[:FIRST_TOKENS] for reply in replies}), len(replies)) for replies in starts]
        pairs = [pair for one in sessions if one.is_equal for pair in _pair_starts(one.session.answers)]
        same = sum(compare_starts(base, candidate).mean == 0 for base, candidate in pairs)
        least, most = min(counts), max(counts)
        different = f"{least[0]} of {least[1]}" + (f" to {most[0]} of {most[1]}" if most != least else "")
        rows.append((f"`{name}`", str(len(starts)), different, f"{same} of {len(pairs)}" if pairs else "no pair"))
        every, still, paired = every + counts, still + same, paired + len(pairs)
    head = ("scenario", "starts", "different answers of a start", "pairs of equal arms without drift")
    return (
        f"### Greedy answers, by their first {FIRST_TOKENS} tokens\n\n{draw(head, rows)}\n\n"
        f"{ANSWERED}in {sum(found == prompts for found, prompts in every)} of {len(every)} starts each prompt has an answer of "
        f"its own, and {still} of {paired} pairs of equal arms have no drift: all log-probs are the same."
    )


def _pair_starts(answers: Iterable[Answers]) -> Iterator[tuple[Answers, Answers]]:
    found = [one for one in answers if one.replies]
    for base, candidate in product(found, found):
        if (base.arm, candidate.arm, base.block) == (Arm.BASE, Arm.CANDIDATE, candidate.block):
            yield base, candidate


def tell_scatter(measured: Iterable[Stored]) -> str:
    """How blocks of equal arms differ, over all sessions of one workload."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in measured:
        if one.is_equal:
            seen = found[one.scenario.name, one.scenario.workload_hash]
            for metric, values in read_differences(one).items():
                seen[metric].extend(values)
    rows = [
        (f"`{name}`, `{work}`", title, str(len(values)), f"{100 * mean(values):+.2f} %", f"{100 * stdev(values):.2f} %")
        for (name, work), seen in found.items()
        for metric, title in SHOWN.items()
        if len(values := seen[metric]) > 1
    ]
    head = ("scenario, its work", "metric", "blocks of equal arms", "mean difference", "standard deviation")
    return f"### Equal arms, all blocks of a scenario\n\n{draw(head, rows)}"


def tell_false_alarms(stored: Iterable[Stored]) -> str:
    """How many sessions of equal arms were called a regression, and what that says of the rate."""
    equal = [one for one in stored if one.is_equal and one.verdict.blocks]
    alarms = sum(one.verdict.outcome is Outcome.REGRESSION for one in equal)
    bound = bound_rate(alarms, len(equal))
    return (
        f"Sessions of equal arms with a judged block: {len(equal)}, independent verdicts: {len(equal)}, "
        f"false alarms: {alarms}; with 95 % confidence at most {100 * bound:.0f} % of such sessions are (Clopper and Pearson)."
    )


if __name__ == "__main__":
    main()
