"""Pages that are made from the program say what the program says, and each INVALID message has a remedy."""

import ast
import os
import re
from functools import cache
from pathlib import Path

import pytest

from perfgate import errors
from perfgate.core import PUBLISHED, Outcome, Remark, RemarkKind
from perfgate.evidence import Damage, DamageKind
from perfgate.metrics import METRICS
from perfgate.report.words.remedies import find_entry, parse_entries
from perfgate.results.words import describe_damage, describe_remark
from tests.documents.command_line import PAGE, render

ROOT = Path(__file__).parents[2]
TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PHRASES = [phrase for entry in parse_entries(TROUBLES) for phrase in entry.phrases]
FAULTS = (ROOT / "docs" / "evidence" / "fault-table.md").read_text(encoding="utf-8")
JUDGING = sorted((ROOT / "perfgate" / "verdict").rglob("*.py"))
SERVING = sorted((ROOT / "perfgate" / "serving").rglob("*.py"))
SOURCES = sorted((ROOT / "perfgate").rglob("*.py"))
VOIDING = {"ServerError", "ClientError", "TelemetryError"}
"""What the driver of a session writes down as a problem, wherever it was raised."""
ERRORS = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.PerfgateError)}
MIN_LENGTH = 30
VOID_NOTHING = {
    RemarkKind.SHARED_EVENT,
    RemarkKind.SPECULATIVE,
    RemarkKind.CUT_OFF,
    RemarkKind.COLD,
    RemarkKind.OF_SESSION,
}
"""Notes, and what has its words from elsewhere."""
DECIDED = {
    "baselines": {"parse_baseline"},
    "conclusion": {"explain", "explain_loss", "_note", "_size", "_warn"},
    "layers": {"_explain", "_build"},
    "counters": {"describe_count", "explain_count"},
    "policy": {"fix_policy", "_compare", "find_refusals", "explain_not_gating"},
    "recorded": {"find_slower"},
    "states": {"_tell_shift", "_tell_starts", "_tell_stored"},
    "compare": {"_find_warnings"},
    "compare_metrics": {"_find_advisory", "_find_defect"},
    "workloads": {"find_groups", "_describe", "figures"},
    "differences": {"describe_difference", "describe_arms"},
    "admission": {"name_disturbed", "name_saturated"},
    "equivalence": {"describe_equivalence", "_tell_noise", "_tell_tokens"},
    "gsm8k": {"describe_gsm8k"},
    "kernel_proof": {"describe_proof", "_describe_build", "_describe_exam", "_describe_loss"},
    "pairing": {"describe_curve"},
    "same_work": {"describe_other_work"},
}
"""Functions of `verdict` by module whose sentences stand beside a verdict that decided, or are parts of other sentences."""
PUT_TOGETHER = {
    "telemetry": {"_find_loss"},
    "gpu_memory": {"explain_misfit"},
    "proof": set(),
    "served_model": set(),
    "starts": set(),
}
"""Modules that raise what is no literal, and their functions that wrote it; the judge or another error wrote the others."""


def read_static(node):
    """The text of a literal, with {NAME} for what is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            read_static(part) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part)[2:12]}" for part in node.values
        )
    return ""


def list_sentences(node):
    """Each whole literal below a node that is long enough for a sentence, but for docstrings, errors and inner functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant | ast.JoinedStr):
            text = read_static(child)
            if len(text) >= MIN_LENGTH and " " in text:
                yield text
        elif not isinstance(child, ast.Raise | ast.FunctionDef) and not is_docstring(child):
            yield from list_sentences(child)


