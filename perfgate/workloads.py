"""Which runs did the same work, by the facts that their output carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfgate.core import Arm, Run
from perfgate.errors import InputError, WorkloadMismatchError

Facts = Mapping[str, str | int | float]
# Fewer equal numbers than this may be chance; two runs never agree in all digits of so many.
MIN_EQUAL_VALUES = 5


def find_groups(arms: Mapping[Arm, Sequence[Run]]) -> tuple[list[tuple[Facts, dict[Arm, list[Run]]]], list[str]]:
    """Group the runs of both arms by the facts that all of them carry; return the groups and what could not be checked.

    Raise WorkloadMismatchError naming both values when one arm did work that the other did not.
    """
    runs = [run for given in arms.values() for run in given]
    everywhere = set(runs[0].workload).intersection(*(run.workload for run in runs)) if runs else set()
    somewhere = set().union(*(run.workload for run in runs))
    keys = sorted(everywhere)
    grouped: dict[tuple[str, ...], dict[Arm, list[Run]]] = {}
    for arm, given in arms.items():
        for run in given:
            facts = tuple(show_fact(run.workload[key]) for key in keys)
            grouped.setdefault(facts, {Arm.BASE: [], Arm.CANDIDATE: []})[arm].append(run)
    for facts, members in sorted(grouped.items(), key=lambda item: item[0]):
        for arm, other in ((Arm.BASE, Arm.CANDIDATE), (Arm.CANDIDATE, Arm.BASE)):
            if not members[other]:
                raise WorkloadMismatchError(_describe(keys, facts, arm, members[arm][0], arms[other]))
    groups = [(_pick(members[Arm.BASE][0], keys), members) for _, members in sorted(grouped.items(), key=lambda item: item[0])]
    unchecked = [f"not every run tells its {key}, so it was not compared" for key in sorted(somewhere - everywhere)]
    return groups, unchecked


def _pick(run: Run, keys: Sequence[str]) -> Facts:
    return {key: run.workload[key] for key in keys}


def _describe(keys: Sequence[str], facts: tuple[str, ...], arm: Arm, run: Run, others: Sequence[Run]) -> str:
    """Name the facts in which `run` differs from the most similar run of the other arm."""
    if not others:
        return f"{run.source}: the other arm has no run; give at least one file an arm"

    def differing(other: Run) -> list[str]:
        return [key for key, fact in zip(keys, facts, strict=True) if show_fact(other.workload[key]) != fact]

    nearest = min(others, key=lambda other: len(differing(other)))
    there = Arm.CANDIDATE if arm is Arm.BASE else Arm.BASE
    pairs = (
        f"{key} {show_fact(run.workload[key])} in {arm}, {show_fact(nearest.workload[key])} in {there}"
        for key in differing(nearest)
    )
    return (
        f"different workloads are no comparison: {'; '.join(pairs)} ({run.source}, {nearest.source}); measure both arms alike"
    )


def show_fact(fact: str | float) -> str:
    """Write a fact so that 64 and 64.0 are the same."""
    return fact if isinstance(fact, str) else f"{fact:.12g}"


def find_repeats(runs: Sequence[Run]) -> None:
    """Raise InputError when the same measurement was given twice: it would pass for agreement."""
    seen: dict[tuple[object, ...], Run] = {}
    for run in runs:
        if len(run.values) < MIN_EQUAL_VALUES:
            continue
        key = (run.duration_s, *sorted(run.values.items()))
        if key in seen:
            raise InputError(f"{run.source}: the same run as {seen[key].source}; a run counts once, so leave one of them out")
        seen[key] = run
