"""Two profiled windows as numbers, to a hand-off and back: no name crosses that a change chose."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from perfgate.github.handoff.handoff import MAX_LAUNCHES, KernelEntry, ProfileEntry
from perfgate.results.profiling.attribution import (
    Attribution,
    KernelDifference,
    LaunchDifference,
    name_unnamed,
    rank,
    rank_layer,
    summarise,
)
from perfgate.results.profiling.profiles import store_numbers

_NOT_KERNEL = re.compile(r"[^A-Za-z0-9_:.~]")


def pack_profile(found: Attribution | str | None) -> ProfileEntry | None:
    """Reduce profiles to numbers under the base's own names; None where both arms' cannot be read."""
    if not isinstance(found, Attribution):
        return None
    return ProfileEntry(
        kind=found.kind,
        base_us=found.base_us,
        candidate_us=found.candidate_us,
        base_calls=found.base_calls,
        candidate_calls=found.candidate_calls,
        parts=tuple(
            KernelEntry(
                name=_NOT_KERNEL.sub("_", part.name)[:72] if part.base_count else "",
                digest=hashlib.sha256(part.name.encode()).hexdigest()[:12],
                base_us=part.base_us,
                candidate_us=part.candidate_us,
                base_count=part.base_count,
                candidate_count=part.candidate_count,
                launches=tuple(_pick_ends(part.launches)),
                code=part.code,
            )
            for part in summarise(found).parts
        ),
        layers=found.layers,
        has_launches=found.has_launches,
        same_code=found.same_code,
        host=found.host,
    )


def _pick_ends(launches: Sequence[LaunchDifference]) -> Sequence[LaunchDifference]:
    """As many as find room: those that the candidate takes least and most of, which stand at both ends."""
    half = MAX_LAUNCHES // 2
    return launches if len(launches) <= MAX_LAUNCHES else (*launches[:half], *launches[-half:])


def unpack_profile(entry: ProfileEntry, folder: Path) -> None:
    """Write the numbers into a result folder; a kernel that the base does not call is named by its digest."""
    parts = tuple(
        KernelDifference(
            name=part.name or name_unnamed(entry.kind, part.digest),
            base_us=part.base_us,
            candidate_us=part.candidate_us,
            base_count=part.base_count,
            candidate_count=part.candidate_count,
            share=0.0,
            launches=part.launches,
            code=part.code,
        )
        for part in entry.parts
    )
    found = Attribution(
        kind=entry.kind,
        parts=tuple(sorted(parts, key=rank)),
        base_us=entry.base_us,
        candidate_us=entry.candidate_us,
        base_calls=entry.base_calls,
        candidate_calls=entry.candidate_calls,
        layers=tuple(sorted(entry.layers, key=rank_layer)),
        has_launches=entry.has_launches,
        same_code=entry.same_code,
        host=entry.host,
    )
    store_numbers(folder, found)
