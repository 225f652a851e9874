from pathlib import Path

import pytest

from perfgate.core import Outcome
from perfgate.report.words import remedies
from perfgate.report.words.remedies import find_entry, name_remedies, parse_entries

PAGE = """# Page

## INVALID

Remove the cause.

### A server ended

Messages: `ended by itself`, `is no Python (`, `run \\`perfgate\\` anew`

Read the log, see [engines](engines.md).

- Out of memory: give it less.

### The windows differ

Messages: `tells {`, `by itself after {`

Measure again.
"""


@pytest.mark.parametrize(
    ("message", "heading"),
    [
        ("the GPU throttled for 30 % of the window; let it cool", "The machine was not quiet"),
        ("base server never got steady: of 4 warm-up windows no two in a row agreed", "A server never became steady"),
        ("server ended by itself with exit code 1 (log a, it says: CUDA out of memory)", "A server did not start, or ended"),
        ("equivalence prompt 0: the log-prob of a generated token is no number", "The candidate answers differently"),
        ("windows/0004.jsonl.gz does not match its digest", "The folder was changed or is incomplete"),
    ],
)
def test_find_entry__of_the_page_that_ships(message, heading):
    assert find_entry(message).heading == heading
    assert name_remedies(Outcome.INVALID, (message, "no window was measured")) == f"docs/troubleshooting.md, {heading}"


def test_find_entry__of_a_message_that_the_page_lacks():
    assert find_entry("the moon is full") is None
    assert name_remedies(Outcome.INVALID, ("the moon is full",)) == "docs/troubleshooting.md, INVALID"


def test_name_remedies__without_a_reason():
    assert name_remedies(Outcome.INVALID) == "docs/troubleshooting.md, INVALID"
    assert name_remedies(Outcome.INCONCLUSIVE, ("the GPU throttled for",)) == "docs/troubleshooting.md, INCONCLUSIVE"
    assert name_remedies(Outcome.PASS) == ""


def test_find_entry__where_the_package_has_no_page(monkeypatch, tmp_path):
    monkeypatch.setattr(remedies, "__file__", str(tmp_path / "perfgate" / "report" / "words" / "remedies.py"))
    remedies.read_entries.cache_clear()
    try:
        assert name_remedies(Outcome.INVALID, ("the GPU throttled for",)) == "docs/troubleshooting.md, INVALID"
    finally:
        remedies.read_entries.cache_clear()


def test_parse_entries__headings_phrases_and_lines():
    ended, differ = parse_entries(PAGE)

    assert ended.heading == "A server ended"
    assert ended.phrases == ("ended by itself", "is no Python (", "run `perfgate` anew")
    assert ended.lines == ("Read the log, see engines.", "- Out of memory: give it less.")
    assert differ.measure("this window tells p99_itl_ms") == len("tells {")
    assert differ.measure("ended by itself after 2 s") == 17 > ended.measure("ended by itself after 2 s")
    assert differ.measure("tells ") == 0


def test_wheel__has_the_page():
    settings = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")

    assert '"docs/troubleshooting.md" = "perfgate/troubleshooting.md"' in settings
