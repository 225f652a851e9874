"""The page of one kernel: what is right, what is wrong and why, how far its answers are off, and its time beside its peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote

from perfgate.readers.layer_timings import LayerCurve
from perfgate.report.html.layer_sections import LayerReport, build_layer_sections
from perfgate.report.html.page import Commands, Disclosure, Page, PagePart, PageSection, drop_empty, make_sheet
from perfgate.report.table import Table
from perfgate.storage.rounding import format_percent

REASONS_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """What a kernel did with one case: its problems, or why it does not cover it, or its error.

    `error` is relative, `share` the largest error as a share of its limit.
    """

    case: str
    problems: tuple[str, ...] = ()
    left_out: str = ""
    error: float = 0.0
    share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """All that is known of one kernel. `diagnosis` names its mistake; `untimed` says which peers have no time, and why."""

    implementation: str
    device: str
    cases: tuple[KernelCase, ...]
    diagnosis: str = ""
    curve: LayerCurve | None = None
    untimed: Mapping[str, str] = field(default_factory=dict)

    @property
    def wrong(self) -> tuple[KernelCase, ...]:
        """Cases with a problem."""
        return tuple(one for one in self.cases if one.problems)

    @property
    def sound(self) -> tuple[KernelCase, ...]:
        """Cases that were answered rightly."""
        return tuple(one for one in self.cases if not one.problems and not one.left_out)


def build_kernel_page(report: KernelReport) -> Page:
    """Put what is known of a kernel into a page."""
    judged = len(report.sound) + len(report.wrong)
    answer = "WRONG" if report.wrong else "RIGHT" if judged else "NOT COVERED"
    sections = (
        PageSection(name="wrong", title="Wrong answers", parts=tuple(_describe_wrong(report))),
        PageSection(name="errors", title="Errors of right answers", parts=tuple(_describe_errors(report))),
        *_describe_times(report),
        PageSection(name="left-out", title="Not covered", parts=tuple(_describe_left_out(report))),
        PageSection(name="reproduce", title="Reproduce", parts=(_describe_reproduction(report),)),
    )
    return Page(
        title=f"{answer}: {report.implementation}",
        answer=answer,
        style={"WRONG": "regression", "RIGHT": "pass"}.get(answer, "inconclusive"),
        meaning=f"{len(report.sound)} of {judged} cases are right against the float64 oracle",
        subtitle=report.implementation,
        facts=(("Device", report.device), ("Cases", f"{judged} answered, {len(report.cases) - judged} not covered")),
        reasons_title="What is wrong",
        reasons=tuple(_list_reasons(report)),
        sections=drop_empty(sections),
        foot="An answer is right within the limits of its layer's dtype; times are medians of rounds, by turns.",
    )


def _list_reasons(report: KernelReport) -> Iterator[str]:
    if report.diagnosis:
        yield report.diagnosis
    yield from (f"{one.case}: {'; '.join(one.problems)}" for one in report.wrong[: REASONS_SHOWN - bool(report.diagnosis)])


def _describe_wrong(report: KernelReport) -> Iterator[PagePart]:
    if report.wrong:
        rows = [(one.case, "; ".join(one.problems)) for one in report.wrong]
        yield make_sheet(Table(header=("case", "what is wrong"), rows=rows), "Wrong answers", is_numeric=False)


def _describe_errors(report: KernelReport) -> Iterator[PagePart]:
    if report.sound:
        ordered = sorted(report.sound, key=lambda one: (-one.share, one.case))
        rows = [(one.case, f"{one.error:.2e}", format_percent(one.share, 0)) for one in ordered]
        header = ("case", "relative error", "largest error, share of its limit")
        yield make_sheet(Table(header=header, rows=rows), "Against the float64 oracle", is_sortable=True)


def _describe_times(report: KernelReport) -> Iterator[PageSection]:
    if report.curve is not None:
        yield from build_layer_sections([LayerReport(source=report.implementation, curves=(report.curve,))])
    if report.untimed:
        sheet = make_sheet(Table(header=("layer", "why"), rows=list(report.untimed.items())), "Not timed", is_numeric=False)
        yield PageSection(name="untimed", title="Not timed", parts=(sheet,))


def _describe_left_out(report: KernelReport) -> Iterator[PagePart]:
    rows = [(one.case, one.left_out) for one in report.cases if one.left_out]
    if rows:
        sheet = make_sheet(Table(header=("case", "why"), rows=rows), "Not covered", is_numeric=False)
        yield Disclosure(title=f"{len(rows)} cases that the kernel says it does not cover", parts=(sheet,))


def _describe_reproduction(report: KernelReport) -> Commands:
    case = (report.wrong or report.sound or report.cases)[0].case
    command = f"perfgate kernels check --impl {quote(report.implementation)} --case {quote(case)}"
    return Commands(lines=(("judge one case again", command),))
