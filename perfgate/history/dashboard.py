"""A history as one HTML file that works offline: no script, no font and no picture from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from perfgate.history.charts import COLOURS, Chart, build_chart
from perfgate.history.listing import (
    UNKNOWN,
    describe_events,
    describe_ledger,
    tabulate_series,
    tabulate_spending,
)
from perfgate.history.trends import History, LevelSeries
from perfgate.report.chart.templates import make_environment, read_style
from perfgate.storage.rounding import format_percent, round_floats

TEMPLATE_DIR = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesGroup:
    """One scenario and workload on one kind of hardware."""

    anchor: str
    scenario: str
    hardware: str
    workload: str
    charts: tuple[Chart, ...]
    events: tuple[str, ...]
    spreads: tuple[str, ...]


def render_dashboard(history: History) -> str:
    """Write the page. The same history gives the same bytes."""
    runners = sorted({point.runner for series in history.series for point in series.points})
    groups = groupby(history.series, key=lambda one: (one.subject.scenario, one.subject.hardware, one.subject.workload))
    sections = [_build_section(index, list(found), runners) for index, (_, found) in enumerate(groups)]
    return (
        make_environment(TEMPLATE_DIR)
        .get_template("dashboard.html.j2")
        .render(
            history=history,
            sections=sections,
            overview=tabulate_series(history.series),
            anchors=[f"{section.anchor}-{place}" for section in sections for place in range(len(section.charts))],
            spending=tabulate_spending(history),
            ledger=list(describe_ledger(history.ledger)),
            runners=[runner or UNKNOWN for runner in runners],
            colours=COLOURS,
            style=read_style(),
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
        spreads=tuple(text for one in series if (text := _describe_spread(one))),
    )


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
