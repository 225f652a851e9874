"""Render a verdict as the markdown of a pull request comment, or as plain text for a terminal and a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, cached_property
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from perfgate.check import Case
from perfgate.core import Outcome, Verdict
from perfgate.report import escape
from perfgate.report.escape import Safe
from perfgate.report.junit import format_junit
from perfgate.report.layers import summarise_layers, tabulate_layers
from perfgate.report.table import Table, lay_out, lay_out_markdown
from perfgate.report.view import MetricRow, View, build_view
from perfgate.report.words.advice import write_command
from perfgate.report.words.breakdown import Breakdown, build_breakdown
from perfgate.report.words.figure import LEGEND
from perfgate.report.words.headline import TOP, Headline, write_heading
from perfgate.report.words.length import WORDS, close_folds, count_words
from perfgate.report.words.wording import shorten_sentence
from perfgate.results.profiling.attribution import Attribution
from perfgate.storage.rounding import format_verdict

TEMPLATE_DIR = Path(__file__).parent / "templates"
FOLD_BEGIN, FOLD_END = "<details><summary>Numbers, how sure, what now</summary>\n\n", "\n\n</details>"
"""The fold around all that stands below a heading, where another scenario or machine is more important."""

ROWS_SHOWN = 5
"""Rows before the folds of a comment: metrics of the one scenario that is open, then headings of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a whole comment does to keep WORDS: rows of metrics, and what the folds alone have. What decided is in the heading,
    so a table of no rows loses nothing; where a loss is stays.
    """

    rows: int = ROWS_SHOWN
    is_terse: bool = False
    has_kernels: bool = True


_SAVINGS = (
    Saving(),
    Saving(rows=3),
    Saving(rows=3, is_terse=True),
    Saving(rows=1, is_terse=True),
    Saving(rows=1, is_terse=True, has_kernels=False),
    Saving(rows=0, is_terse=True, has_kernels=False),
)


WHY_SHOWN = 240
"""Letters of the reason why a session is void that a terse body shows; a fold has all of it."""


class Fold(IntEnum):
    """How much of a report is left out, so that many fit into one comment; no fold hides a regression."""

    NOTHING = 0
    ENVIRONMENT = 1
    CALM_METRICS = 2
    ALL_BUT_ONE_LINE = 3


# No slots: each form of a report asks for the words, which are made once.
@dataclass(frozen=True, kw_only=True)
class ReportedCase(Case):
    """A case with what else a report of it shows.

    `attribution` says which kernels the difference consists of, or why the profiles cannot be read. `layers` is the verdict on
    MoE layers timed beside it.
    `link` is the address of what `link_title` names. `trees` and `fetch` are commands that a reader types first: one makes the
    working trees that `Session.reproduce` names, the other fetches `Session.source`; both are empty where those are at hand.
    `span` are the commits of base and candidate, where they are known.
    """

    attribution: Attribution | str | None = None
    layers: Verdict | None = None
    link: str = ""
    link_title: str = "report"
    trees: str = ""
    fetch: str = ""
    span: tuple[str, str] | None = None

    @cached_property
    def view(self) -> View:
        """The case in words."""
        is_profiled = isinstance(self.attribution, Attribution)
        return build_view(self.verdict, self.session, self.scenario, is_profiled=is_profiled, span=self.span)

    @property
    def headline(self) -> Headline:
        """The first line of a report as a value: that of the view, with the layers that became slower."""
        headline = self.view.headline
        return replace(headline, slower_layers=len(summarise_layers(self.layers).losses)) if self.layers else headline


def render_case(report: ReportedCase, fold: Fold = Fold.NOTHING, depth: int = TOP) -> str:
    """Return GitHub markdown whose first line is the verdict, as a heading of `depth`.

    One below TOP names the scenario and has no legend.
    """
    headline = write_words(report, fold, depth)
    body = lay_out_body(report, fold, depth, words=WORDS - count_words(headline) if depth == TOP else None)
    return f"{write_heading(report.verdict.outcome.icon, headline, depth)}\n{body}"


def write_words(report: ReportedCase, fold: Fold, depth: int = TOP) -> str:
    """Return the words of the heading."""
    return report.headline.write(escape.markdown, is_named=depth > TOP, is_alone=fold is Fold.ALL_BUT_ONE_LINE)


def lay_out_body(
    report: ReportedCase, fold: Fold, depth: int = TOP, *, words: int | None = None, is_brief: bool = False
) -> str:
    """Return the markdown below the heading, with at most `words` before its folds; None where it lies in a fold itself.

    What is left out stands in the folds, or in a small one of its own where there is no room for those. Where even the
    shortest body has more words, that one is returned. A brief body shows calm metrics in its table of all metrics alone,
    where there is one.
    """
    body = ""
    for saving in _SAVINGS if words is not None else _SAVINGS[:1]:
        body = _render_body(report, fold, depth, saving, is_brief=is_brief)
        if words is None or count_words(close_folds(body)) <= words:
            break
    return body


def _render_body(report: ReportedCase, fold: Fold, depth: int, saving: Saving, *, is_brief: bool) -> str:
    view, is_folded, is_open = report.view, fold >= Fold.CALM_METRICS, is_brief or depth == TOP
    listed = _list_shown(view, fold, is_brief=is_brief)
    shown, hidden = listed[: saving.rows], [row for row in view.rows if row not in listed]
    calm = [row for row in view.rows if is_folded and row.is_calm and row.is_gating]
    breakdown = build_breakdown(report.attribution, report.verdict.judgements)
    return (
        _environment(escape.markdown)
        .get_template("comment.md.j2")
        .render(
            view=view,
            is_line=fold is Fold.ALL_BUT_ONE_LINE,
            has_table=(fold < Fold.CALM_METRICS and depth == TOP) or fold is Fold.NOTHING,
            has_pages=fold is Fold.NOTHING,
            is_terse=saving.is_terse,
            has_kernels=saving.has_kernels,
            rows=shown,
            more_rows=len(listed) - len(shown) if shown else 0,
            cut_rows=[row for row in view.rows if is_open and row.is_gating and row not in (*shown, *calm)],
            also_lost=[row for row in hidden if row.is_lost and row.is_gating],
            shown_lost=[row for row in hidden if row.is_lost and not row.is_gating],
            calm=calm,
            is_pass=view.headline.outcome in (Outcome.PASS, Outcome.IMPROVED),
            is_accepted_here=report.span is not None and view.headline.outcome is Outcome.REGRESSION,
            is_void=view.headline.outcome is Outcome.INVALID,
            legend=Safe(LEGEND),
            has_baseline=report.baseline is not None,
            breakdown=breakdown,
            where=_say_where(breakdown, report.verdict),
            why=shorten_sentence(view.reasons[0], WHY_SHOWN) if saving.is_terse and view.reasons else "".join(view.reasons[:1]),
            parts=Safe(lay_out_markdown(breakdown.table)) if breakdown and breakdown.table else "",
            kernels=summarise_layers(report.layers) if report.layers else None,
            layers=Safe(lay_out_markdown(tabulate_layers(report.layers))) if report.layers else "",
            is_handed_over=report.session.is_handed_over,
            link=Safe(report.link),
            link_title=report.link_title,
            trees=report.trees,
            fetch=report.fetch,
        )
    )


def count_rows(report: ReportedCase, fold: Fold) -> int:
    """How many metrics a brief report shows before its folds."""
    return len(_list_shown(report.view, fold, is_brief=True))


def _list_shown(view: View, fold: Fold, *, is_brief: bool) -> list[MetricRow]:
    rows = [row for row in view.rows if row.is_gating and not (fold >= Fold.CALM_METRICS and row.is_calm)]
    if is_brief and fold < Fold.CALM_METRICS:
        rows = [row for row in rows if not row.is_calm] or rows[:1]
    return rows[:ROWS_SHOWN]


def render_text(report: ReportedCase, lay: Callable[[Table], str] = lay_out) -> str:
    """Return plain text whose first line is the verdict; `lay` lays out its table.

    Of a void session that line has the whole cause, and the others are counted: they often follow from it.
    """
    view, verdict = report.view, report.verdict
    cause, *others = verdict.reasons if verdict.outcome is Outcome.INVALID and verdict.reasons else ("",)
    explain = write_command("explain", report.session.source) if report.session.source else "perfgate explain"
    return (
        _environment(escape.plain)
        .get_template("verdict.txt.j2")
        .render(
            view=view,
            headline=Safe(f"{view.headline.answer}: {escape.plain(cause)}" if cause else view.headline.write(escape.plain)),
            why=() if cause else view.reasons,
            consequences=f"{len(others)} more that may follow from it; `{explain}` prints them" if others else "",
            table=Safe(lay(tabulate_rows(view.rows, view.base_title))),
            where=_say_where(build_breakdown(report.attribution, verdict.judgements), verdict),
        )
    )


def _say_where(breakdown: Breakdown | None, verdict: Verdict) -> str:
    """Which kernel a loss is in, or what is missing to say so; empty where nothing was lost."""
    if verdict.outcome is not Outcome.REGRESSION:
        return ""
    return (breakdown.where or breakdown.sentence) if breakdown else "unknown: no profile was taken."


def render_as(style: str, report: ReportedCase, lay: Callable[[Table], str] = lay_out) -> bytes:
    """Write a report as "json", "junit", "text" or "markdown"; `lay` lays out the table of a text."""
    if style == "json":
        return format_verdict(report.verdict)
    if style == "junit":
        return format_junit(report.verdict)
    return (render_text(report, lay) if style == "text" else render_case(report)).encode()


@cache
def _environment(clean: Callable[[str], str]) -> Environment:
    """Make an environment in which every value is cleaned unless perfgate wrote it in the target language itself."""
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


def tabulate_rows(rows: tuple[MetricRow, ...], base_title: str) -> Table:
    """The rows of a verdict for a terminal or a log."""
    header = ("metric", base_title, "candidate", "change", "", "95 % bounds", "fails from", "found from", "outcome")
    return Table(header=header, rows=[_cells(row) for row in rows], words=(0, 4, len(header) - 1))


def _cells(row: MetricRow) -> tuple[str, ...]:
    marks = "".join(f" [{mark}]" for mark in row.marks)
    return (
        row.title,
        row.base,
        row.candidate,
        row.change,
        row.sense,
        row.interval,
        row.line,
        row.found,
        row.outcome + marks,
    )
