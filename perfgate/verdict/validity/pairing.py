"""From windows to blocks: when a start is warm, which of its windows are judged, and what each block says of each metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import expm1, inf
from statistics import median

from perfgate.core import Arm, Role, Run, Window
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.scenario.schema import Scenario
from perfgate.stats.components import measure_variance
from perfgate.stats.slope import find_growth
from perfgate.stats.steady import SENTINEL_METRICS, STEADY_METRICS, find_stalled, is_steady
from perfgate.storage.rounding import format_percent
from perfgate.verdict.validity.same_work import advise, describe_other_work

# The twelfth decimal of a logarithm is where C libraries begin to differ; a verdict must not.
DECIMALS = 12

FAR = 20.0
"""Windows that differ by one part of so many of what lies between two arms neither hide such a difference nor feign one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRules:
    """What decides which windows of a start count; the driver that measures and the judge ask the same.

    `tolerance` is the ratio of `stats.steady`, `noise` the stored window standard deviations by metric. `allows_retraction`
    says that a window in which requests were retracted is the work that was meant.
    """

    tolerance: float
    noise: Mapping[str, float] = field(default_factory=dict)
    allows_retraction: bool = False

    def widen(self, own: Run, other: Run | None) -> WindowRules:
        """The rules for a start by its last window, where `other` is the other arm's window before that one.

        Between arms that are far apart, windows need not agree more closely than within a twentieth of what lies between.
        """
        if other is None:
            return self
        here, there = read_run_badness(own), read_run_badness(other)
        apart = min((abs(here[name] - there[name]) for name in here.keys() & there.keys()), default=0.0)
        return replace(self, tolerance=max(self.tolerance, apart / FAR))

    def describe(self, telemetry: Mapping[str, float]) -> str:
        """What a server did in a window besides the work that was meant; empty for nothing."""
        return describe_other_work(telemetry, allows_retraction=self.allows_retraction)

    def advise(self, telemetry: Mapping[str, float]) -> str:
        """What to do where a server does that in every window."""
        return advise(telemetry, allows_retraction=self.allows_retraction)


