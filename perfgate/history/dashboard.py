"""A history as one HTML file that works offline: no font and no picture from elsewhere, and no script but its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import orjson

from perfgate.history.charts import COLOURS, Chart, build_chart
from perfgate.history.listing import (
    HASH_DIGITS,
    RANKED,
    UNKNOWN,
    describe_events,
    describe_ledger,
    describe_news,
    find_sense,
    rank_series,
    show_value,
    tabulate_series,
    tabulate_spending,
)
from perfgate.history.trends import COMMIT, NUMBER, REPOSITORY, History, LevelSeries, SeriesPoint
from perfgate.report.chart.templates import make_environment, read_own
from perfgate.report.words.wording import MISSING
from perfgate.storage.rounding import format_count, format_percent, round_floats

TEMPLATE_DIR = Path(__file__).parent / "templates"
NEWS_SHOWN = 4
"""Lines of news before the fold, so that the overview begins on the first screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsLine:
    """A series that moved: what, and whether it is worse, better or other."""

    text: str
    sense: str


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
    groups = _rank_groups(history.series)
    sections = [_build_section(index, found, runners) for index, found in enumerate(groups)]
    anchors = [f"{section.anchor}-{place}" for section in sections for place in range(len(section.charts))]
    ranked = sorted(zip(chain.from_iterable(groups), anchors, strict=True), key=lambda pair: rank_series(pair[0]))
    news = [NewsLine(text=describe_news(one), sense=sense) for one, _ in ranked if (sense := find_sense(one))]
    return (
        make_environment(TEMPLATE_DIR)
        .get_template("dashboard.html.j2")
        .render(
            history=history,
            sections=sections,
            news=news[:NEWS_SHOWN],
            more_news=news[NEWS_SHOWN:],
            moved=_count_moved(news, len(history.series)),
            overview=tabulate_series([series for series, _ in ranked]),
            anchors=[anchor for _, anchor in ranked],
            spending=tabulate_spending(history),
            ledger=list(describe_ledger(history.ledger)),
            runners=[runner or UNKNOWN for runner in runners],
            colours=COLOURS,
            **read_own(TEMPLATE_DIR / "dashboard.css"),
        )
    )


def _count_moved(news: Sequence[NewsLine], total: int) -> str:
    """How many series moved, and which way."""
    senses = Counter(line.sense for line in news)
    return f"{len(news)} of {total} series moved ({', '.join(f'{senses[sense]} {sense}' for sense in RANKED if senses[sense])})"


def _rank_groups(series: Sequence[LevelSeries]) -> list[list[LevelSeries]]:
    """The series of one workload on one kind of hardware together; the groups that moved first."""
    groups = groupby(series, key=lambda one: (one.subject.scenario, one.subject.hardware, one.subject.workload))
    return sorted((list(found) for _, found in groups), key=lambda group: min(map(rank_series, group)))


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
    spread = series.spread
    told = ", ".join(
        f"{runner} {show_value(series, value)} ({format_count(spread.points[runner], 'session')})"
        for runner, value in spread.medians.items()
    )
    return f"{series.subject.title}: runners differ by {format_percent(spread.ratio)}: {told}"


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
