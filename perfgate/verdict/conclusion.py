"""From a decision on numbers to the verdict that people read: every figure with its uncertainty, and what would reduce it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, expm1, log1p, sqrt
from statistics import variance

from perfgate.core import Arm, Better, Count, CountState, Judgement, Outcome, Verdict
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.stats.looks import CONFIDENCE, SeriesDecision, SeriesFinding
from perfgate.stats.moderated import Estimate
from perfgate.storage.rounding import format_count, format_percent
from perfgate.verdict.counters import count_blocks, explain_count
from perfgate.verdict.differences import describe_arms, software_differences
from perfgate.verdict.policy import CALIBRATED_BLOCKS, USUAL_RATIO, Design, Policy, can_judge_alone
from perfgate.verdict.recorded import MIN_SESSIONS
from perfgate.verdict.series import MetricSeries, read_blocks
from perfgate.verdict.states import describe_states
from perfgate.verdict.validity.admission import name_disturbed, name_saturated
from perfgate.verdict.validity.pairing import Flaw, group_starts

NOISY_RATIO = 2.0
"""A session whose windows scatter so many times as much as the stored ones is worth a word."""

MAX_LOG = 5.0
"""Effects beyond exp(5) are no effects but the absence of evidence."""

MAX_EXPONENT = 50.0
"""Beyond exp(50) two numbers have nothing to do with each other, and further on doubles end."""

MAX_LOSS = 1.0
"""Evidence that finds nothing below twice the time cannot size a loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What was concluded, from how many blocks, what they count, and what they tell of the machine."""

    outcome: Outcome
    judgements: tuple[Judgement, ...]
    reasons: tuple[str, ...]
    blocks: int = 0
    counts: tuple[Count, ...] = ()
    states: tuple[str, ...] = ()


def add_estimate(judgement: Judgement, found: Estimate, *, sign: float = 1.0, widest: float = MAX_LOG) -> Judgement:
    """Put an estimate of log badness into the reader's terms: the change with its bounds, signed as the metric is.

    There are none where the interval reaches as far as `widest`, and no p-value without degrees of freedom.
    """
    reach = found.reach(CONFIDENCE)
    ends = sorted(_change(sign * (found.mean + step)) for step in (-reach, reach)) if reach < widest else (None, None)
    return replace(
        judgement,
        change=_change(sign * found.mean),
        low=ends[0],
        high=ends[1],
        worse=found.mean,
        p_value=found.p_worse if found.df else None,
    )


def _change(log_ratio: float) -> float:
    return expm1(min(log_ratio, MAX_EXPONENT))


def explain_loss(subject: str, verb: str, judgement: Judgement, line: str) -> str:
    """Say of a metric or layer that failed how much it lost, and of `line`, as it is shown, that it fails from there."""
    return (
        f"{subject} is {verb} by {format_percent(abs(judgement.change or 0.0))}: it fails from {line}, where a loss is surely "
        "above zero and more than half its margin"
    )


def conclude_invalid(session: Session, policy: Policy, problems: tuple[str, ...]) -> Verdict:
    """Conclude INVALID, with the problems as reasons."""
    judgements = tuple(_describe_unjudged(metric, policy, Outcome.INVALID) for metric in policy.metrics)
    return _build(session, policy, Conclusion(outcome=Outcome.INVALID, judgements=judgements, reasons=problems))


def conclude(session: Session, policy: Policy, readings: Sequence[MetricSeries], decision: SeriesDecision) -> Verdict:
    """Say what the rule decided, or what is missing for a decision; a lost counter decides without it."""
    measured = len(readings[0].base) if readings else 0
    blocks = decision.look or measured
    counts = _read_counts(session, policy, blocks)
    is_lost = any(count.state is CountState.LOST for count in counts)
    outcome = Outcome.REGRESSION if is_lost else _settle(session, policy, decision.outcome)
    found = {
        reading.metric: _describe(reading, policy, decision.findings[index] if decision.look else None, blocks)
        for index, reading in enumerate(readings)
    }
    judgements = tuple(
        found.get(metric) or _describe_unjudged(metric, policy, Outcome.INCONCLUSIVE) for metric in policy.metrics
    )
    if outcome is Outcome.INCONCLUSIVE and policy.design is Design.ALONE:
        judgements = tuple(_withhold(judgement) for judgement in judgements)
    reasons = explain(outcome, policy, judgements, decision.look, measured)
    lost = tuple(explain_count(count) for count in counts if count.state is CountState.LOST)
    states = tuple(describe_states(session, policy, readings, blocks))
    return _build(
        session,
        policy,
        Conclusion(
            outcome=outcome, judgements=judgements, reasons=(*reasons, *lost), blocks=blocks, counts=counts, states=states
        ),
    )


def _read_counts(session: Session, policy: Policy, blocks: int) -> tuple[Count, ...]:
    """What the first `blocks` blocks count; nothing where there is no base to hold it against."""
    return count_blocks(read_blocks(session, policy)[:blocks], policy.scenario) if policy.design is Design.PAIRED else ()


def _settle(session: Session, policy: Policy, outcome: Outcome) -> Outcome:
    """A candidate alone may pass, but it fails only where no comparison with a base can be made."""
    if policy.design is Design.PAIRED:
        return outcome
    is_last_word = not session.has_base and policy.is_same_environment
    is_known = can_judge_alone(policy) and (outcome is not Outcome.REGRESSION or is_last_word)
    return outcome if is_known else Outcome.INCONCLUSIVE


def _withhold(judgement: Judgement) -> Judgement:
    return replace(judgement, outcome=Outcome.INCONCLUSIVE) if judgement.outcome is Outcome.REGRESSION else judgement


def _describe(reading: MetricSeries, policy: Policy, finding: SeriesFinding | None, blocks: int) -> Judgement:
    """Put one metric into the reader's terms: levels in its unit, changes signed as the metric is."""
    sign, estimate = METRICS[reading.metric].sign, reading.series.estimate(blocks)
    base, candidate = reading.average(blocks)
    outcome = finding.outcome if finding else Outcome.INCONCLUSIVE
    smallest = expm1(finding.smallest) if finding and finding.smallest <= log1p(MAX_LOSS) else None
    line = expm1(finding.line) if finding and finding.line <= log1p(MAX_LOSS) else None
    bound = estimate.mean + estimate.reach(policy.plan.confidence_look)
    phi = reading.series.phi[blocks - 1] if reading.series.phi else 1.0
    return replace(
        add_estimate(_describe_unjudged(reading.metric, policy, outcome), estimate, sign=sign),
        base=exp(sign * base),
        candidate=exp(sign * candidate),
        smallest_effect=smallest,
        fails_from=line,
        excluded=expm1(bound) if bound < MAX_LOG else None,
        notes=(*_note(reading.metric, policy, outcome, smallest, phi), *_note_guard(reading, blocks)),
    )


