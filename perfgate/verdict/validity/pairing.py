"""From windows to blocks: which windows of which start are judged, and what each block says of each metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import expm1, inf
from statistics import median

from perfgate.core import Arm, Role, Run, Session, Window
from perfgate.metrics import METRICS
from perfgate.stats.components import measure_variance
from perfgate.stats.steady import SENTINEL_METRICS, STEADY_METRICS, find_stalled
from perfgate.storage.rounding import format_percent

# The twelfth decimal of a logarithm is where C libraries begin to differ; a verdict must not.
DECIMALS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One server start: its windows by role, each in the order in which it was measured."""

    number: int
    arm: Arm
    block: int
    warmups: tuple[Window, ...]
    measured: tuple[Window, ...]
    reruns: tuple[Window, ...]

    def find_stalled(self, tolerance: float, noise: Mapping[str, float]) -> int | None:
        """Return which measured window the sentinel rule wants measured again, if any."""
        return find_stalled([read_badness(window, SENTINEL_METRICS) for window in self.measured], tolerance, noise)

    def pick_judged(self, tolerance: float, noise: Mapping[str, float]) -> tuple[Window, ...]:
        """Return the windows that count: the measured ones, with the stalled one replaced by its re-run."""
        if not self.reruns:
            return self.measured
        stalled = self.find_stalled(tolerance, noise)
        return tuple(self.reruns[0] if index == stalled else window for index, window in enumerate(self.measured))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A whole comparison: the judged windows of one fresh start per arm; a candidate alone has an empty base."""

    number: int
    base: tuple[Window, ...]
    candidate: tuple[Window, ...]

    def carries(self, metric: str) -> bool:
        """Whether every judged window has a number for `metric`."""
        return all(0.0 < window.run.values.get(metric, 0.0) < inf for window in (*self.base, *self.candidate))


def group_starts(session: Session) -> tuple[Start, ...]:
    """Sort a session's windows into starts."""
    return group_windows(session.windows)


def group_windows(windows: Iterable[Window]) -> tuple[Start, ...]:
    """Sort windows into starts by what they say of themselves, so that their order in a file means nothing."""
    grouped: dict[tuple[int, int, Arm], list[Window]] = {}
    for window in sorted(windows, key=_order):
        grouped.setdefault((window.block, window.start, window.arm), []).append(window)
    return tuple(
        Start(
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


def pair_blocks(starts: Iterable[Start], windows: int, tolerance: float, noise: Mapping[str, float]) -> tuple[Block, ...]:
    """Pair both arms of each block that has `windows` measured windows in each; the rest does not count."""
    whole = {
        (start.block, start.arm): start.pick_judged(tolerance, noise) for start in starts if len(start.measured) == windows
    }
    numbers = sorted(number for number, arm in whole if arm is Arm.BASE and (number, Arm.CANDIDATE) in whole)
    return tuple(
        Block(number=number, base=whole[number, Arm.BASE], candidate=whole[number, Arm.CANDIDATE]) for number in numbers
    )


def list_lone_blocks(starts: Iterable[Start], windows: int, tolerance: float, noise: Mapping[str, float]) -> tuple[Block, ...]:
    """The whole starts of a candidate that was measured without a base, as blocks whose base is empty."""
    whole = [start for start in starts if start.arm is Arm.CANDIDATE and len(start.measured) == windows]
    return tuple(Block(number=start.block, base=(), candidate=start.pick_judged(tolerance, noise)) for start in whole)


def summarise(windows: Iterable[Window], metric: str) -> float:
    """The median log badness of a start's windows; one stalled window of three cannot move it."""
    badness = METRICS[metric].badness
    return median(badness(window.run.values[metric]) for window in windows)


def measure_spread(windows: Iterable[Window], metric: str) -> float | None:
    """The variance of log values within one start; None for a single window."""
    badness = METRICS[metric].badness
    values = [badness(window.run.values[metric]) for window in windows]
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
