"""How the arms were started: which server arguments, variables and facts differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import join

from perfgate.core import Arm
from perfgate.report.chart.letters import measure_text, shorten_text
from perfgate.report.chart.svg import NARROW, Drawing, Figure, Scale, SvgElement, box, line, make_figure, write_label
from perfgate.report.table import Table
from perfgate.report.words import wording
from perfgate.report.words.breakdown import LITTLE, list_shown
from perfgate.results.profiling.attribution import Attribution, KernelDifference, shorten_name
from perfgate.results.records import SessionRecord
from perfgate.storage.rounding import format_percent

ABSENT = "not set"
PROGRAM = "program"


def group_arguments(argv: Sequence[str]) -> dict[str, str]:
    """A command line by option: each with all that follows it, what stands before the first as the program."""
    grouped: dict[str, list[str]] = {}
    current = PROGRAM
    for word in argv:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            current = name
            grouped.setdefault(current, []).extend([value] if equals else [])
        else:
            grouped.setdefault(current, []).append(word)
    return {name: join(words) if words else "on" for name, words in grouped.items()}


def tabulate_differences(record: SessionRecord) -> Table:
    """Everything in which the arms were started differently, a row each; an arm alone differs from nothing."""
    rows = [row for row in _compare(record) if len(set(row[1:])) > 1]
    return Table(header=("what", *(arm.value for arm in record.arms)), rows=rows)


def tabulate_arguments(record: SessionRecord) -> Table:
    """Every server argument and variable of both arms, those that they inherited alike included."""
    return Table(header=("what", *(arm.value for arm in record.arms)), rows=list(_compare_settings(record)))


def _compare(record: SessionRecord) -> Iterator[tuple[str, ...]]:
    yield from _compare_settings(record)
    yield from _align("", {arm: found.facts for arm, found in record.arms.items()}, wording.MISSING)


def _compare_settings(record: SessionRecord) -> Iterator[tuple[str, ...]]:
    inherited = {name: f"{value} (inherited)" for name, value in (record.inherited or {}).items()}
    yield from _align("", {arm: group_arguments(found.argv) for arm, found in record.arms.items()}, ABSENT)
    yield from _align("variable ", {arm: {**inherited, **found.env} for arm, found in record.arms.items()}, ABSENT)


def _align(kind: str, arms: Mapping[Arm, Mapping[str, str]], absent: str) -> Iterator[tuple[str, ...]]:
    for name in dict.fromkeys(name for facts in arms.values() for name in facts):
        yield (f"{kind}{name}", *(facts.get(name, absent) for facts in arms.values()))


ROW, ABOVE, BELOW = 42.0, 26.0, 12.0
# Letters of names and labels, in pixels; the page's style sheet has the same size.
SIZE = 12.0
EDGE, GAP = 8.0, 6.0


def draw_attribution(found: Attribution, loss_us: float | None = None) -> Figure | None:
    """The parts that differ most, slower ones first; None where nothing does, or where they explain nothing of the loss."""
    parts = [part for part in list_shown(found.parts) if part.difference_us]
    if not parts or (loss_us is not None and (found.candidate_us - found.base_us) / loss_us < LITTLE):
        return None
    return make_figure(
        "attribution",
        f"{found.kind.capitalize()}s that got slower, then those that got faster",
        f"Microseconds per forward step that each {found.kind} takes more (to the right) or less in the candidate"
        + (", and its share of the loss." if loss_us else "."),
        lambda width: _draw(parts, width, loss_us),
    )


def _draw(parts: Sequence[KernelDifference], width: float, loss_us: float | None) -> Drawing:
    low = min(0.0, *(part.difference_us for part in parts))
    high = max(0.0, *(part.difference_us for part in parts))
    left = EDGE + _find_room((part for part in parts if part.difference_us <= 0), loss_us)
    right = width - EDGE - _find_room((part for part in parts if part.difference_us > 0), loss_us)
    x = Scale(low=low, high=high if high > low else low + 1, start=left, end=right)
    height = ABOVE + ROW * len(parts)
    rows = (shape for number, part in enumerate(parts) for shape in _draw_part(part, x, ABOVE + number * ROW, loss_us))
    return Drawing(width=width, height=height + BELOW, shapes=tuple(rows))


def _find_room(parts: Iterable[KernelDifference], loss_us: float | None) -> float:
    """What the longest label beside these bars takes, in pixels: a bar may reach to the edge of the scale."""
    return max((GAP + measure_text(_describe(part, loss_us), SIZE) for part in parts), default=0.0)


def _describe(part: KernelDifference, loss_us: float | None) -> str:
    share = "" if loss_us is None else f" ({format_percent(part.difference_us / loss_us, 0)})"
    return f"{part.difference_us:+,.1f} us{share}"


def _draw_part(part: KernelDifference, x: Scale, top: float, loss_us: float | None) -> Iterator[SvgElement]:
    more = part.difference_us
    zero, end = x.place(0), x.place(more)
    yield write_label(EDGE, top + 4, shorten_text(shorten_name(part.name), NARROW - 2 * EDGE, SIZE), "tick strong")
    style = "slower" if more > 0 else "faster"
    hint = f"{part.name}: {part.base_us:,.1f} us in the base, {part.candidate_us:,.1f} us in the candidate"
    yield box((zero, top + 11), (max(end, zero + 1) if more > 0 else min(end, zero - 1), top + 27), f"mark {style}", hint=hint)
    # Only as high as the bar: through names it would strike letters out.
    yield line((zero, top + 8), (zero, top + 30), "zero")
    label = _describe(part, loss_us)
    yield write_label(end + GAP if more > 0 else end - GAP, top + 23, label, "tick", "start" if more > 0 else "end")
