"""How numbers are written, and that percentages are written in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import perfgate
from perfgate.storage.rounding import format_percent

PACKAGE = Path(perfgate.__file__).parent


@pytest.mark.parametrize(
    ("ratio", "options", "text"),
    [
        (0.0244, {}, "2.4 %"),
        (0.0244, {"is_signed": True}, "+2.4 %"),
        (-0.0244, {"is_signed": True}, "-2.4 %"),
        (-0.0001, {"is_signed": True}, "0.0 %"),
        (0.0001, {"is_signed": True}, "0.0 %"),
        (0.126, {"decimals": 0}, "13 %"),
        (0.01, {"decimals": None}, "1 %"),
        (0.0025, {"decimals": None}, "0.25 %"),
    ],
)
def test_format_percent__sign_and_decimals(ratio, options, text):
    assert format_percent(ratio, **options) == text


def find_own_formats(source):
    """Name what writes a percentage by itself: the format code, or a computed number before the sign."""
    return re.findall(r":[+]?(?:\.\d)?%\}|\d[fg]\} ?%", source)


def test_find_own_formats__finds_what_it_should():
    assert find_own_formats('f"{x:.0%} {y:+.1%} {100 * z:.1f} %"') == [":.0%}", ":+.1%}", "1f} %"]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_source__writes_percentages_by_one_function(path):
    source = path.read_text(encoding="utf-8")

    assert path.name == "rounding.py" or find_own_formats(source) == []
