"""Which tier a test belongs to: every file and name in the table of tiers is there, and a test is in one tier or the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tiers import FILES, FOLDERS, QUICK_SESSIONS, SESSION_FILES, find_marks, has_rest, is_quick

TESTS = Path(__file__).parents[1]


def test_tables__name_what_is_there():
    files = {path.name: path for path in TESTS.rglob("test_*.py")}
    functions = {name for path in files.values() for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}

    assert {*FILES, *SESSION_FILES} <= set(files)
    assert set(FOLDERS) <= {path.name for path in TESTS.iterdir()}
    assert functions >= QUICK_SESSIONS


@pytest.mark.parametrize(
    ("place", "marks", "expected"),
    [
        (("tests", "unit"), ("test_check.py", "test_judge__any"), True),
        (("tests", "unit"), ("test_session.py", "test_order_arms__alternates_over_blocks"), True),
        (("tests", "unit"), ("test_session.py", "test_measure__alternates_arms_over_fresh_starts"), True),
        (("tests", "unit"), ("test_session.py", "test_measure__budget_spent"), False),
        (("tests", "unit"), ("test_html_browser.py", "test_page__any"), False),
        (("tests", "kernels"), ("test_tiles.py", "test_any"), False),
        (("tests", "e2e"), ("test_session.py", "test_measure__alternates_arms_over_fresh_starts"), False),
    ],
)
def test_is_quick__by_folder_file_and_name(place, marks, expected):
    file, function = marks

    assert is_quick(find_marks(place, file, function), function) is expected


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("kernels/test_tiles.py", "", True),
        ("report/test_html_browser.py", "", True),
        ("serving/test_session.py", "", True),
        ("serving/test_injection.py", "@pytest.mark.engine\ndef test_any(): ...", True),
        ("rule/test_check.py", "@pytest.mark.long\ndef test_any(): ...", False),
    ],
)
def test_has_rest__by_folder_file_and_text(tmp_path, place, text, expected):
    path = tmp_path / place
    path.parent.mkdir()
    path.write_text(text)

    assert has_rest(path) is expected
