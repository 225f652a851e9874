"""SECURITY.md and the attacks that are carried out: the table names every test, and every test is in the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
ROWS = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("|") and line.count(" | ") == 2][1:]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *def test_attack__(\w+)", path.read_text(), re.MULTILINE)
}
# What a gate that runs strangers' code on GPUs must withstand at the least.
NAMED = (
    *("zip slip", "bomb", "symbolic link", "NaN", "markdown, HTML, mentions", "forged number of the pull request"),
    *("forged head", "stale approval", "compile cache", "environment file injection", "artifact from another run"),
    *("oversized JSON", "path in the name of a scenario", "poisoned baseline", "hook bypass"),
)


def list_names(cell):
    return re.findall(r"`(\w+)`", cell)


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip()[:40] for row in ROWS])
def test_table__each_row_has_its_tests(row):
    names = list_names(row[2])

    assert names
    assert set(names) <= TESTS


def test_table__each_test_has_its_row():
    assert TESTS - {name for row in ROWS for name in list_names(row[2])} == set()


@pytest.mark.parametrize("attack", NAMED)
def test_table__holds_what_must_be_withstood(attack):
    assert any(attack in row[0] for row in ROWS), f"{attack}: is in no row"


def test_page__says_what_is_not_stopped():
    assert "**A pull request can forge its own samples.**" in PAGE.partition("## What is not stopped")[2]


ATTACKS = (ROOT / "docs" / "explanation" / "security-attacks.md").read_text()
ALL_TESTS = {name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def test_(\w+)", path.read_text())}


def test_attacks__each_names_a_test_that_exists():
    rows = [line.split(" | ") for line in ATTACKS.splitlines() if re.match(r"\| \d", line)]

    assert [int(row[0].strip("| ")) for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert (names := list_names(row[4])), f"row {row[0]} names no test"
        assert set(names) <= ALL_TESTS
