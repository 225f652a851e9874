"""Render a verdict as the markdown of a pull request comment, or as plain text for a terminal and a log."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from perfgate.core import Session, Verdict
from perfgate.evidence.attribution import Attribution
from perfgate.report import escape
from perfgate.report.breakdown import build_breakdown
from perfgate.report.escape import Safe
from perfgate.report.picture import LEGEND
from perfgate.report.table import lay_out_markdown
from perfgate.report.view import Row, build_view
from perfgate.scenario import Scenario

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATE_DIR = Path(__file__).parent / "templates"


def render_markdown(
    verdict: Verdict,
    session: Session,
    scenario: Scenario,
    baseline: object | None,
    attribution: Attribution | str | None = None,
) -> str:
    """Return GitHub markdown whose first line is the verdict. `baseline` is the one it was judged against, if any.

    `attribution` says which kernels the difference consists of, or why the profiles cannot be read.
    """
    breakdown = build_breakdown(attribution)
    return (
        _environment(escape.markdown)
        .get_template("comment.md.j2")
        .render(
            view=build_view(verdict, session, scenario),
            legend=Safe(LEGEND),
            has_baseline=baseline is not None,
            breakdown=breakdown,
            parts=Safe(lay_out_markdown(breakdown.table)) if breakdown and breakdown.table else "",
        )
    )


def render_text(verdict: Verdict, session: Session, scenario: Scenario, baseline: object | None) -> str:
    """Return plain text whose first line is the verdict, at most about 150 columns wide."""
    view = build_view(verdict, session, scenario)
    return (
        _environment(escape.plain)
        .get_template("verdict.txt.j2")
        .render(
            view=view,
            table=Safe(lay_out(view.rows, view.base_title)),
            legend=Safe(LEGEND.replace("`", "")),
            has_baseline=baseline is not None,
        )
    )


@cache
def _environment(clean: Callable[[str], str]) -> Environment:
    """Make an environment in which every value is cleaned unless perfgate wrote it in the target language itself."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - only rendering needs it

    environment = Environment(  # noqa: S701 - markdown is escaped by `clean`, on every value
        loader=FileSystemLoader(TEMPLATE_DIR),
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Safe) else clean(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = escape.code
    environment.filters["line"] = lambda text: Safe(escape.plain(text))
    return environment


def lay_out(rows: tuple[Row, ...], base_title: str) -> str:
    """Align rows in columns, numbers to the right."""
    header = ("metric", base_title, "candidate", "change", "90 % interval", "limit", "noise band", "picture", "outcome")
    lines = [header, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(_align(line, widths) for line in lines)


def _cells(row: Row) -> tuple[str, ...]:
    marks = "".join(f" [{mark}]" for mark in row.marks)
    numbers = (row.base, row.candidate, row.change, row.interval, row.limit, row.band)
    return (row.title, *numbers, row.picture, row.outcome + marks)


def _align(line: tuple[str, ...], widths: list[int]) -> str:
    left = {0, len(line) - 2, len(line) - 1}
    pairs = enumerate(zip(line, widths, strict=True))
    return "  ".join(cell.ljust(width) if index in left else cell.rjust(width) for index, (cell, width) in pairs).rstrip()
