"""How the arms were started: which server arguments, variables and facts differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import join

from perfgate.core import Arm
from perfgate.report import wording
from perfgate.report.chart.letters import measure_text, shorten_text
from perfgate.report.chart.svg import Drawing, Figure, Scale, SvgElement, box, line, make_figure, write_label
from perfgate.report.table import Table
from perfgate.results.attribution import Attribution, KernelDifference
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


SHOWN = 8
ROW, ABOVE, BELOW = 42.0, 26.0, 12.0
# Letters of names and labels, in pixels; the page's style sheet has the same size.
SIZE = 12.0
EDGE, GAP = 8.0, 6.0


def draw_attribution(found: Attribution) -> Figure | None:
    """The parts that differ most; None where nothing does."""
    parts = [part for part in found.parts[:SHOWN] if part.share]
    if not parts:
        return None
    return make_figure(
        "attribution",
        "What the difference consists of",
        f"Microseconds per forward step that each {found.kind} takes more (to the right) or less in the candidate.",
        lambda width: _draw(parts, width),
    )


def _draw(parts: Sequence[KernelDifference], width: float) -> Drawing:
    low = min(0.0, *(part.difference_us for part in parts))
    high = max(0.0, *(part.difference_us for part in parts))
    left = EDGE + _find_room(part for part in parts if part.difference_us <= 0)
    right = width - EDGE - _find_room(part for part in parts if part.difference_us > 0)
    x = Scale(low=low, high=high if high > low else low + 1, start=left, end=right)
    height = ABOVE + ROW * len(parts)
    zero = line((x.place(0), ABOVE - 8), (x.place(0), height - 6), "zero")
    rows = (shape for number, part in enumerate(parts) for shape in _draw_part(part, x, ABOVE + number * ROW, width))
    return Drawing(width=width, height=height + BELOW, shapes=(zero, *rows))


def _find_room(parts: Iterable[KernelDifference]) -> float:
    """What the longest label beside these bars takes, in pixels: a bar may reach to the edge of the scale."""
    return max((GAP + measure_text(_describe(part), SIZE) for part in parts), default=0.0)


def _describe(part: KernelDifference) -> str:
    return f"{part.difference_us:+,.1f} us ({format_percent(abs(part.share), 0)})"


def _draw_part(part: KernelDifference, x: Scale, top: float, width: float) -> Iterator[SvgElement]:
    more = part.difference_us
    zero, end = x.place(0), x.place(more)
    yield write_label(EDGE, top + 4, shorten_text(part.name, width - 2 * EDGE, SIZE), "tick strong")
    style = "slower" if more > 0 else "faster"
    hint = f"{part.name}: {part.base_us:,.1f} us in the base, {part.candidate_us:,.1f} us in the candidate"
    yield box((zero, top + 11), (max(end, zero + 1) if more > 0 else min(end, zero - 1), top + 27), f"mark {style}", hint=hint)
    yield write_label(end + GAP if more > 0 else end - GAP, top + 23, _describe(part), "tick", "start" if more > 0 else "end")