def is_docstring(node):
    """Whether a statement is a literal by itself."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def list_messages():
    """Each sentence with which the judge may say INVALID or INCONCLUSIVE, wherever it is put together."""
    for path in JUDGING:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name not in DECIDED.get(path.stem, ()):
                yield from (f"{path.stem}: {text}" for text in list_sentences(node))


def list_findings():
    """What voids a run by itself, and what became of a file of the folder."""
    yield from (describe_remark(Remark(kind=kind)) for kind in RemarkKind if kind not in VOID_NOTHING)
    yield from (describe_damage(Damage(kind=kind, file="FILE")) for kind in DamageKind)


@cache
def list_raised(path):
    """The class and the first argument of each error that a module raises and that may end a session."""
    source = path.read_text(encoding="utf-8")
    classes = ERRORS if path in SERVING else VOIDING
    # Python is slow at reading all modules, and few raise one.
    if not any(f"raise {name}(" in source for name in classes):
        return []
    raised = [node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise)]
    calls = [one for one in raised if isinstance(one, ast.Call) and getattr(one.func, "id", "") in classes]
    return [(call.func.id, call.args[0]) for call in calls]


def list_errors():
    """Each sentence with which what happens in a session ends it."""
    for path in SOURCES:
        for _, argument in list_raised(path):
            text = read_static(argument)
            if len(text) >= MIN_LENGTH:
                yield f"{path.stem}: {text}"
    for path in SERVING:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name in PUT_TOGETHER.get(path.stem, ()):
                yield from (f"{path.stem}: {text}" for text in list_sentences(node))


MESSAGES, FINDINGS, ENDINGS = list(list_messages()), list(list_findings()), list(list_errors())


def test_list_messages__finds_them():
    assert len(MESSAGES) > 80
    assert len(FINDINGS) > 15
    assert len(ENDINGS) > 60


def test_list_errors__knows_who_wrote_what_is_no_literal():
    raised = {
        path.stem
        for path in SOURCES
        for name, argument in list_raised(path)
        if name in VOIDING and not isinstance(argument, ast.Constant | ast.JoinedStr)
    }

    assert raised <= PUT_TOGETHER.keys()


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in DECIDED.items() for name in sorted(names)])
def test_decided__names_functions_that_there_are(module, name):
    sources = [path.read_text(encoding="utf-8") for path in JUDGING if path.stem == module]

    assert any(f"def {name}(" in source for source in sources)


@pytest.mark.parametrize("message", [*MESSAGES, *FINDINGS, *ENDINGS])
def test_troubleshooting__has_a_remedy_for_each_message(message):
    assert any(phrase in message for phrase in PHRASES), "give it an entry in docs/troubleshooting.md"


def list_recorded():
    """What the gate said of each seeded fault that made a session INVALID, cut off as the table shows it."""
    rows = (re.split(r"(?<!\\)\|", line) for line in FAULTS.splitlines() if line.startswith("| "))
    yield from {cells[6].strip() for cells in rows if len(cells) > 7 and cells[5].strip() == "INVALID"}


@pytest.mark.parametrize("message", sorted(list_recorded()))
def test_find_entry__of_what_a_fault_made_the_gate_say(message):
    entry = find_entry(message)

    assert entry is not None
    assert entry.heading != "INCONCLUSIVE"


def test_troubleshooting__has_an_entry_for_each_way_not_to_pass():
    named = {outcome.remedies for outcome in Outcome if outcome.exit_code == Outcome.INVALID.exit_code}

    assert {address.partition("#")[0] for address in named} == {f"{PUBLISHED}docs/troubleshooting.md"}
    assert {*(f"## {address.partition('#')[2].upper()}" for address in named), "## Uncalibrated"} <= set(TROUBLES.splitlines())


def test_command_line__is_what_help_says():
    if os.environ.get("PERFGATE_REFRESH_GOLDEN"):
        PAGE.write_text(render(), encoding="utf-8")

    assert PAGE.read_text(encoding="utf-8") == render(), "PERFGATE_REFRESH_GOLDEN=1 writes it anew"


def test_metrics__page_has_a_row_for_each():
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| `(\w+)`", page, flags=re.MULTILINE) == list(METRICS)
