"""The page of a session: the verdict, then everything that it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfgate.core import Outcome
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.report.expert_use import list_uses, tabulate_use
from perfgate.report.html.arms import draw_attribution, tabulate_arguments, tabulate_differences
from perfgate.report.html.distributions import read_distributions
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
from perfgate.report.html.places import Placed, WindowUse, pick_evidence, place_windows
from perfgate.report.html.timeline import draw_timeline
from perfgate.report.html.verdict_parts import draw_forest, list_shown, make_measures
from perfgate.report.render import ReportedCase
from perfgate.report.table import Table
from perfgate.report.view import View
from perfgate.report.words import wording
from perfgate.report.words.breakdown import build_breakdown, find_loss
from perfgate.report.words.counts import tabulate_counts
from perfgate.results.footprint import read_cold_starts
from perfgate.results.profiling.attribution import Attribution
from perfgate.results.records import EVENTS_FILE, SessionRecord
from perfgate.results.server_info import ServerInfo, compare_infos, load_infos
from perfgate.storage.journal import read_lines

TIMELINE_METRICS = 3
SHOWN = ("output_tok_per_s", "p99_itl_ms", "median_itl_ms", "mean_ttft_ms")


def build_session_page(report: ReportedCase, record: SessionRecord, raw: RawData, layers: Sequence[PageSection] = ()) -> Page:
    """Put a judged session into a page; `layers` are sections on its kernels, where timings of them were given."""
    verdict, view = report.verdict, report.view
    placed = place_windows(report)
    is_void = verdict.outcome is Outcome.INVALID
    breakdown = build_breakdown(report.attribution, verdict.judgements)
    where = f"Where: {breakdown.where}" if breakdown and breakdown.where and verdict.outcome is Outcome.REGRESSION else ""
    sections = (
        PageSection(name="metrics", title="All metrics", parts=tuple(_describe_metrics(report, view))),
        PageSection(name="time", title="Windows", parts=tuple(_describe_windows(report, placed, raw))),
        PageSection(name="latencies", title="Latencies", parts=tuple(_describe_latencies(placed))),
        *layers,
        PageSection(name="where", title="Where the time went", parts=tuple(_describe_profile(report, raw))),
        PageSection(name="counters", title="Counters", parts=tuple(_describe_counts(report))),
        PageSection(name="experts", title="Expert use", parts=tuple(_describe_experts(report.session, view))),
        PageSection(name="arms", title="How the arms differ", parts=tuple(_describe_arms(record, load_infos(raw.folder)))),
        PageSection(name="reproduce", title="Reproduce", parts=tuple(_describe_reproduction(view, raw))),
    )
    return Page(
        title=f"{view.headline.outcome}: {view.scenario}",
        answer=view.headline.answer,
        style=view.headline.outcome.lower(),
        meaning=_say_meaning(view),
        subtitle=f"{view.scenario}: {view.scenario_title}",
        facts=(*_list_facts(record, view), *_list_cold_starts(raw)),
        hero=draw_forest(list_shown(verdict, report.scenario)),
        labels=tuple(label for label in (where, view.sameness, *view.labels) if label),
        reasons=_pick_reasons(view),
        consequences=view.reasons[1:] if is_void else (),
        action=view.advice.sentence,
        more=view.advice.more,
        commands=tuple((one.purpose, one.line) for one in (view.calibration, *view.advice.commands) if one is not None),
        sections=drop_empty(sections),
        foot=f"Measured by perfgate {record.perfgate}, judged by rule {verdict.policy.get('rule', 'unknown')}.",
    )


def _say_meaning(view: View) -> str:
    """The finding as a sentence; of a void session its first cause, whole."""
    if view.headline.outcome is Outcome.INVALID and view.reasons:
        return view.reasons[0]
    return f"{view.headline.write_finding(str)}."


def _pick_reasons(view: View) -> tuple[str, ...]:
    """The reasons below the figure: what an undecided session waits for."""
    return view.reasons if view.headline.outcome is Outcome.INCONCLUSIVE else ()


def _list_facts(record: SessionRecord, view: View) -> Iterator[tuple[str, str]]:
    yield "Hardware", view.hardware
    yield "Measured", record.begun_utc
    for arm, started in record.arms.items():
        yield arm.value.capitalize(), started.label
    yield "How sure", f"{view.evidence}. {view.rate}"
    if view.exclusion:
        yield "Excluded", view.exclusion
    yield "Machine time", view.spent
    found = [f"{row.title} {row.found}" for row in view.rows if row.is_gating and row.found != wording.MISSING]
    if found:
        yield "Smallest loss found 9 times in 10", ", ".join(found)
    if view.equivalence:
        yield "Answers", view.equivalence
    if view.kernels:
        yield "Kernels", view.kernels


def _list_cold_starts(raw: RawData) -> Iterator[tuple[str, str]]:
    """What an empty compile cache cost each arm, where the arms had caches of their own."""
    for cold in read_cold_starts(read_lines(raw.folder / EVENTS_FILE)):
        warm = "" if cold.warm_ready_s is None else f"; {cold.warm_ready_s:.1f} s with a warm one"
        yield f"Cold start, {cold.arm}", f"{cold.cold_ready_s:.1f} s, {cold.kernels} kernels compiled{warm}"


def _describe_metrics(report: ReportedCase, view: View) -> Iterator[PagePart]:
    measures = make_measures(report.verdict, report.scenario, view)
    if measures is not None:
        yield measures
        yield from (Paragraph(text=remark) for remark in view.remarks)


def _describe_windows(report: ReportedCase, placed: Sequence[Placed], raw: RawData) -> Iterator[PagePart]:
    figure = draw_timeline(placed, _choose_metrics(report))
    if figure is not None:
        yield Picture(figure=figure)
    if placed:
        yield Disclosure(title=f"All {len(placed)} windows, with their raw files", parts=(_tabulate_windows(placed, raw),))


def _choose_metrics(report: ReportedCase) -> tuple[str, ...]:
    """What is drawn over time: the headline metrics, and the worst of the others."""
    headlines = (name for name, metric in METRICS.items() if metric.headline)
    worst = (judgement.metric for judgement in list_shown(report.verdict, report.scenario))
    return tuple(dict.fromkeys((*headlines, *worst, *SHOWN)))[:TIMELINE_METRICS]


def _tabulate_windows(placed: Sequence[Placed], raw: RawData) -> Sheet:
    carried = [name for name in SHOWN if any(name in one.window.run.values for one in placed)]
    units = (f"{METRICS[name].title}, {METRICS[name].unit}" for name in carried)
    header = ("window", "arm", "block", "start", "begun, s", *units, "what became of it", "raw")
    return Sheet(
        caption="Windows in the order of time",
        header=header,
        rows=tuple(_row(one, carried, raw) for one in placed),
    )


def _row(one: Placed, carried: Sequence[str], raw: RawData) -> tuple[SheetCell, ...]:
    window = one.window
    numbers = (wording.value(name, window.run.values.get(name), has_unit=False) for name in carried)
    name = raw.name(window.run.source)
    use = ("a re-run, " if one.is_rerun else "") + one.use.value
    return (
        SheetCell(text=str(one.number)),
        SheetCell(text=window.arm.value, style=window.arm.value),
        SheetCell(text=str(window.block)),
        SheetCell(text=str(window.start)),
        SheetCell(text=f"{window.begun_s:,.1f}"),
        *(SheetCell(text=number) for number in numbers),
        SheetCell(text=use, style="" if one.use is WindowUse.JUDGED else "quiet"),
        SheetCell(text=name.rpartition("/")[2], href=raw.link(name)),
    )


def _describe_latencies(placed: Sequence[Placed]) -> Iterator[PagePart]:
    evidence = pick_evidence(placed)
    found = read_distributions(evidence)
    if not found:
        return
    which = "the judged windows" if evidence[0].use is WindowUse.JUDGED else "the measured windows, none of which was judged"
    yield Paragraph(
        text=f"Every request and gap of {which}, in one pool for each arm. The verdict takes each window's own numbers instead."
    )
    for distribution in found:
        yield Picture(figure=distribution.figure)
        if distribution.difference is not None:
            yield Picture(figure=distribution.difference)
        yield make_sheet(distribution.table, f"{distribution.figure.title}: quantiles")


def _describe_profile(report: ReportedCase, raw: RawData) -> Iterator[PagePart]:
    attribution, judgements = report.attribution, report.verdict.judgements
    breakdown = build_breakdown(attribution, judgements)
    if breakdown is None:
        return
    yield Paragraph(text=breakdown.sentence)
    figure = draw_attribution(attribution, find_loss(judgements)) if isinstance(attribution, Attribution) else None
    if figure is not None:
        yield Picture(figure=figure)
    if breakdown.table is not None:
        yield Disclosure(title="All parts, with their calls", parts=(make_sheet(breakdown.table, "Time of each part"),))
    if traces := raw.list_traces():
        yield Disclosure(title="Traces, for ui.perfetto.dev", parts=(Paragraph(text=RAW_DATA), Links(files=traces)))


def _describe_counts(report: ReportedCase) -> Iterator[PagePart]:
    if not report.verdict.counts:
        return
    yield Paragraph(text="Equal arms have equal counters. A difference is reported; a loss beyond its limit fails the change.")
    yield make_sheet(tabulate_counts(report.verdict.counts, report.scenario), "Counters that this scenario can move")


def _describe_experts(session: Session, view: View) -> Iterator[PagePart]:
    yield Paragraph(text=f"{view.expert_use[:1].upper()}{view.expert_use[1:]}.")
    for arm, use in list_uses(session).items():
        if use.is_known:
            sheet = make_sheet(tabulate_use(use), f"Expert use of the {arm.value}")
            yield Disclosure(title=f"All {len(use.layers)} layers that route, {arm.value}", parts=(sheet,))


def _describe_arms(record: SessionRecord, infos: tuple[ServerInfo, ...]) -> Iterator[PagePart]:
    differences = tabulate_differences(record)
    if len(record.arms) < 2:
        yield Paragraph(text="One arm was measured; there is nothing to compare it with.")
    elif differences.rows:
        yield make_sheet(differences, "Server arguments, variables and environment that differ", is_numeric=False)
    else:
        yield Paragraph(text="Nothing: both arms were started alike, on the same software.")
    if resolved := tuple(compare_infos(infos)):
        table = Table(header=("setting", "base", "candidate"), rows=resolved)
        yield make_sheet(table, "Settings that the servers resolved differently", is_numeric=False)
    if record.arms:
        sheet = make_sheet(tabulate_arguments(record), "Server arguments and variables", is_numeric=False)
        yield Disclosure(title="All server arguments and variables", parts=(sheet,))


def _describe_reproduction(view: View, raw: RawData) -> Iterator[PagePart]:
    again = (view.reproduce.purpose, view.reproduce.line)
    replay = (("judge the same evidence again", view.replay),) if view.replay else ()
    keeps = ((f"for maintainers, {command.purpose}", command.line) for command in view.advice.for_maintainers)
    yield Commands(lines=(again, *replay, *keeps))
    if view.policy:
        table = Table(header=("what", "value"), rows=view.policy)
        yield Disclosure(title="The rule, fixed before the first window", parts=(make_sheet(table, "Rule", is_numeric=False),))
    if view.facts:
        rows = [(fact.name, fact.base, fact.candidate) for fact in view.facts]
        table = Table(header=("fact", "base", "candidate"), rows=rows)
        yield Disclosure(title="Environment", parts=(make_sheet(table, "Environment", is_numeric=False),))
    if files := raw.list_files():
        yield Disclosure(title="Raw data", parts=(Paragraph(text=RAW_DATA), Links(files=files)))


RAW_DATA = "If you move this file, move the result folder with it: the links are relative."
