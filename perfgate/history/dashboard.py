"""A history as one HTML file that works offline: no font and no picture from elsewhere, and no script but its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from perfgate.history.charts import COLOURS, Chart, build_chart
from perfgate.history.listing import (
    HASH_DIGITS,
    UNKNOWN,
    describe_events,
    describe_ledger,
    describe_news,
    rank_series,
    show_value,
    tabulate_series,
    tabulate_spending,
)
from perfgate.history.trends import COMMIT, NUMBER, REPOSITORY, History, LevelSeries, SeriesPoint
from perfgate.report.chart.templates import make_environment, read_own
from perfgate.report.words.wording import MISSING
from perfgate.storage.rounding import format_percent, round_floats

TEMPLATE_DIR = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLinks:
    """A session of a group: when, on which runner, and its commit, pull request and run, each with an address or ""."""

    at: str
    session: str
    runner: str
    values: str
    places: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesGroup:
    """One scenario and workload on one kind of hardware."""

    anchor: str
    scenario: str
    hardware: str
    workload: str
    charts: tuple[Chart, ...]
    events: tuple[str, ...]
    sessions: tuple[SessionLinks, ...]
    spreads: tuple[str, ...]


def render_dashboard(history: History) -> str:
    """Write the page. The same history gives the same bytes."""
    runners = sorted({point.runner for series in history.series for point in series.points})
    groups = groupby(history.series, key=lambda one: (one.subject.scenario, one.subject.hardware, one.subject.workload))
    sections = [_build_section(index, list(found), runners) for index, (_, found) in enumerate(groups)]
    anchors = [f"{section.anchor}-{place}" for section in sections for place in range(len(section.charts))]
    ranked = sorted(zip(history.series, anchors, strict=True), key=lambda pair: rank_series(pair[0]))
    return (
        make_environment(TEMPLATE_DIR)
        .get_template("dashboard.html.j2")
        .render(
            history=history,
            sections=sections,
            news=[told for one in history.series if (told := describe_news(one))],
            overview=tabulate_series([series for series, _ in ranked]),
            anchors=[anchor for _, anchor in ranked],
            spending=tabulate_spending(history),
            ledger=list(describe_ledger(history.ledger)),
            runners=[runner or UNKNOWN for runner in runners],
            colours=COLOURS,
            **read_own(TEMPLATE_DIR / "dashboard.css"),
        )
    )


def _build_section(index: int, series: Sequence[LevelSeries], runners: Sequence[str]) -> SeriesGroup:
    subject = series[0].subject
    return SeriesGroup(
        anchor=f"series-{index}",
        scenario=subject.scenario,
        hardware=subject.hardware,
        workload=subject.workload,
        charts=tuple(build_chart(one, runners) for one in series),
        events=tuple(sorted(event for one in series for event in describe_events(one))),
        sessions=tuple(_link_sessions(series)),
        spreads=tuple(text for one in series if (text := _describe_spread(one))),
    )


def _link_sessions(group: Sequence[LevelSeries]) -> Iterator[SessionLinks]:
    """The sessions behind the charts of a group, the newest first."""
    measured: dict[str, SeriesPoint] = {}
    values: dict[str, list[str]] = {}
    for series in group:
        for point in series.points:
            measured[point.session] = point
            values.setdefault(point.session, []).append(f"{series.subject.title} {show_value(series, point.value)}")
    for session, point in sorted(measured.items(), key=lambda pair: (pair[1].at, pair[0]), reverse=True):
        yield SessionLinks(
            at=f"{point.at:%Y-%m-%d %H:%M}",
            session=session,
            runner=point.runner or UNKNOWN,
            values=", ".join(values[session]),
            places=tuple(link_places(point)),
        )


def link_places(point: SeriesPoint) -> Iterator[tuple[str, str]]:
    """The commit, pull request and run of a session, each with its address, "" where it is not known."""
    # A store may have been written by others: only an address of this form becomes a link.
    home = point.repository if REPOSITORY.fullmatch(point.repository) else ""
    for text, pattern, path, words in (
        (point.commit, COMMIT, "commit", point.commit[:HASH_DIGITS]),
        (point.pull_request, NUMBER, "pull", f"#{point.pull_request}"),
        (point.run, NUMBER, "actions/runs", point.run),
    ):
        is_known = pattern.fullmatch(text) is not None
        yield words if is_known else MISSING, f"{home}/{path}/{text}" if home and is_known else ""


def _describe_spread(series: LevelSeries) -> str:
    """Say what each runner measures since the last change of level."""
    if series.spread is None:
        return ""
    told = ", ".join(
        f"{runner} {value:.5g} ({series.spread.points[runner]} sessions)" for runner, value in series.spread.medians.items()
    )
    return f"{series.subject.title}: runners differ by {format_percent(series.spread.ratio)}: {told}"


DOCUMENT = 1
"""Version of the document's layout."""


def format_history(history: History) -> bytes:
    """Write everything that the tables and the dashboard show; times are UTC."""
    content = {
        "document": DOCUMENT,
        "store": history.store,
        "series": [_describe(series) for series in history.series],
        "ledger": {**asdict(history.ledger), "false_alarms": history.ledger.false_alarms},
        "spending": [asdict(spending) for spending in history.spending],
    }
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(round_floats(content), option=options)


def _describe(series: LevelSeries) -> dict[str, Any]:
    content = {**asdict(series), "level": series.level}
    if series.creep:
        content["creep"]["is_over"] = series.creep.is_over
    return content
