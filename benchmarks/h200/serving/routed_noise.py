"""Print what the sessions of a model that routes say of noise: windows, scatter, differences of blocks, and where time goes.

    python -m benchmarks.h200.serving.routed_noise

Everything comes from the windows in `routed/`; nothing is measured. The last section of the README there is renewed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, expm1, log, pi, sqrt
from pathlib import Path
from statistics import NormalDist, correlation, mean, median, pvariance, stdev

from benchmarks.h200.serving.outcomes import list_outcome
from perfgate.core import Arm, Outcome, Role, Verdict, Window
from perfgate.evidence import Session
from perfgate.gate.case import load_case
from perfgate.results.raw.raw_files import read_raw
from perfgate.results.records import INDEX_FILE
from perfgate.scenario.schema import Scenario
from perfgate.stats.binomial import bound_rate
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.series import read_series

ROUTED = Path(__file__).with_name("routed")
PAGE = ROUTED / "README.md"
HEADLINE = "## Tables\n\nMade by `python -m benchmarks.h200.serving.routed_noise`.\n\n"
SHOWN = {"output_tok_per_s": "throughput", "median_itl_ms": "median ITL", "p99_itl_ms": "P99 ITL"}
SLOW_S = 0.02
"""A gap between tokens that is longer holds another request's prefill: decode steps take 6.6 to 9 ms here."""
LAUNCHED = "--disable-prefill-cuda-graph"
FIRST_WAVE = 16
"""Requests that start together wait for each other's prefill; those that follow come one by one."""
SHORT_TOKENS, LONG_TOKENS = 150, 400
ALPHA, POWER = 0.01, 0.9
COUNTERS = ("stolen_cpu_share", "foreign_cpu_share", "own_cpu_share", "power_w", "sm_clock_min_mhz")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The gaps between tokens of one window that hold a prefill: how many, their median, and all gaps without them."""

    count: int
    median_s: float
    others_s: float
    telemetry: dict[str, float]
    tok_per_s: float
    short_ttfts_s: tuple[float, ...]
    long_ttfts_s: tuple[float, ...]


def read_stored() -> list[Stored]:
    """All sessions in `routed/`, by name."""
    return [_read(path.parent) for path in sorted(ROUTED.glob("*/session.json"))]


def _read(folder: Path) -> Stored:
    case = load_case(folder)
    return Stored(name=folder.name, scenario=case.scenario, session=case.session, verdict=case.verdict)


def main() -> None:
    """Print all tables, and renew the page's last section."""
    tables = write_tables(read_stored())
    print(tables)
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADLINE)
    PAGE.write_text(f"{text}{HEADLINE}{tables}\n", encoding="utf-8")


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
            "What the scatter of windows alone costs",
            ("folder", "metric", "margin", "scatter of a block's difference", "blocks for 1 % false alarms, 90 % power"),
            (row for one in measured for row in list_needs(one)),
        ),
    )
    tables = "\n\n".join(f"### {title}\n\n{draw(head, rows)}" for title, head, rows in parts)
    gaps = f"### Gaps that hold a prefill, launched from Python\n\n{tell_gaps(measured)}"
    return f"{tables}\n\n{tell_scatter(measured)}\n\n{tell_false_alarms(stored)}\n\n{gaps}"


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
        cells = (f"{100 * expm1(differences[metric][block]):+.1f} %" for metric in SHOWN)
        yield (f"`{stored.name}`", "equal" if stored.is_equal else "unlike", str(block + 1), *cells)


def list_needs(stored: Stored) -> Iterator[Sequence[str]]:
    """A row a metric: how many blocks a loss of the margin's size takes where starts differ by their windows' scatter alone.

    The difference of two medians of n normal values scatters by sqrt(pi / n) times one value; a one-sided test of level alpha
    finds a loss d with power p after ((z(1 - alpha) + z(p)) s / d)^2 differences of scatter s. Starts that differ cost more.
    """
    policy = fix_policy(stored.session, stored.scenario, None)
    windows = [one for one in stored.session.windows if one.role is not Role.WARMUP]
    z = NormalDist().inv_cdf(1 - ALPHA) + NormalDist().inv_cdf(POWER)
    for metric, title in SHOWN.items():
        scatter = measure_scatter(windows, metric) * sqrt(pi / stored.scenario.blocks.windows)
        margin = policy.margin_log(metric)
        blocks = max(2, ceil((z * scatter / margin) ** 2))
        yield (f"`{stored.name}`", title, f"{100 * expm1(margin):.0f} %", f"{100 * scatter:.1f} %", str(blocks))


