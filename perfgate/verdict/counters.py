"""Counters: what a session counts that needs no statistics, and from which loss each fails a change.

One table, a row a counter. Equal arms give equal numbers, or numbers far closer than the row's size, so any difference is
reported, and one beyond that size is a loss; what scatters in the base itself is reported and not judged. A row is left out
where a scenario cannot move it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from perfgate.core import Arm, Better, Count, CountState, Window
from perfgate.engines.arguments import read_layout
from perfgate.engines.table import ENGINES
from perfgate.results.readings import (
    ACCEPT_LENGTH,
    CACHE_HIT_RATE,
    DECODE_GRAPH_SHARE,
    KV_CAPACITY,
    KV_TRANSFER_MS,
    PREFILL_GRAPH_SHARE,
    REQUESTS_RETRACTED,
    SMALLER_POOL,
)
from perfgate.scenario.schema import Scenario
from perfgate.storage.rounding import format_percent
from perfgate.verdict.validity.pairing import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A reading of windows that equal arms share. `allowed_ratio` is the largest loss that does not fail the change.

    `unit` is empty for a plain count and "%" for a share, which is stored as a ratio. `moves` says whether the work of a
    scenario can change it at all, `where` the same in words. `is_missed` says in which of those it is named where no window
    reads it. `judged_at` is the one reading of the base at which equal arms
    agree; None where they agree at any. `is_plural` says whether its title is.
    """

    name: str
    title: str
    allowed_ratio: float
    where: str
    unit: str = ""
    better: Better = Better.HIGHER
    moves: Callable[[Scenario], bool] = lambda _: True
    is_missed: Callable[[Scenario], bool] = lambda _: True
    decimals: int = 0
    judged_at: float | None = None
    is_plural: bool = False

    @property
    def fails_beyond(self) -> float:
        """The largest loss that does not fail, signed like a change."""
        return -self.allowed_ratio if self.better is Better.HIGHER else self.allowed_ratio

    def find_loss(self, base: float, candidate: float) -> float:
        """How much worse the candidate is, as a ratio; negative for a gain."""
        change = find_change(base, candidate)
        return -change if self.better is Better.HIGHER else change

    def write(self, value: float) -> str:
        """A value for people, with its unit."""
        if self.unit == "%":
            return format_percent(value, self.decimals)
        return f"{value:,.{self.decimals}f} {self.unit}".rstrip()


def _is_on_gpu(scenario: Scenario) -> bool:
    return ENGINES[scenario.server.engine].uses_gpu


def _is_apart(scenario: Scenario) -> bool:
    return read_layout(scenario.server.args).is_disaggregated


_ROWS = (
    Counter(
        name=KV_CAPACITY,
        title="KV capacity",
        unit="tokens",
        allowed_ratio=SMALLER_POOL,
        where="all; the shipped ones have a pool of fixed size, so only a candidate that cannot hold it differs",
    ),
    Counter(
        name=REQUESTS_RETRACTED,
        title="Requests retracted",
        is_plural=True,
        better=Better.LOWER,
        allowed_ratio=0.0,
        # A server that retracts at all does so by when requests arrive: 1 to 5 times in equal windows of a CPU.
        judged_at=0.0,
        moves=lambda scenario: scenario.allow_retraction,
        where="those with `allow_retraction`; in others a window with a retraction is not judged",
    ),
    Counter(
        name=CACHE_HIT_RATE,
        title="Prefix cache hits",
        is_plural=True,
        unit="%",
        allowed_ratio=0.05,
        decimals=2,
        moves=lambda scenario: scenario.load.keep_cache or not scenario.load.is_random,
        where="those with shared prefixes (all data sets except random ones), and those with `keep_cache`",
    ),
    Counter(
        name=ACCEPT_LENGTH,
        title="Accept length",
        unit="tokens a step",
        allowed_ratio=0.02,
        decimals=3,
        where="those with speculative decoding",
    ),
    Counter(
        name=DECODE_GRAPH_SHARE,
        title="Decode steps in a CUDA graph",
        is_plural=True,
        unit="%",
        allowed_ratio=0.01,
        decimals=1,
        moves=_is_on_gpu,
        where="those on a GPU",
    ),
    Counter(
        name=PREFILL_GRAPH_SHARE,
        title="Prefill steps in a CUDA graph",
        is_plural=True,
        unit="%",
        allowed_ratio=0.05,
        decimals=1,
        moves=_is_on_gpu,
        where="those on a GPU",
    ),
    Counter(
        name=KV_TRANSFER_MS,
        title="KV transfer time",
        unit="ms",
        better=Better.LOWER,
        # A time, so it scatters: windows of equal arms were 21 to 36 ms. That a throttled transfer takes at least twice as long
        # was predicted before one was measured; DECISIONS.md, 2026-11-28, has it.
        allowed_ratio=1.0,
        decimals=1,
        # An option of both arms may part them too, so the windows say where there is a transfer.
        is_missed=_is_apart,
        where="those with prefill and decode apart",
    ),
)

