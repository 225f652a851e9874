"""How long a decode step takes in each second of a window, from the gaps between tokens that the load generator recorded."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SEGMENT_S = 1.0
MS_PER_S = 1e3


def place_requests(first_token_s: Sequence[float], gaps_s: Sequence[Sequence[float]], concurrency: int) -> list[float]:
    """When each request of a closed loop was sent, in seconds since the window began.

    The load generator writes no times of day. It sends in order, the next request as soon as one of the `concurrency` places is
    free, so that the lengths of requests tell their places in time.
    """
    free = [0.0] * min(concurrency, len(gaps_s))
    begun = []
    for first_s, gaps in zip(first_token_s, gaps_s, strict=True):
        begun.append(heapq.heappop(free))
        heapq.heappush(free, begun[-1] + first_s + sum(gaps))
    return begun


def list_steps(fields: Mapping[str, Any], steps: int) -> tuple[Floats, Floats]:
    """The mean of each `steps` successive gaps of a request, in ms, and its middle in seconds since the window began."""
    begun = place_requests(fields["ttfts"], fields["itls"], fields.get("max_concurrency") or len(fields["itls"]))
    found = list(_list_steps(begun, fields, steps))
    return np.concatenate([sizes for sizes, _ in found]), np.concatenate([middles for _, middles in found])


def _list_steps(begun: Sequence[float], fields: Mapping[str, Any], steps: int) -> Iterator[tuple[Floats, Floats]]:
    for start_s, first_s, gaps in zip(begun, fields["ttfts"], fields["itls"], strict=True):
        whole = len(gaps) // steps
        times = start_s + first_s + np.concatenate([[0.0], np.cumsum(gaps)])[: whole * steps + 1 : steps]
        yield np.diff(times) * MS_PER_S / steps, (times[1:] + times[:-1]) / 2


def measure_segments(fields: Mapping[str, Any], steps: int = 8) -> Floats:
    """The median step in each segment of about SEGMENT_S, in ms, in the order of time."""
    sizes, middles = list_steps(fields, steps)
    count = max(1, round(float(middles.max()) / SEGMENT_S))
    places = np.minimum((middles / middles.max() * count).astype(np.int64), count - 1)
    return np.array([np.median(sizes[places == place]) for place in np.unique(places)])
