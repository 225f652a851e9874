"""The verdict on MoE layers, by the rule of serving: paired differences per block, looks fixed before, Holm over all layers.

Pure, as `perfgate.check` is. A block is one process, with base and candidate timed by turns in it. No noise is stored: a
control of the base against itself stands in every block, and evidence whose control moved is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, expm1, log, log1p
from statistics import fmean, median

from perfgate.core import Judgement, Outcome, Verdict
from perfgate.evidence import Layer, LayerBlock, LayerSamples
from perfgate.stats.looks import LookPlan, Series, SeriesDecision, SeriesFinding, decide
from perfgate.storage.rounding import DECIMALS, format_percent
from perfgate.verdict.conclusion import MAX_LOG, Conclusion, add_estimate, explain_loss
from perfgate.verdict.policy import describe_plan
from perfgate_moe.proof.values import KernelProof, TimedBlock, TimedLayer

MARGIN_RATIO = 0.02
"""What a layer may lose: twice what one power-capped card moved between two timings of the same kernel."""

LOOKS = (4, 8)
"""Without stored noise, the family of some twenty layers needs degrees of freedom more than it needs early looks."""

ALPHA = 0.01
SIDES = ("base", "candidate")


def judge_layers(blocks: Sequence[LayerBlock], *, scenarios_in_pr: int = 1) -> Verdict:
    """Judge layers from blocks in the order in which they were measured."""
    plan = LookPlan(alpha=ALPHA, looks=LOOKS, scenarios=scenarios_in_pr)
    problems = tuple(_find_problems(blocks))
    if problems:
        names = sorted({name for block in blocks for name in block.layers})
        judgements = tuple(_describe_unjudged(name, Outcome.INVALID) for name in names)
        return _build(blocks, plan, Conclusion(outcome=Outcome.INVALID, judgements=judgements, reasons=problems))

    names = list(blocks[0].layers)
    differences = (tuple(difference(block.layers[name]) for block in blocks) for name in names)
    series = [Series(differences=found, margin_log=log1p(MARGIN_RATIO)) for found in differences]
    decision = decide(series, plan)

    used = decision.look or len(blocks)
    findings = decision.findings or (None,) * len(names)
    judgements = tuple(
        _describe(name, blocks[:used], one, finding) for name, one, finding in zip(names, series, findings, strict=True)
    )
    reasons = tuple(_explain(decision, judgements, len(blocks)))
    return _build(blocks, plan, Conclusion(outcome=decision.outcome, judgements=judgements, reasons=reasons, blocks=used))


def judge_times(proof: KernelProof | None, *, scenarios_in_pr: int = 1) -> Verdict | None:
    """Judge what the layers of both arms took before a session; None where they were not timed."""
    if proof is None or not proof.times:
        return None
    blocks = [_as_block(number, found) for number, found in enumerate(proof.times, 1)]
    return judge_layers(blocks, scenarios_in_pr=scenarios_in_pr)


def _as_block(number: int, found: TimedBlock) -> LayerBlock:
    layers = map(_as_layer, found.layers)
    facts = dict(zip(SIDES, SIDES, strict=True))
    return LayerBlock(
        source=f"block {number}", digest=repr(found), begun="", facts=facts, layers={layer.name: layer for layer in layers}
    )


def _as_layer(found: TimedLayer) -> Layer:
    samples = LayerSamples(base=found.base, again=found.again, candidate=found.candidate)
    return Layer(format=1, shape=found.shape, tokens=found.tokens, samples_us=samples)


def difference(layer: Layer) -> float:
    """Median over rounds of log(candidate / base): positive means slower; a drift during the process moves both sides alike."""
    return _compare(layer.samples_us.base, layer.samples_us.candidate)


def control(layer: Layer) -> float:
    """The same of the base against itself."""
    return _compare(layer.samples_us.base, layer.samples_us.again)


def _compare(base: Sequence[float], other: Sequence[float]) -> float:
    return round(median(log(after / before) for before, after in zip(base, other, strict=True)), DECIMALS)


def _find_problems(blocks: Sequence[LayerBlock]) -> Iterator[str]:
    """Why these blocks cannot be judged together, or at all."""
    first = blocks[0]
    for block in blocks[1:]:
        changed = sorted(
            name for name in first.facts.keys() | block.facts.keys() if first.facts.get(name) != block.facts.get(name)
        )
        if changed:
            yield f"{block.source} differs from {first.source} in {', '.join(changed)}: measure all blocks alike"
        if missing := sorted(first.layers.keys() ^ block.layers.keys()):
            yield f"{block.source} and {first.source} do not hold the same layers ({', '.join(missing)}): measure all in each"
    digests = [block.digest for block in blocks]
    yield from (f"{block.source} is a copy of another block" for i, block in enumerate(blocks) if block.digest in digests[:i])
    if not first.layers:
        yield f"{first.source} holds no layer"
    for name in first.layers:
        moved = fmean(control(block.layers[name]) for block in blocks if name in block.layers)
        if abs(moved) > log1p(MARGIN_RATIO) / 2:
            size = format_percent(expm1(moved), is_signed=True)
            yield f"{name}: the base against itself moved by {size}: quiet the machine and measure again"


def _describe(name: str, blocks: Sequence[LayerBlock], series: Series, finding: SeriesFinding | None) -> Judgement:
    levels = {side: exp(fmean(log(median(getattr(block.layers[name].samples_us, side))) for block in blocks)) for side in SIDES}
    outcome = finding.outcome if finding else Outcome.INCONCLUSIVE
    judgement = add_estimate(_describe_unjudged(name, outcome), series.estimate(len(blocks)))
    line = expm1(finding.line) if finding and finding.line < MAX_LOG else None
    return replace(judgement, base=levels["base"], candidate=levels["candidate"], fails_from=line)


def _describe_unjudged(name: str, outcome: Outcome) -> Judgement:
    return Judgement(metric=name, outcome=outcome, gating=True, margin_ratio=MARGIN_RATIO)


def _explain(decision: SeriesDecision, judgements: Sequence[Judgement], measured: int) -> Iterator[str]:
    if decision.outcome is Outcome.REGRESSION:
        for judgement in judgements:
            if judgement.outcome is Outcome.REGRESSION:
                line = format_percent(judgement.fails_from or 0.0)
                yield explain_loss(judgement.metric, "slower", judgement, line)
    elif decision.outcome is Outcome.INCONCLUSIVE:
        yield _explain_undecided(judgements, measured)
    else:
        bound = format_percent(MARGIN_RATIO, 0)
        yield f"{len(judgements)} layers after {decision.look} blocks: a loss beyond {bound} is unlikely for each"
        if gains := [judgement.metric for judgement in judgements if judgement.outcome is Outcome.IMPROVED]:
            yield f"beyond half a margin faster: {', '.join(gains)}"


def _explain_undecided(judgements: Sequence[Judgement], measured: int) -> str:
    following = next((look for look in LOOKS if look > measured), None)
    undecided = ", ".join(judgement.metric for judgement in judgements if judgement.outcome is Outcome.INCONCLUSIVE)
    more = "that was the last look" if following is None else f"{following - measured} more to the next look"
    return f"undecided after {measured} blocks: {undecided}; {more}"


def _build(blocks: Sequence[LayerBlock], plan: LookPlan, answer: Conclusion) -> Verdict:
    facts = blocks[0].facts
    rounds = sum(len(layer.samples_us.base) for block in blocks[: answer.blocks] for layer in block.layers.values())
    return Verdict(
        outcome=answer.outcome,
        scenario=f"MoE layers, {facts.get('candidate', 'unknown')} against {facts.get('base', 'unknown')}",
        hardware=facts.get("device", "unknown"),
        judgements=answer.judgements,
        reasons=answer.reasons,
        warnings=(),
        uncalibrated=False,
        blocks=answer.blocks,
        windows=len(SIDES) * rounds,
        policy={
            **describe_plan(plan),
            "margin": MARGIN_RATIO,
            **{name: str(value) for name, value in facts.items()},
        },
    )
