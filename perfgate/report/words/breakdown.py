"""Two profiled windows in words: which kernels the loss consists of, or that it lies outside of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfgate.core import Judgement, Outcome
from perfgate.evidence import LaunchShape
from perfgate.report.table import Table
from perfgate.report.words import wording
from perfgate.results.profiling.attribution import (
    Attribution,
    KernelDifference,
    LaunchDifference,
    list_ledger,
    list_recompiled,
    list_relaunched,
    shorten_name,
)
from perfgate.results.profiling.host_counts import SAME_RATIO
from perfgate.storage.rounding import format_percent

SLOWER_SHOWN, FASTER_SHOWN, LEDGER_SHOWN, LAYERS_SHOWN, RELAUNCHED_SHOWN = 8, 4, 8, 3, 4
# Names of C++ templates fill pages; what tells them apart stands at their beginning.
NAME_SHOWN = 72
STEP_METRICS = ("median_itl_ms", "mean_itl_ms", "mean_tpot_ms")
"""What a request waits for a token is what a decode step took, in the order in which it is believed."""

LITTLE, MOST, WHOLE, TOO_MUCH = 0.2, 0.8, 0.95, 1.25
"""Shares of the loss below which the parts explain little, above which they explain it, one part is all of it, and the profiled
steps were other steps than the measured ones: one small window of each arm has no finer resolution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """What a report shows of two profiles: where the loss is, how that is known, and a table where both could be read."""

    where: str
    sentences: tuple[str, ...]
    table: Table | None = None

    @property
    def sentence(self) -> str:
        """How it is known, as one line. A comment writes each sentence by itself, since it cuts what is long."""
        return " ".join(self.sentences)


def build_breakdown(found: Attribution | str | None, judgements: Sequence[Judgement] = ()) -> Breakdown | None:
    """Put an attribution into words; a reason why there is none is passed on, and None stays None."""
    if found is None:
        return None
    if isinstance(found, str):
        return Breakdown(where="", sentences=(f"The arms were profiled, but that cannot be read: {found}.",))
    change = wording.percent(found.candidate_us / found.base_us - 1) if found.base_us else wording.MISSING
    loss_us = find_loss(judgements)
    where = describe_where(found, loss_us)
    sums = (
        f"All {found.kind}s of one forward step take {found.base_us:,.1f} us in the base and "
        f"{found.candidate_us:,.1f} us in the candidate ({change}), by one small profiled window each: it tells where time "
        f"goes, not how sure that is. Waiting, launching and the network are in no row."
    )
    told = (where, sums, describe_layers(found), describe_ledger(found), describe_launches(found), describe_code(found))
    return Breakdown(where=where, sentences=tuple(filter(None, told)), table=tabulate_parts(found, loss_us))


def describe_layers(found: Attribution) -> str:
    """Say in which kinds of layer a step differs most, as a sentence; empty where no layers were told apart."""
    told = (
        f"{one.layer} {one.difference_us:+,.1f} us ({one.base_us:,.1f} to {one.candidate_us:,.1f})"
        for one in found.layers[:LAYERS_SHOWN]
    )
    return f"By layer, what differs most: {', '.join(told)}." if found.layers else ""


def describe_ledger(found: Attribution) -> str:
    """Say which kernels one arm calls more often, as a sentence; empty where calls were not summed up."""
    if not found.base_calls:
        return ""
    ledger = list_ledger(found)
    calls = f"{_count(found.base_calls)} calls a step in the base, {_count(found.candidate_calls)} in the candidate"
    if not ledger:
        return f"Both arms call the same {found.kind}s as often: {calls}.{_tell_alike(found)}"
    told = ", ".join(_tell_calls(part) for part in ledger[:LEDGER_SHOWN])
    more = f" and {len(ledger) - LEDGER_SHOWN} more" if len(ledger) > LEDGER_SHOWN else ""
    return f"Ledger, {calls}: {told}{more}; all others run as often."


