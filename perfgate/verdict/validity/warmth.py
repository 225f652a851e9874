"""When a fresh server may be measured: two windows in a row agree, and the second of them held nothing but serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfgate.core import Run
from perfgate.stats.steady import is_steady
from perfgate.storage.rounding import format_percent
from perfgate.verdict.validity.pairing import WindowRules, describe_curve, read_run_badness

Watched = tuple[Run, Mapping[str, float]]
"""A window's run and its telemetry."""


def is_warm(windows: Sequence[Watched], rules: WindowRules) -> bool:
    """Whether the last of a start's `windows` agrees with the one before, as the judge has it, and did no other work."""
    if len(windows) < 2:
        return False
    pair = [read_run_badness(run) for run, _ in windows[-2:]]
    return is_steady(pair, rules.tolerance, rules.noise) and not rules.describe(windows[-1][1])


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