def _note(metric: str, policy: Policy, outcome: Outcome, smallest: float | None, phi: float) -> Iterator[str]:
    if metric in policy.not_gating:
        yield policy.not_gating[metric]
    elif outcome is Outcome.INCONCLUSIVE:
        yield f"{METRICS[metric].title}: this much evidence {_size(metric, smallest)}"
    # Where phi is 1, it is unknown how little the windows scattered.
    scatter = sqrt(USUAL_RATIO * phi)
    if phi > 1 and scatter >= NOISY_RATIO:
        yield f"{METRICS[metric].title}: windows scattered {scatter:.1f} times as much as stored ones: a wider interval"


def _note_guard(reading: MetricSeries, blocks: int) -> Iterator[str]:
    """Say why blocks that agree have a wide interval where nothing is stored."""
    series, found = reading.series, reading.series.differences[:blocks]
    if blocks > 1 and not series.prior.df and series.usual[blocks - 1] > NOISY_RATIO**2 * variance(found):
        title = METRICS[reading.metric].title
        yield f"{title}: blocks agree better than windows scatter, and no noise is stored: a wider interval"


def _size(metric: str, smallest: float | None) -> str:
    """Say what could have been found, in the sense of the table: 25 % more time is 20 % less throughput."""
    if smallest is None:
        return "cannot size a loss yet"
    return f"reliably finds no loss below {describe_loss(metric, smallest)} (9 times in 10)"


def _describe_unjudged(metric: str, policy: Policy, outcome: Outcome) -> Judgement:
    return Judgement(
        metric=metric,
        outcome=outcome,
        gating=metric not in policy.not_gating,
        margin_ratio=policy.scenario.margin_ratio(metric),
        band=find_band(metric, policy),
        notes=(policy.not_gating[metric],) if metric in policy.not_gating else (),
    )


def find_band(metric: str, policy: Policy) -> float | None:
    """The stored noise band of a metric for this design, as a positive ratio."""
    noise = policy.noise.get(metric)
    if noise is None:
        return None
    return noise.session_band if policy.design is Design.ALONE else noise.band


