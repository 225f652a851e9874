"""Compare load generator runs of two arms, as they lie around in files: benchstat for bench_serving.

Such files do not say which runs share a server start, so this is weaker evidence than a session of blocks, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from perfgate.core import Arm, Judgement, Outcome, Run, combine_outcomes
from perfgate.results.words import describe_remark
from perfgate.verdict.runs.compare_metrics import MIN_RUNS, ArmRuns, Rule, judge_metrics
from perfgate.verdict.runs.workloads import Facts, find_groups, find_repeats, find_slow, order_runs, split_cold

# Arms that generated different amounts did different work.
OUTPUT_TOLERANCE = 0.01

ONE_START = (
    "one server start can make all of its runs faster or slower, and files do not show that: the intervals hold only if starts"
    " differ no more than runs do; `perfgate run` measures over fresh starts"
)
PLANNED_SPREAD = (
    "no stored noise was given: how many more runs it takes is computed from the spread of these runs, taken so large that the"
    " true spread exceeds it in one case of five only"
)
ONE_BLOCK = (
    "the runs of an arm are taken for one server start, and the stored noise for this machine's and this workload's; neither"
    " can be read off these files"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The comparison of one workload.

    `further` says for each undecided metric how many more runs an arm would settle it, None for more than `PLAN_LIMIT`;
    with stored noise it counts server starts instead. A metric whose spread is unknown is not in it.
    """

    workload: Facts
    arms: Mapping[Arm, ArmRuns]
    judgements: tuple[Judgement, ...]
    further: Mapping[str, int | None]
    outcome: Outcome
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    has_stored_noise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sets of files compared, one group a workload."""

    outcome: Outcome
    groups: tuple[Group, ...]
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def compare_runs(base: Sequence[Run], candidate: Sequence[Run], rule: Rule) -> Comparison:
    """Compare two arms. Raise WorkloadMismatchError when they did different work, InputError for a run given twice.

    A run that cannot be trusted voids the comparison: leaving it out would be a choice made after looking.
    """
    arms = {Arm.BASE: order_runs(base), Arm.CANDIDATE: order_runs(candidate)}
    find_repeats([run for runs in arms.values() for run in runs])
    broken = [
        f"{arm} {run.source}: {describe_remark(problem)}"
        for arm, runs in arms.items()
        for run in runs
        for problem in run.problems
    ]
    if broken:
        return Comparison(outcome=Outcome.INVALID, groups=(), reasons=tuple(broken))
    workloads, unchecked = find_groups(arms)
    groups = tuple(_compare_group(facts, members, rule) for facts, members in workloads)
    noted = [f"{run.source}: {describe_remark(note)}" for runs in arms.values() for run in runs for note in run.notes]
    outcome = combine_outcomes(group.outcome for group in groups)
    return Comparison(outcome=outcome, groups=groups, warnings=(*unchecked, *noted))


def _compare_group(workload: Facts, members: Mapping[Arm, Sequence[Run]], rule: Rule) -> Group:
    arms = {}
    for arm, runs in members.items():
        cold, kept = split_cold(runs)
        arms[arm] = ArmRuns(kept=kept, cold=cold)
    if void := _find_different_output(arms):
        return Group(
            workload=workload, arms=arms, judgements=(), further={}, outcome=Outcome.INVALID, reasons=(void,), warnings=()
        )
    judged = judge_metrics(workload, arms, rule)
    judgements = tuple(judgement for judgement, _ in judged)
    gating = [judgement.outcome for judgement in judgements if judgement.gating]
    return Group(
        workload=workload,
        arms=arms,
        judgements=judgements,
        further={
            judgement.metric: runs
            for judgement, runs in judged
            if judgement.outcome is Outcome.INCONCLUSIVE and (_has_spread(arms) or judgement.metric in rule.priors)
        },
        outcome=combine_outcomes(gating),
        reasons=_explain(arms, gating),
        warnings=_find_warnings(arms, rule),
        has_stored_noise=bool(rule.priors),
    )


def _find_different_output(arms: Mapping[Arm, ArmRuns]) -> str | None:
    """Name the output tokens of both arms when they differ by more than the tolerance."""
    tokens = {arm: [run.output_tokens for run in runs.kept if run.output_tokens] for arm, runs in arms.items()}
    base, candidate = (median(tokens[arm]) if tokens[arm] else 0 for arm in (Arm.BASE, Arm.CANDIDATE))
    if abs(candidate - base) <= OUTPUT_TOLERANCE * max(base, candidate):
        return None
    return (
        f"output tokens differ: {base:g} in base, {candidate:g} in candidate; fix the output length (ignore EOS), measure again"
    )


def _explain(arms: Mapping[Arm, ArmRuns], gating: Sequence[Outcome]) -> tuple[str, ...]:
    fewest = min(len(runs.kept) for runs in arms.values())
    runs = "1 warm run" if fewest == 1 else f"{fewest} warm runs"
    few = (f"not enough data: {runs} per arm, at least {MIN_RUNS} are needed",) if fewest < MIN_RUNS else ()
    return few if gating else (*few, "no metric of these runs may gate; the notes say why")


def _find_warnings(arms: Mapping[Arm, ArmRuns], rule: Rule) -> tuple[str, ...]:
    found = [
        f"{slow.run.source} ({arm}) is slow at {slow.figures} and was kept: only leading runs before two others are dropped"
        for arm, runs in arms.items()
        for slow in find_slow(runs.kept)
    ]
    assumed = (ONE_BLOCK,) if rule.priors else (ONE_START, PLANNED_SPREAD) if _has_spread(arms) else (ONE_START,)
    return (*found, *rule.caveats, *assumed)


def _has_spread(arms: Mapping[Arm, ArmRuns]) -> bool:
    """Whether any arm has two runs, whose difference tells how far runs scatter."""
    return any(len(runs.kept) > 1 for runs in arms.values())
