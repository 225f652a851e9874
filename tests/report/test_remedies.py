import re
from pathlib import Path

import pytest

from perfgate.core import PUBLISHED, Outcome
from perfgate.report.words import remedies
from perfgate.report.words.remedies import find_entry, name_remedies, parse_entries, read_entries
from tests.documents.test_links import list_anchors
from tests.documents.tracked import ROOT

TROUBLES = f"{PUBLISHED}docs/troubleshooting.md"

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
    assert name_remedies(Outcome.INVALID, (message, "no window was measured")) == find_entry(message).address


def test_read_entries__addresses_lead_to_a_file_and_a_heading_of_it():
    lines = [line for entry in read_entries() for line in entry.lines]
    found = [entry.address for entry in read_entries()] + re.findall(
        rf"{re.escape(PUBLISHED)}[^\s).,]+\.md[^\s).,]*", "\n".join(lines)
    )

    assert len(found) > len(read_entries())
    for address in found:
        path, _, anchor = address.removeprefix(PUBLISHED).partition("#")
        assert (ROOT / path).is_file(), address
        assert not anchor or anchor in list_anchors(ROOT / path), address
    assert not [line for line in lines if "](" in line]


def test_published__is_what_the_package_says():
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    assert f'Changelog = "{PUBLISHED}CHANGELOG.md"' in settings


def test_find_entry__of_a_message_that_the_page_lacks():
    assert find_entry("the moon is full") is None
    assert name_remedies(Outcome.INVALID, ("the moon is full",)) == f"{TROUBLES}#invalid"


def test_name_remedies__without_a_reason():
    assert name_remedies(Outcome.INVALID) == f"{TROUBLES}#invalid"
    assert name_remedies(Outcome.INCONCLUSIVE, ("the GPU throttled for",)) == f"{TROUBLES}#inconclusive"
    assert name_remedies(Outcome.PASS) == ""


def test_find_entry__where_the_package_has_no_page(monkeypatch, tmp_path):
    monkeypatch.setattr(remedies, "__file__", str(tmp_path / "perfgate" / "report" / "words" / "remedies.py"))
    remedies.read_entries.cache_clear()
    try:
        assert name_remedies(Outcome.INVALID, ("the GPU throttled for",)) == f"{TROUBLES}#invalid"
    finally:
        remedies.read_entries.cache_clear()


def test_parse_entries__headings_phrases_and_lines():
    ended, differ = parse_entries(PAGE)

    assert ended.heading == "A server ended"
    assert ended.phrases == ("ended by itself", "is no Python (", "run `perfgate` anew")
    assert ended.lines == (f"Read the log, see {PUBLISHED}docs/engines.md.", "- Out of memory: give it less.")
    assert differ.measure("this window tells p99_itl_ms") == len("tells {")
    assert differ.measure("ended by itself after 2 s") == 17 > ended.measure("ended by itself after 2 s")
    assert differ.measure("tells ") == 0


def test_wheel__has_the_page():
    settings = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")

    assert '"docs/troubleshooting.md" = "perfgate/troubleshooting.md"' in settings
