"""Is the session built as the scenario fixed it: every block, start and window once, in the order of time, warm when judged?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

from perfgate.core import Arm, Fingerprint, Window
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.scenario.schema import Scenario
from perfgate.stats.steady import is_steady
from perfgate.verdict.validity.pairing import (
    ServerStart,
    WindowRules,
    describe_curve,
    fix_rules,
    list_watched,
    may_discard,
    read_badness,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """What evidence must satisfy: the scenario, the metrics that may gate, and the stored noise of a window by metric.

    `stored` is the machine of the baseline that the session would be judged by, even where its noise cannot be used.
    """

    scenario: Scenario
    gated: tuple[str, ...]
    noise: Mapping[str, float] = field(default_factory=dict)
    stored: Fingerprint | None = None

    @property
    def rules(self) -> WindowRules:
        """What decides which windows of a start count."""
        return fix_rules(self.scenario, self.noise)


def sort_by_time(windows: Iterable[Window]) -> list[Window]:
    """Order windows by when they began; the order in which a file names them means nothing."""
    return sorted(windows, key=lambda window: (window.begun_s, window.start, window.index, window.role.value))


def check_copies(session: Session) -> Iterator[str]:
    """A window that is there twice would count as evidence twice."""
    places: dict[object, Window] = {}
    for window in sort_by_time(session.windows):
        run = window.run
        keys: list[object] = [(window.start, window.arm, window.index, window.role)]
        # The server's memory, in the index, is another number for the copy of a window.
        seen = frozenset((name, value) for name, value in run.values.items() if METRICS[name].is_of_requests)
        if run.duration_s and len(seen) > 1:
            keys.append((run.duration_s, seen))
        if found := next((places[key] for key in keys if key in places), None):
            yield f"{window.name}: repeats {found.name}; a copy is no second measurement, remove it or measure again"
        places.update(dict.fromkeys(keys, window))


def check_clock(session: Session, starts: Iterable[ServerStart]) -> Iterator[str]:
    """Time runs forward, one window after the other."""
    windows = sort_by_time(session.windows)
    advice = "the clock went back or the folder was edited; measure again"
    for window in windows:
        if not 0 <= window.begun_s < window.ended_s or not isfinite(window.ended_s):
            yield f"{window.name}: runs from {window.begun_s:g} s to {window.ended_s:g} s; {advice}"
            return
    for before, after in pairwise(windows):
        if after.begun_s < before.ended_s:
            yield f"{after.name}: began at {after.begun_s:g} s, before {before.name} ended; {advice}"
        if after.block < before.block:
            yield f"{after.name}: was measured after block {before.block}; {advice}"
    for start in starts:
        if any(after.begun_s < before.begun_s for before, after in pairwise(start.list_windows())):
            yield f"start {start.number}: its windows are numbered against the order of time; {advice}"


def check_starts(starts: Iterable[ServerStart], limits: AdmissionLimits) -> Iterator[str]:
    """One fresh server per arm and block, warmed until steady, re-run at most once and only where the rule says so."""
    seen: dict[int, ServerStart] = {}
    starts = tuple(starts)
    windows = sort_by_time(window for start in starts for window in start.list_windows())
    for start in starts:
        if start.number in seen:
            other = seen[start.number]
            yield (
                f"start {start.number} serves {other.arm.value} in block {other.block} and {start.arm.value} in block "
                f"{start.block}; every arm of every block needs a server of its own"
            )
        seen[start.number] = start
        yield from _check_warmth(start, windows, limits)
        yield from _check_reruns(start, limits)


def _check_warmth(start: ServerStart, windows: Sequence[Window], limits: AdmissionLimits) -> Iterator[str]:
    most = limits.scenario.warmup.max_discards
    discarded = list_watched(start.warmups)
    if discarded and not may_discard(discarded[:-1], limits.rules, most):
        yield f"start {start.number}: {len(discarded)} windows discarded, {most} are allowed: never steady; measure again"
    if len(start.measured) < min(2, limits.scenario.blocks.windows):
        return
    if not start.warmups:
        yield f"start {start.number}: no window was discarded, so a cold one would be judged; measure again with warm-up"
        return
    curve = (*start.warmups, *start.measured[:2])
    # The driver may have stopped at any but the first of them.
    tolerance = max(_widen(window, windows, limits.rules).tolerance for window in start.warmups[1:] or start.warmups)
    if not is_steady([read_badness(window) for window in curve], tolerance, limits.noise):
        shown = describe_curve(window.run for window in curve)
        yield f"start {start.number}: never steady ({shown}); stop other work on the machine"


def _widen(window: Window, windows: Sequence[Window], rules: WindowRules) -> WindowRules:
    """The rules that the driver had when it had measured `window`, of all `windows` by time."""
    before = [other for other in windows if other.arm is window.arm.other and other.ended_s <= window.begun_s]
    return rules.widen(window.run, before[-1].run if before else None)


def _check_reruns(start: ServerStart, limits: AdmissionLimits) -> Iterator[str]:
    settled = start.settle(limits.rules)
    if not settled.spare:
        return
    if len(start.reruns) > 1:
        asked = len(settled.replaced)
        rule = "one is the rule" if asked < 2 else f"{asked} were asked for"
        yield f"start {start.number}: {len(start.reruns)} re-runs; {rule}, more would be choosing"
    else:
        yield f"start {start.number}: re-run although no window stalled; a re-run that no rule asked for would be choosing"


def check_same_work(session: Session, starts: Iterable[ServerStart], limits: AdmissionLimits) -> Iterator[str]:
    """Each window that counts is the same work; the last block of a session that was cut off may lack its re-runs."""
    rules, found = limits.rules, tuple(starts)
    last = max((start.block for start in found), default=0)
    for start in found:
        flaw = start.settle(rules).wanted
        if flaw is not None and flaw.work and (session.is_complete or start.block < last):
            yield (
                f"{flaw.window.name}: the server {flaw.work}, and no re-run without that stands in its place; "
                f"{rules.advise(flaw.window.telemetry)}"
            )


def check_blocks(session: Session, starts: tuple[ServerStart, ...], limits: AdmissionLimits) -> Iterator[str]:
    """All blocks are there and whole, except the last of a session that was cut off or still runs."""
    wanted = limits.scenario.blocks.windows
    arms = tuple(session.fingerprints) or tuple(Arm)
    counts = {(start.block, start.arm): 0 for start in starts}
    for start in starts:
        counts[start.block, start.arm] += len(start.measured)
    last = max((start.block for start in starts), default=0)
    if session.is_complete and not any(counts.values()):
        yield "no window was measured; read the session's log, then measure again"
    for block in range(1, min(last, len(starts) + 1) + 1):
        for arm in sorted(arms):
            have = counts.get((block, arm), 0)
            if have > wanted or (have < wanted and (session.is_complete or block < last)):
                yield f"block {block}, {arm.value}: {have} measured windows where the scenario fixed {wanted}; measure again"
    for (block, arm), count in sorted(Counter((start.block, start.arm) for start in starts).items()):
        if count > 1:
            yield f"block {block}, {arm.value}: {count} server starts; every block has one of each arm, measure again"
