"""The raw latencies of windows, for pictures of their distribution: every first token and every gap, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfgate.errors import EvidenceError
from perfgate.evidence.bench_serving import read_fields
from perfgate.evidence.request_details import MS_PER_S, parse_details


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Sorted latencies in milliseconds: one TTFT for each request that saw a token, one ITL for each gap between tokens."""

    ttft_ms: NDArray[np.float64]
    itl_ms: NDArray[np.float64]


def read_samples(file: Path | str) -> Samples | None:
    """Read the raw latencies of one window; None where the load generator kept none, or what it kept cannot be read."""
    try:
        details = parse_details(read_fields(Path(file)), str(file))
    except EvidenceError:
        # The same damage is a problem of the session, which says it with its file and line.
        return None
    if details is None:
        return None
    ttft_ms = details.ttft_s[details.ttft_s > 0] * MS_PER_S
    return Samples(ttft_ms=np.sort(ttft_ms), itl_ms=np.sort(details.itl_s * MS_PER_S))


def pool_samples(parts: Iterable[Samples]) -> Samples:
    """All latencies of several windows in one order."""
    found = tuple(parts)
    nothing = np.empty(0)
    return Samples(
        ttft_ms=np.sort(np.concatenate([nothing, *(part.ttft_ms for part in found)])),
        itl_ms=np.sort(np.concatenate([nothing, *(part.itl_ms for part in found)])),
    )
