"""How the served model used its experts, in words and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfgate.core import Arm
from perfgate.evidence import Session
from perfgate.report.table import Table
from perfgate.stats.expert_use import NOT_MEASURED, ExpertUse, LayerUse, Unknown, measure_rank_load
from perfgate.storage.rounding import format_count, format_percent

REASONS = {
    Unknown.NOT_MEASURED: "it was not measured",
    Unknown.ENGINE: "this engine cannot report it",
    Unknown.NO_RECORDER: "perfgate's plug-in did not run in the server; install perfgate in the server's Python",
    Unknown.NOT_SEEN: "no pass ran where it is seen; start SGLang with --disable-prefill-cuda-graph, vLLM with --enforce-eager",
    Unknown.INCOMPLETE: "the recorded passes are not those of the prompts that were sent",
    Unknown.PLACED: "its experts are placed by load, so that the recorded ids are places",
    Unknown.REFUSED: "the server refused the prompts that show its routing",
}
"""Why expert use is unknown; each completes "expert use unknown: "."""

HEADER = (
    "layer",
    "experts used",
    "effective experts",
    "distinct a step",
    "uniform a step",
    "max / mean load",
    "depends on the token",
    "own scatter",
    "differs from the layer before",
    "differs from the base",
)


def list_uses(session: Session) -> Mapping[Arm, ExpertUse]:
    """The expert use of each arm that was started, in the order of the arms."""
    arms = session.fingerprints.keys() | session.expert_use.keys()
    return {arm: session.expert_use.get(arm, NOT_MEASURED) for arm in Arm if arm in arms}


def describe_use(session: Session, ranks: int = 1) -> str:
    """Say in one clause what was measured in each arm, or why nothing is known; `ranks` share a layer's experts."""
    uses = list_uses(session)
    told = {arm: _describe(use, ranks) for arm, use in uses.items()}
    if len(set(told.values())) <= 1:
        return next(iter(told.values()), f"expert use unknown: {REASONS[Unknown.NOT_MEASURED]}")
    return "; ".join(f"{arm.value}: {text}" for arm, text in told.items())


def _describe(use: ExpertUse, ranks: int) -> str:
    if use.unknown is not None:
        return f"expert use unknown: {REASONS[use.unknown]}"
    first = use.layers[0]
    loads = [measure_rank_load(layer, ranks) for layer in use.layers] if ranks > 1 and first.experts % ranks == 0 else []
    busiest = f"; the busiest of {ranks} expert ranks has {_span(loads, 2)} times its share" if loads else ""
    return (
        f"a decode step of {format_count(use.tokens_a_step, 'token')} touches "
        f"{_span([layer.distinct_a_step for layer in use.layers])} of {first.experts} experts a layer "
        f"(uniform routing {first.uniform_a_step:.1f}); effective experts {_span([layer.effective for layer in use.layers])}"
        f"{busiest}"
    )


def _span(numbers: list[float], digits: int = 1) -> str:
    low, high = f"{min(numbers):.{digits}f}", f"{max(numbers):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def tabulate_use(use: ExpertUse) -> Table:
    """A row for each layer that routes."""
    return Table(header=HEADER, rows=[list(_row(layer)) for layer in use.layers])


def _row(layer: LayerUse) -> Iterator[str]:
    yield str(layer.layer)
    yield f"{layer.used} of {layer.experts}"
    yield from (f"{number:.1f}" for number in (layer.effective, layer.distinct_a_step, layer.uniform_a_step))
    yield from (f"{number:.2f}" for number in (layer.max_over_mean, layer.dependence))
    for ratio in (layer.own_scatter_ratio, layer.differs_from_before_ratio, layer.differs_from_base_ratio):
        yield "" if ratio is None else format_percent(ratio)
