"""When the windows of a fresh server count, and when a single window does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import expm1, fsum
from statistics import median

STEADY_METRICS = ("output_tok_per_s", "mean_itl_ms")
"""Two successive windows that agree on these have warmed up."""

SENTINEL_METRICS = ("output_tok_per_s", "mean_itl_ms", "mean_e2e_ms")
"""Their mean standardised slowness is the sentinel: a window that stalled is slow in all three."""

STEADY_SD = 5.0
"""So many window standard deviations apart still is agreement; a window slower than its start by more is measured again."""

Badness = Mapping[str, float]
"""Log values of one window by metric, positive meaning worse."""


def is_steady(windows: Sequence[Badness], tolerance: float, noise: Mapping[str, float]) -> bool:
    """Say whether two successive windows agree within max(5 * window sd, `tolerance`) on throughput and mean ITL.

    `tolerance` is a ratio; `noise` holds the stored window standard deviations by metric, and may be empty.
    """
    return any(_agree(before, after, tolerance, noise) for before, after in pairwise(windows))


def _agree(before: Badness, after: Badness, tolerance: float, noise: Mapping[str, float]) -> bool:
    shared = [name for name in STEADY_METRICS if name in before and name in after]
    return bool(shared) and all(
        abs(expm1(after[name] - before[name])) <= max(STEADY_SD * noise.get(name, 0.0), tolerance) for name in shared
    )


def find_stalled(windows: Sequence[Badness], tolerance: float, noise: Mapping[str, float]) -> int | None:
    """Return the index of the slowest window of a start if its sentinel stands 5 sd above the start's median; else None.

    Slowness is judged against the start's own median, so that a candidate which is slow throughout flags nothing. A standard
    deviation below `tolerance` / 5, or one that is not stored, counts as `tolerance` / 5, as it does in `is_steady`.
    """
    shared = [name for name in SENTINEL_METRICS if all(name in window for window in windows)]
    if not shared:
        return None
    centres = {name: median(window[name] for window in windows) for name in shared}
    spreads = {name: max(noise.get(name, 0.0), tolerance / STEADY_SD) for name in shared}
    sentinels = [fsum((window[name] - centres[name]) / spreads[name] for name in shared) / len(shared) for window in windows]
    slowest = max(range(len(windows)), key=sentinels.__getitem__)
    return slowest if sentinels[slowest] > STEADY_SD else None