def _tell_alike(found: Attribution) -> str:
    """Say that both arms launch the same kernels in the same way; nothing where they do not, or where traces do not tell."""
    if not found.has_launches or list_relaunched(found) or list_recompiled(found):
        return ""
    known = f"the machine code of {found.same_code} that Triton compiled" if found.same_code else ""
    told = " and ".join(filter(None, ("names, grids, registers and shared memory", known)))
    return f" Nothing on the device changed, as far as {told} tell{_tell_host(found)}."


def _tell_host(found: Attribution) -> str:
    """Say whether a step costs the host as much, as the end of a sentence; nothing where that was not counted."""
    if not found.host:
        return ""
    moved = [
        f"{one.part.replace('_', ' ')} {wording.percent(one.change)}" for one in found.host if abs(one.change) > SAME_RATIO
    ]
    if moved:
        return f"; on the host a decode step takes another number of instructions: {', '.join(moved)}"
    return f", nor on the host: a decode step takes as many instructions there, within {format_percent(SAME_RATIO, 0)}"


def describe_launches(found: Attribution) -> str:
    """Say which kernels run as often as before and are launched otherwise, as a sentence; empty where none is."""
    parts = list_relaunched(found)
    told = "; ".join(_tell_launch(part) for part in parts[:RELAUNCHED_SHOWN])
    more = f"; and {len(parts) - RELAUNCHED_SHOWN} more" if len(parts) > RELAUNCHED_SHOWN else ""
    return f"Launched otherwise, as often: {told}{more}." if parts else ""


def describe_code(found: Attribution) -> str:
    """Say which kernels were compiled to other machine code, as a sentence; empty where none is known to be."""
    parts = list_recompiled(found)
    told = ", ".join(wording.shorten(part.name, NAME_SHOWN) for part in parts[:RELAUNCHED_SHOWN])
    more = f" and {len(parts) - RELAUNCHED_SHOWN} more" if len(parts) > RELAUNCHED_SHOWN else ""
    return f"Other machine code: {told}{more}; the same in {found.same_code} that Triton compiled." if parts else ""


def _tell_launch(part: KernelDifference) -> str:
    """One kernel: "moe, 24 a step: grid 360 to 180, registers 16 to 31", by the launch that each arm has most more of."""
    less, more = part.launches[0], part.launches[-1]
    name = wording.shorten(part.name, NAME_SHOWN)
    if less.more > 0 or more.more < 0:
        return f"{name} {more.more if less.more > 0 else less.more:+.1f} a step with {_write_shape(more)}"
    pairs = zip(_list_sides(less.shape), _list_sides(more.shape), strict=True)
    told = ", ".join(f"{what} {one} to {other}" for (what, one), (_, other) in pairs if one != other)
    return f"{name}, {_count(more.more)} a step: {told}"


def _write_shape(one: LaunchDifference) -> str:
    return ", ".join(f"{what} {size}" for what, size in _list_sides(one.shape))


def _list_sides(shape: LaunchShape) -> tuple[tuple[str, str], ...]:
    """What a launch takes, in words; sides of one stand only before larger ones."""
    grid, block = ("x".join(map(str, sides)).removesuffix("x1").removesuffix("x1") for sides in (shape.grid, shape.block))
    return ("grid", grid), ("block", block), ("registers", str(shape.registers)), ("shared bytes", f"{shape.shared_bytes:,}")


def _tell_calls(part: KernelDifference) -> str:
    """One line of the ledger: "+24.8 spin (new)"."""
    news = " (new)" if not part.base_count else " (gone)" if not part.candidate_count else ""
    return f"{part.candidate_count - part.base_count:+.1f} {wording.shorten(part.name, NAME_SHOWN)}{news}"


def find_loss(judgements: Sequence[Judgement]) -> float | None:
    """Microseconds that a decode step became slower by; None where no step got slower or none was measured."""
    found = {one.metric: one for one in judgements if one.base is not None and one.candidate is not None}
    for metric in STEP_METRICS:
        if metric in found:
            one = found[metric]
            loss_us = ((one.candidate or 0.0) - (one.base or 0.0)) * 1000
            return loss_us if loss_us > 0 and one.outcome is not Outcome.PASS else None
    return None


