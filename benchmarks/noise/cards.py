"""By how much two cards of a kind differ at the same time, against two servers on one card.

Usage: python -m benchmarks.noise.cards

No stored session had its arms on cards of their own. What such arms would differ by is shown by sessions that were measured at
the same time, with the same work and release: their bases ran on cards of their own, which may have been of two hosts, for the
sessions do not say. Both figures are of the median window of an arm's whole session, so that they hold the same windows and
starts. Sessions are in several pairs, so that the pairs are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import fsum, log, sqrt
from statistics import median

from benchmarks.error_rates.recordings import Recording, read_list, read_recordings
from benchmarks.error_rates.studies import find_span
from benchmarks.noise.slots import LIST, RATE, STEP
from perfgate.core import Arm, Role
from perfgate.storage.rounding import format_percent


def find_level(one: Recording, arm: Arm, metric: str) -> float:
    """The median window of one arm, on the log scale."""
    windows = (window for window in one.session.windows if window.arm is arm and window.role is Role.MEASURED)
    return log(median(window.run.values[metric] for window in windows))


def find_pairs(found: Sequence[Recording]) -> Iterator[tuple[Recording, Recording]]:
    """Sessions of one work, release and kind of machine that were measured at the same time, by the names of the list."""
    for one, other in combinations(found, 2):
        (begun, ended), (other_begun, other_ended) = find_span(one), find_span(other)
        if _name_work(one) == _name_work(other) and begun < other_ended and other_begun < ended:
            yield one, other


def _name_work(one: Recording) -> tuple[object, ...]:
    facts = one.session.fingerprints[Arm.BASE].facts
    return (
        one.session.workload_hash,
        one.cores,
        *(facts.get(name) for name in ("hardware", "sglang", "vllm", "driver", "torch")),
    )


def measure(pairs: Sequence[tuple[Recording, Recording]], metric: str) -> tuple[list[float], list[float]]:
    """The differences of bases on two cards, and those of equal arms on one card in the same sessions."""
    apart = [find_level(other, Arm.BASE, metric) - find_level(one, Arm.BASE, metric) for one, other in pairs]
    both = {one.name: one for pair in pairs for one in pair if one.session.is_aa}
    together = [find_level(one, Arm.CANDIDATE, metric) - find_level(one, Arm.BASE, metric) for one in both.values()]
    return apart, together


def root_mean_square(values: Sequence[float]) -> float:
    """How far from zero they are."""
    return sqrt(fsum(value**2 for value in values) / len(values))


def main() -> None:
    """Print each pair, then the two figures for each metric."""
    pairs = list(find_pairs(read_recordings(read_list(LIST))[0]))
    figures = {metric: measure(pairs, metric) for metric in (RATE, STEP)}
    for place, (one, other) in enumerate(pairs):
        told = ", ".join(
            f"{metric} {format_percent(apart[place], 2, is_signed=True)}" for metric, (apart, _) in figures.items()
        )
        print(f"{one.name} and {other.name} on {one.machine.hardware}: {told}")
    for metric, (apart, together) in figures.items():
        for what, values in (("bases on two cards", apart), ("equal arms on one card", together)):
            far, most = (format_percent(value, 2) for value in (root_mean_square(values), max(map(abs, values))))
            print(f"{metric}, {len(values)} times {what}: {far}, most {most}")


if __name__ == "__main__":
    main()