def tell_scatter(measured: Iterable[Stored]) -> str:
    """How blocks of equal arms differ, over all sessions of one workload."""
    found: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for one in measured:
        if one.is_equal:
            differences = read_differences(one)
            blocks = zip(*(differences[metric] for metric in SHOWN), strict=True)
            found[one.scenario.name, one.scenario.workload_hash].extend(blocks)
    rows = [
        (f"`{name}`, `{work}`", title, str(len(values)), f"{100 * mean(values):+.2f} %", f"{100 * stdev(values):.2f} %")
        for (name, work), seen in found.items()
        for title, values in zip(SHOWN.values(), zip(*seen, strict=True), strict=True)
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


def tell_gaps(measured: Iterable[Stored]) -> str:
    """What gaps between tokens that hold a prefill say, over all windows under mixed lengths where no graph served prefill."""
    mixed = [one for one in measured if (one.scenario.load.range_ratio or 1.0) < 1.0 and LAUNCHED in one.scenario.server.args]
    found = [gaps for one in mixed for gaps in read_gaps(ROUTED / one.name)]
    slow = [one.median_s for one in found]
    rows = [
        ("windows that count", str(len(found))),
        (f"gaps above {1000 * SLOW_S:.0f} ms in a window", show_range((one.count for one in found), "{:.0f}")),
        ("their median in a window, ms", show_range((1000 * one for one in slow), "{:.1f}")),
        ("all other gaps together, s", show_range((one.others_s for one in found), "{:.1f}")),
        ("correlation of that median with throughput", f"{correlation(slow, [one.tok_per_s for one in found]):+.2f}"),
        *(tell_counter(name, found) for name in COUNTERS),
        *tell_first_tokens(found),
    ]
    return draw(("what", "value"), rows)


def tell_counter(name: str, found: Sequence[Gaps]) -> Sequence[str]:
    """A machine's counter beside the median gap, window by window."""
    values = [one.telemetry[name] for one in found]
    related = correlation([one.median_s for one in found], values)
    return f"correlation with `{name}` ({show_range(values, '{:.4g}')})", f"{related:+.2f}"


def tell_first_tokens(found: Sequence[Gaps]) -> Iterator[Sequence[str]]:
    """Median TTFT of short and of long prompts that came one by one."""
    short = [ttft_s for one in found for ttft_s in one.short_ttfts_s]
    long = [ttft_s for one in found for ttft_s in one.long_ttfts_s]
    yield f"median TTFT, prompts below {SHORT_TOKENS} tokens ({len(short)}), ms", f"{1000 * median(short):.0f}"
    yield f"median TTFT, prompts above {LONG_TOKENS} tokens ({len(long)}), ms", f"{1000 * median(long):.0f}"


def show_range(values: Iterable[float], form: str) -> str:
    """The least and the largest."""
    ordered = sorted(values)
    return f"{form.format(ordered[0])} to {form.format(ordered[-1])}"


def read_gaps(folder: Path) -> Iterator[Gaps]:
    """The gaps of each window of a session whose requests are stored: thin.py keeps no request of a warm-up window."""
    for text in (folder / INDEX_FILE).read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        run = json.loads(read_raw(folder / line["file"]).splitlines()[-1])
        if "itls" not in run:
            continue
        gaps_s = [gap_s for one in run["itls"] for gap_s in one]
        slow = [gap_s for gap_s in gaps_s if gap_s > SLOW_S]
        later = list(zip(run["input_lens"], run["ttfts"], strict=True))[FIRST_WAVE:]
        yield Gaps(
            count=len(slow),
            median_s=median(slow),
            others_s=sum(gaps_s) - sum(slow),
            telemetry=line["telemetry"],
            tok_per_s=run["output_throughput"],
            short_ttfts_s=tuple(ttft_s for tokens, ttft_s in later if tokens < SHORT_TOKENS),
            long_ttfts_s=tuple(ttft_s for tokens, ttft_s in later if tokens > LONG_TOKENS),
        )


if __name__ == "__main__":
    main()
