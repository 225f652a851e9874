"""Two profiled windows in words: which kernels the difference between the arms consists of."""

from __future__ import annotations

from dataclasses import dataclass

from perfgate.report import wording
from perfgate.report.table import Table
from perfgate.results.attribution import Attribution, KernelDifference
from perfgate.storage.rounding import format_percent

ROWS_SHOWN = 12
# Names of C++ templates fill pages; what tells them apart stands at their beginning.
NAME_SHOWN = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """What a report shows of two profiles: one sentence, and a table where both could be read."""

    sentence: str
    table: Table | None = None


def build_breakdown(found: Attribution | str | None) -> Breakdown | None:
    """Put an attribution into words; a reason why there is none is passed on, and None stays None."""
    if found is None:
        return None
    if isinstance(found, str):
        return Breakdown(sentence=f"The arms were profiled, but that cannot be read: {found}.")
    change = wording.percent(found.candidate_us / found.base_us - 1) if found.base_us else wording.MISSING
    sentence = (
        f"All {found.kind}s of one forward step take {found.base_us:,.1f} us in the base and {found.candidate_us:,.1f} us in "
        f"the candidate ({change}), by one small profiled window each: it tells where time goes, not how sure that is. Ranked "
        f"by share of the difference; time outside of {found.kind}s (waiting, launching, the network) is not in this table."
    )
    return Breakdown(sentence=sentence, table=tabulate_parts(found))


def tabulate_parts(found: Attribution) -> Table:
    """The parts that the difference consists of, the largest first; those that did not change come last."""
    header = (found.kind, "base us", "candidate us", "difference us", "share", "calls a step")
    rows = [_row(part) for part in found.parts[:ROWS_SHOWN]]
    left = found.parts[ROWS_SHOWN:]
    if left:
        base, candidate = sum(part.base_us for part in left), sum(part.candidate_us for part in left)
        share = sum(abs(part.share) for part in left)
        rest = (f"{base:,.1f}", f"{candidate:,.1f}", f"{candidate - base:+,.1f}", format_percent(share, 0), "")
        rows.append((f"{len(left)} others", *rest))
    return Table(header=header, rows=rows)


def _row(part: KernelDifference) -> tuple[str, ...]:
    name = part.name if len(part.name) <= NAME_SHOWN else part.name[: NAME_SHOWN - 3] + "..."
    calls = _count(part.base_count)
    if part.base_count != part.candidate_count:
        calls += f" -> {_count(part.candidate_count)}"
    times = (f"{part.base_us:,.1f}", f"{part.candidate_us:,.1f}", f"{part.difference_us:+,.1f}")
    return (name, *times, format_percent(part.share, 0, is_signed=True), calls)


def _count(calls: float) -> str:
    """Whole numbers where calls are many or come out even, else one decimal."""
    return f"{calls:,.0f}" if calls >= 100 or calls.is_integer() else f"{calls:.1f}"
