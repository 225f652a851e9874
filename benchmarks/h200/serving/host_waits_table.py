"""The windows of `host_waits` as tables: how often each arm was slow, and what the host did in slow and in fast seconds.

A window is slow whose median ITL lies more than 4 % above the fast mode, the lower quartile of all windows whatever their arm;
a second is held against the same second of all windows, since contexts grow and prompts arrive together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks.h200.serving.host_threads import FRONT_END, MAIN, list_counters
from perfgate.report.table import Table, lay_out
from perfgate.verdict.validity.admission import FULL_CORE_SHARE

SLOW = 1.04
PLACED = ("pinned", "alone")
"""Arms that say where threads run: what else differs between slow and fast seconds is told apart from them."""
SHARES = (0.0, 0.9, FULL_CORE_SHARE, float("inf"))
"""What seconds are told apart by: the share of a core that the front end's thread had."""
TOP = 12
"""So many groups of threads are told, those that differ most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """One second of a window's load, and whether it was slow."""

    arm: str
    told: Mapping[str, Any]
    is_slow: bool


def find_fast(values: Sequence[float]) -> float:
    """The fast mode: what a quarter of the values stays below."""
    return float(np.quantile(values, 0.25))


def list_seconds(windows: Sequence[Mapping[str, Any]]) -> list[Second]:
    """The seconds of all windows in which tokens arrived."""
    columns = defaultdict(list)
    for window in windows:
        for place, told in enumerate(window["seconds"]):
            if told["itl_ms"] is not None:
                columns[place].append((window["arm"], told))
    fast = {place: find_fast([told["itl_ms"] for _, told in column]) for place, column in columns.items()}
    return [
        Second(arm=arm, told=told, is_slow=told["itl_ms"] > SLOW * fast[place])
        for place, column in columns.items()
        for arm, told in column
    ]


def describe(windows: Sequence[Mapping[str, Any]]) -> str:
    """All tables; a sentence where there is no window."""
    if not windows:
        return "no window was measured"
    seconds = list_seconds(windows)
    placed = [second for second in seconds if second.arm in PLACED]
    free = [second for second in seconds if second.arm not in PLACED]
    tables = {
        "slow by arm": tabulate_arms(windows, seconds),
        "by what the thread for requests and tokens used of a core": tabulate_front_end(seconds),
        "a second of arms whose threads go where they like": tabulate_seconds(free),
        "a second of arms whose threads are placed": tabulate_seconds(placed),
        "by the CPU of a scheduler that goes where it likes": tabulate_cpus(free),
    }
    return "\n\n".join(f"{title}\n{lay_out(table)}" for title, table in tables.items())


def tabulate_arms(windows: Sequence[Mapping[str, Any]], seconds: Sequence[Second]) -> Table:
    """How often each arm was slow."""
    fast = find_fast([window["values"]["median_itl_ms"] for window in windows])
    rows = []
    for arm in dict.fromkeys(window["arm"] for window in windows):
        own = [window["values"] for window in windows if window["arm"] == arm]
        slow = [one["median_itl_ms"] > SLOW * fast for one in own]
        parts = [second.is_slow for second in seconds if second.arm == arm]
        middles = [f"{median(one[name] for one in own):.2f}" for name in ("output_tok_per_s", "median_itl_ms", "p99_itl_ms")]
        shares = f"{sum(slow)} ({fmean(slow):.1%})", f"{fmean(parts or [0]):.1%} of {len(parts)}"
        rows.append([arm, str(len(own)), *middles, *shares])
    return Table(header=["arm", "windows", "tok/s", "median ITL", "P99 ITL", "slow windows", "slow seconds"], rows=rows)


def tabulate_front_end(seconds: Sequence[Second]) -> Table:
    """How many seconds were slow by the share of a core that the front end had in them, and its mean share."""
    rows = []
    for arm in ("all", *dict.fromkeys(second.arm for second in seconds)):
        # The first of the counters is the time on a core.
        own = [
            (second.told["groups"].get(FRONT_END, [0.0])[0], second.is_slow) for second in seconds if arm in ("all", second.arm)
        ]
        found = [[is_slow for share, is_slow in own if low <= share < high] for low, high in pairwise(SHARES)]
        rows.append([arm, f"{fmean(share for share, _ in own):.2f}", *(f"{sum(slow)} of {len(slow)}" for slow in found)])
    return Table(header=["slow seconds", "mean share", *(f"from {low:g} on" for low in SHARES[:-1])], rows=rows)


def tabulate_seconds(seconds: Sequence[Second]) -> Table:
    """What differs between fast and slow seconds: means, a second's worth each."""
    found: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for second in seconds:
        for name, value in list_facts(second.told):
            found[name][second.is_slow].append(value)
    counts = tuple(sum(second.is_slow is slow for second in seconds) for slow in (False, True))
    # A group that is not told in a second did next to nothing in it.
    means = {
        name: tuple(_mean(name, values, count) for values, count in zip(pair, counts, strict=True))
        for name, pair in found.items()
    }
    others = [name for name in means if " " in name and not name.startswith(MAIN)]
    kept = sorted(others, key=lambda name: -abs(means[name][1] - means[name][0]))[:TOP]
    names = [name for name in means if name not in others] + kept
    return Table(
        header=["a second", f"fast ({counts[0]})", f"slow ({counts[1]})"],
        rows=[[name, *(f"{value:.4g}" for value in means[name])] for name in names],
    )


def _mean(name: str, values: Sequence[float], count: int) -> float:
    return sum(values) / (count if " " in name else len(values)) if values else 0.0


def list_facts(told: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures of one second; those of a group of threads have a blank in their names."""
    yield "itl_ms", told["itl_ms"]
    yield from ((name, told[name]) for name in ("moves", "sibling_s") if name in told)
    yield "busy_s", sum(busy for busy, _ in told["cpus"].values())
    yield "stolen_s", sum(stolen for _, stolen in told["cpus"].values())
    yield from zip(("power_w", "sm_clock_mhz"), told.get("gpu", ()), strict=False)
    yield from zip(("lap_us",), told.get("lap", ()), strict=True)
    for group, values in told["groups"].items():
        for name, value in list_counters(values).items():
            if group == MAIN or name in {"run_s", "delay_s"}:
                yield f"{group} {name}", value


def tabulate_cpus(seconds: Sequence[Second]) -> Table:
    """The slow share by the CPU that the scheduler's main thread was on."""
    by_cpu = defaultdict(list)
    for second in seconds:
        by_cpu[second.told.get("cpu", -1)].append(second.is_slow)
    return Table(
        header=["scheduler on CPU", "seconds", "slow"],
        rows=[[str(cpu), str(len(slow)), f"{fmean(slow):.1%}"] for cpu, slow in sorted(by_cpu.items())],
    )
