"""Pictures as SVG files of their own: the same numbers give the same file, and a file is written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from perfgate.errors import EmptyMatrixError, InputError
from perfgate.metrics import METRICS
from perfgate.report.chart.curves import ACROSS, list_effects, list_keys, plot_effects, plot_servers, trace_servers
from perfgate.report.chart.letters import fold_text, measure_text
from perfgate.report.chart.svg import Drawing, LegendEntry
from perfgate.report.chart.templates import make_environment, read_style
from perfgate.storage.places import write_file
from perfgate.verdict.cells import CellResult
from perfgate.verdict.power import Curve, Study

SUFFIX = ".svg"
WIDTH = 820.0
EDGE = 14.0
TITLE_LINE, KEY_LINE = 24.0, 22.0
# Letters of the title and of the legend, in pixels; the template has the same sizes.
TITLE_SIZE, KEY_SIZE = 17.0, 13.0
# What the ticks and titles around a field take, in pixels.
LEFT, RIGHT, ABOVE, BELOW = 56.0, 16.0, 34.0, 46.0
# A sign of a legend with the gaps around it.
SIGN = 48.0


def save_curve_plot(cells: Sequence[CellResult], title: str, path: Path) -> None:
    """Draw the cells that have results, in the order of the file.

    Raise EmptyMatrixError where none has, and InputError for a name that is no SVG file's and a place that cannot be written.
    """
    points = trace_servers(cells)
    if not points:
        raise EmptyMatrixError(f"--picture {path}: no cell has a throughput and an ITL to draw; the table says why")
    x_title = f"{METRICS[ACROSS].title}, {METRICS[ACROSS].unit}"
    save_picture(path, title, plot_servers(points, WIDTH, x_title), list_keys(points))


def save_power_plot(study: Study, curves: Sequence[Curve], path: Path) -> None:
    """Draw what each look finds over its cost. Raise InputError for a name that is no SVG file's and an unwritable place."""
    title = f"{study.scenario.name}: what the gate can see ({study.baseline.windows} windows per start)"
    save_picture(path, title, plot_effects(curves, WIDTH), [line.key for line in list_effects(curves)])


def save_picture(path: Path, title: str, drawing: Drawing, keys: Iterable[LegendEntry] = ()) -> None:
    """Write `drawing` under its title and legend. Raise InputError for another suffix and for an unwritable place."""
    require_format(path)
    write_file(render_picture(title, drawing, keys), path, "--picture")


def require_format(path: Path) -> None:
    """Raise InputError for a name that is no SVG file's."""
    if path.suffix.lower() != SUFFIX:
        raise InputError(f"--picture {path}: the name must end in {SUFFIX}; a browser turns an SVG file into another format")


def render_picture(title: str, drawing: Drawing, keys: Iterable[LegendEntry] = ()) -> bytes:
    """The bytes of an SVG file, with its style within. Its colours are light, as a page that shows it may be light or dark."""
    lines = fold_text(title, drawing.width - 2 * EDGE, TITLE_SIZE)
    top = 10 + TITLE_LINE * len(lines)
    placed = list(_place_keys(keys, drawing.width, top))
    head = max((y + KEY_LINE for _, y, _ in placed), default=top)
    return (
        make_environment()
        .get_template("picture.svg.j2")
        .render(
            title=title,
            lines=[(EDGE, 10 + TITLE_LINE * (number + 0.7), line) for number, line in enumerate(lines)],
            keys=placed,
            head=head,
            height=head + drawing.height,
            drawing=drawing,
            style=read_style(),
        )
        .encode()
    )


def place_fields(count: int, columns: int, width: float, height: float) -> Iterator[tuple[float, float, float]]:
    """Left edge, right edge and top of each of `count` fields with axes, `columns` of them side by side, from left to right."""
    room = width / columns
    for number in range(count):
        row, column = divmod(number, columns)
        yield column * room + LEFT, (column + 1) * room - RIGHT, row * (ABOVE + height + BELOW) + ABOVE


def _place_keys(keys: Iterable[LegendEntry], width: float, top: float) -> Iterator[tuple[float, float, LegendEntry]]:
    """Side by side, in as many lines as they need."""
    x, y = EDGE, top
    for key in keys:
        room = SIGN + measure_text(key.text, KEY_SIZE)
        if x > EDGE and x + room > width:
            x, y = EDGE, y + KEY_LINE
        yield x, y, key
        x += room
