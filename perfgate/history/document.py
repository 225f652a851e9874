"""A history as one JSON document, for scripts and other dashboards."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson

from perfgate.history.trends import History, Series
from perfgate.rounding import round_floats

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


def _describe(series: Series) -> dict[str, Any]:
    content = {**asdict(series), "level": series.level}
    if series.creep:
        content["creep"]["is_over"] = series.creep.is_over
    return content
