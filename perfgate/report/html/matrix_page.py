"""The page of a matrix: levels of every server under every load, how far its rounds lie apart, and no verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from perfgate.metrics import METRICS
from perfgate.report.cells import AHEAD, NOT_APART, SPREAD, remark, tabulate_best, tabulate_cells
from perfgate.report.chart.curves import draw_servers
from perfgate.report.chart.svg import (
    OUTLINES,
    Drawing,
    Figure,
    LegendEntry,
    Panel,
    Scale,
    SvgElement,
    dot,
    find_span,
    line,
    make_figure,
    write_label,
)
from perfgate.report.html.files import RawData
from perfgate.report.html.page import (
    Commands,
    Disclosure,
    Links,
    Page,
    PagePart,
    PageSection,
    Paragraph,
    Picture,
    Sheet,
    SheetCell,
    drop_empty,
    make_sheet,
)
from perfgate.report.html.session_page import RAW_DATA
from perfgate.report.table import Table
from perfgate.scenario.matrix import Matrix
from perfgate.storage.rounding import format_count, format_percent
from perfgate.verdict.cells import CellResult

ROW, ABOVE, BELOW = 34.0, 24.0, 46.0


def build_matrix_page(matrix: Matrix, cells: Sequence[CellResult], raw: RawData) -> Page:
    """Put the results of a matrix into a page."""
    best = tabulate_best(cells)
    levels = tuple(_describe_levels(cells, best))
    windows = tuple(_describe_windows(cells, raw))
    sections = (
        PageSection(name="levels", title="Levels", parts=levels),
        PageSection(name="windows", title="Windows", parts=windows),
        PageSection(name="reproduce", title="Reproduce", parts=tuple(_describe_reproduction(raw))),
    )
    sound = sum(not cell.problems for cell in cells)
    return Page(
        title=f"Matrix {matrix.name}",
        answer="Matrix",
        style="none",
        meaning=_summarise(matrix, best),
        subtitle=f"{matrix.name}: {matrix.title}",
        hero=draw_servers(cells),
        labels=tuple(_name_best(best)),
        facts=(
            ("Model", f"{matrix.model.path}, {matrix.model.architecture}"),
            ("Cells without a problem", f"{sound} of {len(cells)}"),
            (
                "Rounds",
                f"{matrix.rounds}, each with a fresh start of every server; {matrix.windows} windows for each cell and round",
            ),
        ),
        reasons_title="Remarks",
        reasons=tuple(remark(cells, matrix.rounds)),
        sections=drop_empty(sections),
    )


def _summarise(matrix: Matrix, best: Table) -> str:
    """Which server is the best under how many loads, and that this is no verdict."""
    levels = f"levels of {format_count(len(matrix.servers), 'server')}, without a verdict"
    wins = Counter(server for _, server, *_ in best.rows)
    told = ", ".join(
        f"{server} under {count} of {format_count(len(matrix.loads), 'load')}" for server, count in wins.most_common()
    )
    return f"highest throughput: {told}; {levels}" if told else levels


def _name_best(best: Table) -> Iterator[str]:
    """A line for each load: which server is the best, and whether it is ahead by more than starts lie apart."""
    for load, server, level, ahead, apart, words in best.rows:
        starts = {AHEAD: f"starts lie {apart} apart", NOT_APART: f"no clear lead, for starts lie {apart} apart"}
        told = starts.get(words, f"spread between starts {words}")
        yield f"{load}: {server} has the highest throughput, {level} {METRICS[SPREAD].unit}, {ahead} ahead of the next; {told}."


def _describe_levels(cells: Sequence[CellResult], best: Table) -> Iterator[PagePart]:
    if best.rows:
        yield make_sheet(best, "The highest throughput under each load", is_numeric=False, is_sortable=True)
    yield make_sheet(tabulate_cells(cells), "Medians of rounds, a row for each cell", is_sortable=True)
    spread = draw_rounds(cells)
    if spread is not None:
        yield Picture(figure=spread)


def _describe_windows(cells: Sequence[CellResult], raw: RawData) -> Iterator[PagePart]:
    found = sorted(((cell, window) for cell in cells for window in cell.windows), key=lambda pair: pair[1].begun_s)
    if not found:
        return
    metric = METRICS[SPREAD]
    rows = tuple(
        (
            SheetCell(text=cell.server),
            SheetCell(text=cell.load),
            SheetCell(text=str(window.block)),
            SheetCell(text=str(window.start)),
            SheetCell(text=f"{window.begun_s:,.1f}"),
            SheetCell(text=f"{window.run.values[SPREAD]:,.{metric.decimals}f}" if SPREAD in window.run.values else "n/a"),
            SheetCell(text=raw.name(window.run.source).rpartition("/")[2], href=raw.link(raw.name(window.run.source))),
        )
        for cell, window in found
    )
    header = ("server", "load", "round", "start", "begun, s", f"{metric.title}, {metric.unit}", "raw")
    sheet = Sheet(caption="Windows in the order of time", header=header, rows=rows)
    yield Disclosure(title=f"All {len(rows)} windows that count, with their raw files", parts=(sheet,))


def _describe_reproduction(raw: RawData) -> Iterator[PagePart]:
    folder = quote(str(raw.folder))
    scenario = quote(str(Path(raw.folder) / "matrix.toml"))
    yield Commands(lines=(("measure it again", f"perfgate matrix {scenario} --out {quote(f'{raw.folder}-again')}"),))
    yield Commands(lines=(("every window and metric as a table", f"perfgate export {folder} --csv windows.csv"),))
    if files := raw.list_files():
        yield Disclosure(title="Raw data", parts=(Paragraph(text=RAW_DATA), Links(files=files)))


def draw_rounds(cells: Sequence[CellResult]) -> Figure | None:
    """Each window's throughput against the median of its cell, a sign for each round; None without a window."""
    found = [(cell, level) for cell in cells if (level := cell.find_level(SPREAD))]
    if not found:
        return None
    rounds = sorted({window.block for cell, _ in found for window in cell.windows})
    keys = [
        LegendEntry(sign=(dot((11, 8), _outline(number), _style(number)),), text=f"round {number}", hides=f"round-{number}")
        for number in rounds
    ]
    return make_figure(
        "rounds",
        "Start to start",
        f"{METRICS[SPREAD].title} of each window, in % of its cell's median. Rounds show how starts differ.",
        lambda width: _draw_rounds(found, width),
        keys,
    )


