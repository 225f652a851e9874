"""Numbers as they are written: rounded in one place, so that no machine's last bits reach a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

import orjson

from perfgate.core import Better, Judgement, Verdict
from perfgate.metrics import METRICS

DIGITS = 6
"""Significant digits of every written number: far finer than any measurement, far coarser than any C library's error."""

DECIMALS = 12
"""What is smaller than this is nothing: zero on one machine must not be 1e-17 on another."""


def round_number(value: float) -> float | None:
    """Round to `DIGITS` significant digits; what is no number becomes None, and -0.0 becomes 0.0."""
    if not isfinite(value):
        return None
    return float(f"{round(value, DECIMALS):.{DIGITS}g}") + 0.0


def round_floats(value: Any) -> Any:
    """Round every float in nested mappings, lists and tuples; the rest stays as it is."""
    if isinstance(value, float):
        return round_number(value)
    if isinstance(value, Mapping):
        return {key: round_floats(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [round_floats(item) for item in value]
    return value


def format_percent(ratio: float, decimals: int | None = 1, *, is_signed: bool = False) -> str:
    """Write a ratio for people, for example "2.4 %"; a rounded zero has no sign, no `decimals` means as many as it takes."""
    return f"{_format_hundredths(ratio, decimals, is_signed=is_signed)} %"


def format_count(count: float, noun: str) -> str:
    """Write a count with its noun, for example "1 window", "3 windows" or "2 processes"."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count:.15g} {noun}{'' if count == 1 else ending}"


def format_interval(low: float, high: float, decimals: int | None = 1) -> str:
    """Write both ends of a change, for example "-0.3 to +2.4 %"."""
    return f"{_format_hundredths(low, decimals, is_signed=True)} to {format_percent(high, decimals, is_signed=True)}"


def _format_hundredths(ratio: float, decimals: int | None, *, is_signed: bool) -> str:
    text = f"{100 * ratio:.6g}" if decimals is None else f"{100 * ratio:.{decimals}f}"
    if float(text) == 0:
        return text.lstrip("-")
    return f"+{text}" if is_signed and ratio > 0 else text


VERDICT_FILE = "verdict.json"
VERDICT_SCHEMA = 2
"""Of `verdict.json`: 2 has the margin and the line from which a metric fails on the scale of the change."""

LOSSES = ("margin", "fails_from", "excluded", "smallest_effect")
"""Fields that are ratios of time, positive for a loss, until they are written."""


def format_verdict(verdict: Verdict) -> bytes:
    """Write a verdict with sorted keys and rounded numbers: no hash order, locale or last bit of a C library shows."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    judgements = [describe_judgement(judgement) for judgement in verdict.judgements]
    content = {**asdict(verdict), "judgements": judgements, "schema": VERDICT_SCHEMA}
    # A session that tells no counter is written as it was before there were any.
    if counts := content.pop("counts"):
        content["counters"] = counts
    return orjson.dumps(round_floats(content), option=options)


def describe_judgement(judgement: Judgement) -> dict[str, Any]:
    """The fields of a judgement for files and JSON output, all losses on the scale of `change`.

    That is a ratio of the metric's own value, signed in the reader's sense: +0.03 of a time is slower, -0.03 of a throughput.
    """
    content = asdict(judgement)
    del content["worse"]
    content["margin"] = content.pop("margin_ratio")
    is_higher = judgement.metric in METRICS and METRICS[judgement.metric].better is Better.HIGHER
    for name in LOSSES if is_higher else ():
        loss = content[name]
        content[name] = None if loss is None else 1 / (1 + loss) - 1
    return content
