"""`verdict.json`: a verdict as bytes that are the same on any machine."""

from __future__ import annotations

from dataclasses import asdict

import orjson

from perfgate.core import Verdict
from perfgate.rounding import round_floats

VERDICT_FILE = "verdict.json"


def format_verdict(verdict: Verdict) -> bytes:
    """Write a verdict with sorted keys and rounded numbers: no hash order, locale or last bit of a C library shows."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(round_floats(asdict(verdict)), option=options)
