"""A page as values: a head that answers, and sections of parts that one template lays out into one HTML file.

The file holds its style and one small script, both named by digest in its content security policy, and forbids the browser to
fetch anything. Without the script the page is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from perfgate.report.chart.svg import Drawing, Figure
from perfgate.report.chart.templates import make_environment, read_own
from perfgate.report.table import Table

TEMPLATE_DIR = Path(__file__).parents[1] / "templates" / "html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure."""

    kind: ClassVar[str] = "picture"
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetCell:
    """A cell of a table; `href` makes it a link, `style` names a class."""

    text: str
    href: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A table that scrolls by itself where it is wider than the screen. The first column holds names.

    `is_numeric` says that the others hold figures, which stand to the right; `is_sortable` that its order says nothing.
    """

    kind: ClassVar[str] = "sheet"
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[SheetCell, ...], ...]
    is_numeric: bool = True
    is_sortable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One judged metric: its words, its interval as a strip, and its outcome."""

    title: str
    base: str
    candidate: str
    change: str
    sense: str
    interval: str
    line: str
    outcome: str
    style: str
    strip: Drawing | None
    marks: tuple[int, ...] = ()
    is_gating: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The table of judged metrics; on a phone each row becomes a card."""

    kind: ClassVar[str] = "measures"
    name: str
    first_title: str
    base_title: str
    ruler: Drawing
    rows: tuple[Measure, ...]
    notes: tuple[str, ...] = ()
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Lines for a shell, each with what it does."""

    kind: ClassVar[str] = "commands"
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Files, by name and by address."""

    kind: ClassVar[str] = "links"
    files: tuple[SheetCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disclosure:
    """Parts that open on demand."""

    kind: ClassVar[str] = "fold"
    title: str
    parts: tuple[PagePart, ...]


PagePart = Paragraph | Picture | Sheet | Measures | Commands | Links | Disclosure


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """A titled part of the page; `name` is its anchor."""

    name: str
    title: str
    parts: tuple[PagePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole report. `style` is the outcome in lower case, or `none` where nothing was judged.

    `hero` is the picture that answers. `consequences` are reasons that follow from the others, and are folded.
    """

    title: str
    answer: str
    style: str
    meaning: str
    subtitle: str
    facts: tuple[tuple[str, str], ...] = ()
    hero: Figure | None = None
    labels: tuple[str, ...] = ()
    reasons_title: str = "Why"
    reasons: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    action: str = ""
    more: str = ""
    commands: tuple[tuple[str, str], ...] = ()
    sections: tuple[PageSection, ...] = ()
    foot: str = ""


def make_sheet(table: Table, caption: str, *, is_numeric: bool = True, is_sortable: bool = False) -> Sheet:
    """A table of plain text."""
    rows = tuple(tuple(SheetCell(text=text) for text in row) for row in table.rows)
    return Sheet(caption=caption, header=tuple(table.header), rows=rows, is_numeric=is_numeric, is_sortable=is_sortable)


def drop_empty(sections: Sequence[PageSection]) -> tuple[PageSection, ...]:
    """Sections that have something to show."""
    return tuple(section for section in sections if section.parts)


def render_page(page: Page) -> bytes:
    """Return the file. The same page gives the same bytes."""
    own = read_own(TEMPLATE_DIR / "page.css")
    return make_environment(TEMPLATE_DIR).get_template("page.html.j2").render(page=page, **own).encode()