COUNTERS: dict[str, Counter] = {row.name: row for row in _ROWS}


def list_counters(scenario: Scenario) -> Iterator[Counter]:
    """The rows that the work of a scenario can move."""
    return (row for row in COUNTERS.values() if row.moves(scenario))


def find_change(base: float, candidate: float) -> float:
    """Candidate over base minus one; from a base of 0 the candidate's count itself."""
    return (candidate - base) / (base or 1.0)


def count_blocks(blocks: Sequence[Block], scenario: Scenario) -> tuple[Count, ...]:
    """Judge each counter in the windows of `blocks`; one that neither arm has in all its windows is left out."""
    found = (_count(counter, blocks) for counter in list_counters(scenario))
    return tuple(count for count in found if count is not None)


def _count(counter: Counter, blocks: Sequence[Block]) -> Count | None:
    base = _read(counter, (window for block in blocks for window in block.base))
    candidate = _read(counter, (window for block in blocks for window in block.candidate))
    if not base and not candidate:
        return None
    if not base or not candidate:
        levels = [median(readings) if readings else None for readings in (base, candidate)]
        return _write_down(counter, CountState.UNTOLD, *levels)
    return _compare(counter, base, candidate)


def _read(counter: Counter, windows: Iterable[Window]) -> list[float]:
    """The readings of an arm, or nothing where one of its windows has none."""
    found = [window.telemetry.get(counter.name) for window in windows]
    return [] if None in found else [reading for reading in found if reading is not None]


def _compare(counter: Counter, base: Sequence[float], candidate: Sequence[float]) -> Count:
    if max(base) < min(candidate):
        nearest = max(base), min(candidate)
    elif max(candidate) < min(base):
        nearest = min(base), max(candidate)
    else:
        is_same = len({*base, *candidate}) == 1
        state = CountState.SAME if is_same else CountState.SCATTERED
        return _write_down(counter, state, median(base), median(candidate))
    scatter = abs(find_change(min(base), max(base)))
    is_judged = counter.judged_at is None or {*base} == {counter.judged_at}
    is_lost = is_judged and scatter <= counter.allowed_ratio < counter.find_loss(*nearest)
    return _write_down(counter, CountState.LOST if is_lost else CountState.CHANGED, *nearest)


def _write_down(counter: Counter, state: CountState, base: float | None, candidate: float | None) -> Count:
    return Count(
        counter=counter.name,
        state=state,
        base=base,
        candidate=candidate,
        change=None if base is None or candidate is None else find_change(base, candidate),
        fails_beyond=counter.fails_beyond,
    )


def describe_count(count: Count) -> str:
    """Say in a clause what became of a counter, such as "KV capacity 65,536 to 60,000 tokens (-8.4 %, fails beyond -1.0 %)"."""
    counter = COUNTERS[count.counter]
    pronoun, be = ("they", "are") if counter.is_plural else ("it", "is")
    if count.base is None or count.candidate is None:
        arm = Arm.CANDIDATE if count.base is None else Arm.BASE
        return f"{counter.title} {be} reported by the {arm.value}'s server alone, so {pronoun} {be} not judged"
    if count.state is CountState.SAME:
        return f"{counter.title} {counter.write(count.base)}"
    if count.state is CountState.SCATTERED:
        vary = "vary" if counter.is_plural else "varies"
        return f"{counter.title} (about {counter.write(count.base)}) {vary} between windows, so {pronoun} {be} not judged"
    size = "" if count.base == 0 else f"{format_percent(count.change or 0.0, is_signed=True)}, "
    line = f"fails beyond {format_percent(count.fails_beyond, is_signed=True)}" if count.fails_beyond else "any loss fails"
    return f"{counter.title} {counter.write(count.base)} to {counter.write(count.candidate)} ({size}{line})"


def explain_count(count: Count) -> str:
    """Say of a lost counter why it fails the change."""
    return f"{describe_count(count)}; every window of the arms agrees on it, so it needs no statistics"