def fix_rules(scenario: Scenario, noise: Mapping[str, float]) -> WindowRules:
    """The rules of a scenario's windows on a machine whose windows scatter by `noise`."""
    return WindowRules(tolerance=scenario.warmup.steady_ratio, noise=noise, allows_retraction=scenario.allow_retraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """A window that has to be measured again: the one in `place` of those that count. `work` is empty where it stalled."""

    place: int
    window: Window
    work: str

    @property
    def description(self) -> str:
        """What became of the window, as a verb: "stalled", or what its server did."""
        return self.work or "stalled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A start's windows after its re-runs took their places.

    `windows` are those that count, as many as were measured. `replaced` are the flaws that re-runs stand for, in the order of
    the re-runs; `wanted` is the flaw that is left, None where there is none. `spare` are re-runs that no rule asked for.
    """

    windows: tuple[Window, ...]
    replaced: tuple[Flaw, ...]
    wanted: Flaw | None
    spare: tuple[Window, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStart:
    """One server start: its windows by role, each in the order in which it was measured."""

    number: int
    arm: Arm
    block: int
    warmups: tuple[Window, ...]
    measured: tuple[Window, ...]
    reruns: tuple[Window, ...]

    def list_windows(self) -> tuple[Window, ...]:
        """All windows, by role."""
        return *self.warmups, *self.measured, *self.reruns

    def settle(self, rules: WindowRules) -> Settled:
        """Let each re-run replace the window that the rules want measured again at that point.

        Windows in which the server did other work come first, each as often as it takes; then, once, the one that stalled.
        """
        windows, spare, replaced = list(self.measured), list(self.reruns), list[Flaw]()
        while (flaw := _find_flaw(windows, replaced, rules)) is not None and spare:
            windows[flaw.place] = spare.pop(0)
            replaced.append(flaw)
        return Settled(windows=tuple(windows), replaced=tuple(replaced), wanted=flaw, spare=tuple(spare))

    def pick_judged(self, rules: WindowRules) -> tuple[Window, ...]:
        """Return the windows that count: the measured ones, with each flawed one replaced by its re-run."""
        return self.settle(rules).windows if self.reruns else self.measured

    def is_same_work(self, rules: WindowRules) -> bool:
        """Whether the server did nothing but the work that was meant in each window that counts."""
        return not any(rules.describe(window.telemetry) for window in self.pick_judged(rules))


def _find_flaw(windows: Sequence[Window], replaced: Iterable[Flaw], rules: WindowRules) -> Flaw | None:
    for place, window in enumerate(windows):
        if work := rules.describe(window.telemetry):
            return Flaw(place=place, window=window, work=work)
    if not windows or any(not flaw.work for flaw in replaced):
        return None
    stalled = find_stalled([read_badness(window, SENTINEL_METRICS) for window in windows], rules.tolerance, rules.noise)
    return None if stalled is None else Flaw(place=stalled, window=windows[stalled], work="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A whole comparison: the judged windows of one fresh start per arm; a candidate alone has an empty base."""

    number: int
    base: tuple[Window, ...]
    candidate: tuple[Window, ...]

    def carries(self, metric: str) -> bool:
        """Whether every judged window has a number for `metric`."""
        name = METRICS[metric].of_window
        return all(0.0 < window.run.values.get(name, 0.0) < inf for window in (*self.base, *self.candidate))


def group_starts(session: Session) -> tuple[ServerStart, ...]:
    """Sort a session's windows into starts."""
    return group_windows(session.windows)


def group_windows(windows: Iterable[Window]) -> tuple[ServerStart, ...]:
    """Sort windows into starts by what they say of themselves, so that their order in a file means nothing."""
    grouped: dict[tuple[int, int, Arm], list[Window]] = {}
    for window in sorted(windows, key=_order):
        grouped.setdefault((window.block, window.start, window.arm), []).append(window)
    return tuple(
        ServerStart(
            number=number,
            arm=arm,
            block=block,
            warmups=_pick(found, Role.WARMUP),
            measured=_pick(found, Role.MEASURED),
            reruns=_pick(found, Role.RERUN),
        )
        for (block, number, arm), found in grouped.items()
    )


def _order(window: Window) -> tuple[int, int, str, int, float, str]:
    return (window.block, window.start, window.arm.value, window.index, window.begun_s, window.run.source)


def _pick(windows: Iterable[Window], role: Role) -> tuple[Window, ...]:
    return tuple(window for window in windows if window.role is role)


def pair_blocks(starts: Iterable[ServerStart], windows: int, rules: WindowRules) -> tuple[Block, ...]:
    """Pair both arms of each block that has `windows` measured windows of the same work in each; the rest does not count."""
    whole = {(start.block, start.arm): start.pick_judged(rules) for start in starts if _is_whole(start, windows, rules)}
    numbers = sorted(number for number, arm in whole if arm is Arm.BASE and (number, Arm.CANDIDATE) in whole)
    return tuple(
        Block(number=number, base=whole[number, Arm.BASE], candidate=whole[number, Arm.CANDIDATE]) for number in numbers
    )


def list_lone_blocks(starts: Iterable[ServerStart], windows: int, rules: WindowRules) -> tuple[Block, ...]:
    """The whole starts of a candidate that was measured without a base, as blocks whose base is empty."""
    whole = [start for start in starts if start.arm is Arm.CANDIDATE and _is_whole(start, windows, rules)]
    return tuple(Block(number=start.block, base=(), candidate=start.pick_judged(rules)) for start in whole)


def _is_whole(start: ServerStart, windows: int, rules: WindowRules) -> bool:
    return len(start.measured) == windows and start.is_same_work(rules)


def read_values(windows: Iterable[Window], metric: str) -> tuple[float, ...]:
    """What a start's windows say of `metric`, in its unit: a number each, or of a growth the one of the whole start."""
    row = METRICS[metric]
    if not row.growth_of:
        return tuple(window.run.values[metric] for window in windows)
    # The index counts every window of the start, those that were discarded or measured again included.
    return (find_growth([(window.index * window.run.completed, window.run.values[row.growth_of]) for window in windows]),)


def summarise(windows: Iterable[Window], metric: str) -> float:
    """The median log badness of a start's windows; one stalled window of three cannot move it."""
    return median(map(METRICS[metric].badness, read_values(windows, metric)))


def measure_window_variance(windows: Iterable[Window], metric: str) -> float | None:
    """The variance of log values within one start; None for a single window, and for what is one number of the start."""
    values = [*map(METRICS[metric].badness, read_values(windows, metric))]
    return measure_variance(values) if len(values) > 1 else None


def read_badness(window: Window, metrics: Iterable[str] = STEADY_METRICS) -> dict[str, float]:
    """Log badness of those of `metrics` that the window carries as a positive number."""
    return read_run_badness(window.run, metrics)


def read_run_badness(run: Run, metrics: Iterable[str] = STEADY_METRICS) -> dict[str, float]:
    """Log badness of those of `metrics` that the run carries as a positive number."""
    return {name: METRICS[name].badness(run.values[name]) for name in metrics if 0.0 < run.values.get(name, 0.0) < inf}


def describe_curve(runs: Iterable[Run]) -> str:
    """Tell how slow successive runs of one start were against its first one, over throughput and mean ITL together."""
    sums = [(sum(found.values()), len(found)) for found in map(read_run_badness, runs)]
    shape = [format_percent(expm1((total - sums[0][0]) / max(count, 1)), is_signed=True) for total, count in sums]
    return f"slowness against its first window: {', '.join(shape)}"


Watched = tuple[Run, Mapping[str, float]]
"""A window's run and its telemetry."""


def list_watched(windows: Iterable[Window]) -> list[Watched]:
    """The result of each window, and what was observed while it ran."""
    return [(window.run, window.telemetry) for window in windows]


def is_warm(windows: Sequence[Watched], rules: WindowRules) -> bool:
    """Whether the last of a start's `windows` agrees with the one before, as the judge has it, and did no other work."""
    if len(windows) < 2:
        return False
    pair = [read_run_badness(run) for run, _ in windows[-2:]]
    return is_steady(pair, rules.tolerance, rules.noise) and not rules.describe(windows[-1][1])


def may_discard(windows: Sequence[Watched], rules: WindowRules, most: int) -> bool:
    """Whether a start that discarded these `windows` may discard one more: `most` that only served, twice as many in all.

    A server with cold compile caches spends its first windows on kernels; what is steady shows in the others.
    """
    served = sum(not rules.describe(telemetry) for _, telemetry in windows)
    return served < most and len(windows) < 2 * most


def explain_cold(windows: Sequence[Watched], rules: WindowRules) -> str:
    """Say why a start is not warm after all the `windows` that it may discard, and what to do."""
    found = [rules.describe(telemetry) for _, telemetry in windows]
    each = "; ".join(one or "nothing" for one in found)
    ratio = format_percent(rules.tolerance, 0)
    curve = describe_curve(run for run, _ in windows)
    if found[-1]:
        return (
            f"never only served: the last of {len(windows)} warm-up windows {found[-1]} (window by window: {each}); "
            f"{rules.advise(windows[-1][1])}"
        )
    if any(found):
        return (
            f"never got steady: when it had done its other work (window by window: {each}), the last of {len(windows)} warm-up "
            f"windows did not agree with the one before within {ratio} ({curve}); raise warmup.max_discards"
        )
    return (
        f"never got steady: of {len(windows)} warm-up windows no two in a row agreed within {ratio} ({curve}); "
        "is something else running on this machine?"
    )