def describe_where(found: Attribution, loss_us: float | None) -> str:
    """Say which part got slower, and how much of the loss all of them are."""
    slower = [part for part in found.parts if part.difference_us > 0]
    total_us = found.candidate_us - found.base_us
    is_new = bool(slower) and not slower[0].base_us
    first = f"{shorten_name(slower[0].name)}{' (new)' * is_new} {slower[0].difference_us:+,.1f} us a step" if slower else ""
    if loss_us is None:
        return f"{first} is the {found.kind} that got slower most." if first else f"No {found.kind} got slower."
    share = total_us / loss_us
    if total_us <= 0:
        return (
            f"{found.kind.capitalize()}s explain nothing of the loss: together they took {-total_us:,.1f} us less, and a step "
            f"{loss_us:+,.1f} us: look at the host, the scheduler and communication."
        )
    if share < LITTLE:
        return (
            f"{found.kind.capitalize()}s explain next to nothing of the loss ({total_us:+,.1f} of {loss_us:+,.1f} us a step): "
            "look at the host, the scheduler and communication."
        )
    if share > TOO_MUCH:
        return (
            f"{first}; all {found.kind}s took {total_us:+,.1f} us more in the profiled step, the loss is {loss_us:+,.1f} us a "
            "step: they do not add up to it."
        )
    rest = "" if share >= MOST else "; the rest is outside of them: the host, the scheduler, communication"
    part = slower[0].difference_us / loss_us
    much = "all" if part >= WHOLE else format_percent(part, 0)
    return f"{first}, {much} of the loss of {loss_us:,.1f} us; all {found.kind}s together {total_us:+,.1f} us{rest}."


def tabulate_parts(found: Attribution, loss_us: float | None = None) -> Table:
    """Those that got slower first, then those that got faster, and a last row for what is left of the sum."""
    header = (found.kind, "base us", "candidate us", "difference us", "of the loss", "calls a step")
    shown = list_shown(found.parts)
    rows = [_row(part, loss_us) for part in shown]
    base_us = found.base_us - sum(part.base_us for part in shown)
    candidate_us = found.candidate_us - sum(part.candidate_us for part in shown)
    if len(found.parts) > len(shown) or max(base_us, candidate_us) > 0.05:
        rows.append(("all others", *_times(base_us, candidate_us, loss_us), ""))
    rows.append(("sum", *_times(found.base_us, found.candidate_us, loss_us), ""))
    return Table(header=header, rows=rows)


def list_shown(parts: Sequence[KernelDifference]) -> list[KernelDifference]:
    """The parts that a reader sees: what got slower most, then what got faster most."""
    slower = [part for part in parts if part.difference_us > 0]
    faster = [part for part in parts if part.difference_us <= 0]
    return [*slower[:SLOWER_SHOWN], *faster[:FASTER_SHOWN]]


def _row(part: KernelDifference, loss_us: float | None) -> tuple[str, ...]:
    calls = _count(part.base_count)
    if part.base_count != part.candidate_count:
        calls += f" -> {_count(part.candidate_count)}"
    return (
        wording.shorten(part.name.removeprefix("void "), NAME_SHOWN),
        *_times(part.base_us, part.candidate_us, loss_us),
        calls,
    )


def _times(base_us: float, candidate_us: float, loss_us: float | None) -> tuple[str, ...]:
    more = candidate_us - base_us
    share = wording.MISSING if loss_us is None else format_percent(more / loss_us, 0, is_signed=True)
    return f"{base_us:,.1f}", f"{candidate_us:,.1f}", f"{more:+,.1f}", share


def _count(calls: float) -> str:
    """Whole numbers where calls are many or come out even, else one decimal."""
    return f"{calls:,.0f}" if calls >= 100 or calls.is_integer() else f"{calls:.1f}"