def explain(outcome: Outcome, policy: Policy, judgements: Sequence[Judgement], look: int, measured: int) -> tuple[str, ...]:
    """Say why the verdict is what it is and, where it is none, what would make it one."""
    gating = [judgement for judgement in judgements if judgement.gating]
    if outcome is Outcome.REGRESSION:
        return tuple(_explain_loss(judgement) for judgement in gating if judgement.outcome is Outcome.REGRESSION)
    if outcome is Outcome.INCONCLUSIVE:
        return _explain_inconclusive(policy, gating, look, measured)
    gains = [METRICS[judgement.metric].title for judgement in gating if judgement.outcome is Outcome.IMPROVED]
    looks = len(policy.plan.looks)
    over = f" over all {looks} looks" if looks > 1 else ""
    reason = (
        f"{len(gating)} gating metrics after {format_count(look, 'block')}: each excludes a loss of its margin, with "
        f"{format_percent(CONFIDENCE, 0)} confidence{over}"
    )
    return (reason, f"beyond half a margin better: {', '.join(gains)}") if gains else (reason,)


def _explain_loss(judgement: Judgement) -> str:
    """In the metric's own sense, as the table says it: throughput that halved is 50 % worse, a latency that doubled 100 %."""
    row = METRICS[judgement.metric]
    line = describe_loss(judgement.metric, judgement.fails_from or 0.0)
    return explain_loss(row.title, "worse", judgement, line)


def describe_loss(metric: str, ratio: float) -> str:
    """A loss without its sign in the metric's own sense: 25 % more time is 20 % less throughput."""
    return format_percent(ratio / (1 + ratio) if METRICS[metric].better is Better.HIGHER else ratio)


def _explain_inconclusive(policy: Policy, gating: Sequence[Judgement], look: int, measured: int) -> tuple[str, ...]:
    if policy.design is Design.ALONE:
        if not can_judge_alone(policy):
            return (f"a candidate alone needs {MIN_SESSIONS} stored sessions of each gating metric: measure A/B blocks",)
        return ("the candidate alone is not clearly within the stored band: measure A/B blocks",)
    open_metrics = ", ".join(
        METRICS[judgement.metric].title for judgement in gating if judgement.outcome is Outcome.INCONCLUSIVE
    )
    following = next((planned for planned in policy.plan.looks if planned > measured), None)
    if following is None:
        return (f"undecided after the last look, at {format_count(look, 'block')}: {open_metrics}",)
    more = f"{format_count(following - measured, 'block')} more to the next look"
    return (f"undecided after {format_count(measured, 'block')}: {open_metrics}; {more}",)


def _build(session: Session, policy: Policy, answer: Conclusion) -> Verdict:
    fingerprint = session.fingerprints.get(Arm.CANDIDATE) or session.fingerprints.get(Arm.BASE)
    return Verdict(
        outcome=answer.outcome,
        scenario=policy.scenario.name,
        hardware=fingerprint.facts.get("hardware", "unknown") if fingerprint else "unknown",
        judgements=answer.judgements,
        reasons=answer.reasons,
        warnings=(*_warn(session, policy), *answer.states),
        uncalibrated=policy.calibrated_blocks < CALIBRATED_BLOCKS,
        blocks=answer.blocks,
        windows=answer.blocks * policy.scenario.blocks.windows * policy.design,
        policy=policy.describe(),
        counts=answer.counts,
    )


def _warn(session: Session, policy: Policy) -> Iterator[str]:
    yield from policy.warnings
    yield from session.notes
    if not session.is_complete:
        yield "the session was cut off or is still running: whole blocks are judged"
    if len(session.fingerprints) == len(Arm):
        base, candidate = session.fingerprints[Arm.BASE], session.fingerprints[Arm.CANDIDATE]
        for difference in software_differences(base, candidate):
            yield f"the arms differ in {describe_arms(difference)}"
    for flaw in _list_replaced(session, policy):
        yield f"block {flaw.window.block}, {flaw.window.arm.value}: a window {flaw.description} and was measured again"
    yield from name_disturbed(session)
    yield from name_saturated(session)


def _list_replaced(session: Session, policy: Policy) -> list[Flaw]:
    """The windows whose places re-runs took, in the order of time."""
    replaced = (flaw for start in group_starts(session) for flaw in start.settle(policy.limits.rules).replaced)
    return sorted(replaced, key=lambda flaw: flaw.window.begun_s)
