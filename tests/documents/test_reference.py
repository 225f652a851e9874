"""Pages that are made from the program say what the program says, and each INVALID message has a remedy."""

import ast
import os
import re
from pathlib import Path

import pytest

from perfgate import errors
from perfgate.core import Remark, RemarkKind
from perfgate.evidence import Damage, DamageKind
from perfgate.metrics import METRICS
from perfgate.results.words import describe_damage, describe_remark
from tests.documents.command_line import PAGE, render

ROOT = Path(__file__).parents[2]
TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PHRASES = [
    phrase
    for line in re.findall(r"^Messages: (.+)$", TROUBLES, flags=re.MULTILINE)
    for phrase in re.findall(r"`((?:\\`|[^`])+)`", line)
]
MODULES = sorted((ROOT / "perfgate" / "verdict" / "validity").glob("*.py"))
SERVING = sorted((ROOT / "perfgate" / "serving").rglob("*.py"))
MIN_LENGTH = 30
VOID_NOTHING = {
    RemarkKind.SHARED_EVENT,
    RemarkKind.SPECULATIVE,
    RemarkKind.CUT_OFF,
    RemarkKind.COLD,
    RemarkKind.OF_SESSION,
}
"""Notes, and what has its words from elsewhere."""


def read_static(node):
    """The text of a literal, with {NAME} for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            read_static(part) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part)[2:12]}" for part in node.values
        )
    return ""


def list_messages():
    """Each sentence that a check of a session yields."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Yield) and node.value is not None:
                text = read_static(node.value)
                if len(text) >= MIN_LENGTH:
                    yield f"{path.stem}: {text}"


def list_findings():
    """What voids a run by itself, and what became of a file of the folder."""
    yield from (describe_remark(Remark(kind=kind)) for kind in RemarkKind if kind not in VOID_NOTHING)
    yield from (describe_damage(Damage(kind=kind, file="FILE")) for kind in DamageKind)


def list_errors():
    """Each sentence with which what happens in a session ends it."""
    classes = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.PerfgateError)}
    for path in SERVING:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and getattr(node.exc.func, "id", "") in classes:
                text = read_static(node.exc.args[0])
                # One that is put together elsewhere has its words there.
                if len(text) >= MIN_LENGTH:
                    yield f"{path.stem}: {text}"


def test_list_messages__finds_them():
    assert len(list(list_messages())) > 30
    assert len(list(list_findings())) > 15
    assert len(list(list_errors())) > 60


@pytest.mark.parametrize("message", [*list_messages(), *list_findings(), *list_errors()])
def test_troubleshooting__has_a_remedy_for_each_message(message):
    assert any(phrase.replace("\\`", "`") in message for phrase in PHRASES), "give it an entry in docs/troubleshooting.md"


def test_troubleshooting__has_an_entry_for_each_way_not_to_pass():
    assert {"## INCONCLUSIVE", "## INVALID", "## Uncalibrated"} <= set(TROUBLES.splitlines())


def test_command_line__is_what_help_says():
    if os.environ.get("PERFGATE_REFRESH_GOLDEN"):
        PAGE.write_text(render(), encoding="utf-8")

    assert PAGE.read_text(encoding="utf-8") == render(), "PERFGATE_REFRESH_GOLDEN=1 writes it anew"


def test_metrics__page_has_a_row_for_each():
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| `(\w+)`", page, flags=re.MULTILINE) == list(METRICS)