def _draw_rounds(found: Sequence[tuple[CellResult, float]], width: float) -> Drawing:
    shares = [share for cell, level in found for _, share in _list_shares(cell, level)]
    low, high = find_span([*shares, -1.0, 1.0])
    bottom = ABOVE + ROW * len(found)
    x = Scale(low=low, high=high, start=12.0, end=width - 12)
    y = Scale(low=0.0, high=1.0, start=bottom, end=ABOVE)
    panel = Panel(x=x, y=y, title="", x_title="% from the median", ticks_y=())
    shapes: list[SvgElement] = [*panel.frame(), line((x.place(0), ABOVE), (x.place(0), bottom), "zero")]
    for number, (cell, level) in enumerate(found):
        top = ABOVE + number * ROW
        shapes.append(write_label(12, top + 8, f"{cell.server}, {cell.load}", "tick"))
        for turn, share in _list_shares(cell, level):
            hint = f"{cell.server}, {cell.load}, round {turn}: {format_percent(share / 100, 2, is_signed=True)}"
            shapes.append(dot((x.clamp(share), top + 20), _outline(turn), f"{_style(turn)} round-{turn}", hint=hint))
    return Drawing(width=width, height=bottom + BELOW, shapes=tuple(shapes))


def _list_shares(cell: CellResult, level: float) -> list[tuple[int, float]]:
    """The round of each window, and how far in % its throughput lies from the cell's level."""
    told = ((window.block, window.run.values.get(SPREAD)) for window in cell.windows)
    return [(turn, 100 * value / level - 100) for turn, value in told if value is not None]


def _outline(number: int) -> str:
    return OUTLINES[(number - 1) % len(OUTLINES)]


def _style(number: int) -> str:
    return f"series-{(number - 1) % 7} full"
