"""Golden reports, and what a stranger must be able to read from each.

Refresh them after an intended change with `PERFGATE_REFRESH_GOLDEN=1 pytest tests/report/test_render.py`, then read the diff.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from perfgate.core import Arm, Outcome
from perfgate.github.comment.sections import render
from perfgate.report.comment import render_comment
from perfgate.report.render import render_case, render_text
from tests.fakes.verdicts import (
    CASES,
    GPU_FACTS,
    KERNELS,
    build_case,
    case_improved,
    case_invalid,
    case_pass,
    case_regression,
    make_attribution,
    make_case,
    make_layers,
    make_part,
    make_section,
    make_session,
    make_several,
    rename,
)

GOLDEN = Path(__file__).parents[1] / "golden"
ROOM = 60_000
HOSTILE = (
    "</details><script>x</script>",
    "<!-- hidden",
    "&lt;b&gt; &amp;",
    "`a` ``b`` ``` c",
    "a | b \\| c",
    "a\n# b\n- c",
    "# heading",
    "- item",
    "+ item",
    "* item",
    "12. item",
    "12) item",
    "--- ",
    "===",
    "> quote",
    "[text](http://e.example) ![image](x)",
    "[label]: http://e.example",
    "*a* **b** _c_ __d__ ~~e~~",
    "trailing backslash \\",
    "\x1b[2J\u202etxt",
)


def render_golden(name):
    """Comments as a result folder and a pull request get them, and texts as a terminal does."""
    if name == "several.md":
        return render_comment(make_several(), ROOM)
    if name in WRAPPED:
        sections = {section.hardware: section for section in WRAPPED[name]()}
        return render(sections, "https://github.com/o/r/actions/runs")
    stem, _, suffix = name.partition(".")
    if suffix == "txt":
        return render_text(build_case(*CASES[stem]()))
    layers = make_layers(0.031, 0.004, 0.014) if stem == "kernels" else None
    kernels = KERNELS if stem in {"kernels", "improved"} else None
    return render_comment([make_case("regression" if stem == "kernels" else stem, layers=layers, kernels=kernels)], ROOM)


def make_one_machine():
    """A profiled loss that one new kernel explains."""
    found = make_attribution(
        make_part("spin", 0.0, 510.0, base_count=0.0, candidate_count=24.0), make_part("fused_moe"), rest_us=9e3
    )
    return [make_section("h200", make_case("regression", kernels=KERNELS, attribution=found))]


def make_two_machines():
    """One machine with two scenarios, and one that kept no page."""
    two = make_section("h200", make_case("improved"), rename(make_case("regression"), "moe-prefill"), machines=2)
    return [two, make_section("h20", make_case("inconclusive"), link="", machines=2)]


WRAPPED = {"pull-request.md": make_one_machine, "pull-request-two-machines.md": make_two_machines}
GOLDEN_FILES = ("several.md", "kernels.md", *WRAPPED, *(f"{name}.{suffix}" for name in CASES for suffix in ("md", "txt")))


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_render__matches_the_golden_file(name):
    rendered = render_golden(name)
    if os.environ.get("PERFGATE_REFRESH_GOLDEN"):
        (GOLDEN / name).write_text(rendered, encoding="utf-8")

    assert (GOLDEN / name).read_text(encoding="utf-8") == rendered


def test_golden_files__none_is_left_over():
    assert {path.name for path in GOLDEN.iterdir()} == set(GOLDEN_FILES)


@pytest.mark.parametrize("name", CASES)
def test_render_case__first_line_is_the_verdict_with_its_numbers(name):
    verdict, *rest = CASES[name]()

    first = render_case(build_case(verdict, *rest)).splitlines()[0]

    assert verdict.outcome.value in first
    assert len(first) <= 120
    assert verdict.outcome is Outcome.INVALID or re.search(r"(ITL|throughput) .*\d %", first)


def test_render_case__says_random_weights_and_cpu_only_where_they_are():
    cpu, gpu = render_case(build_case(*case_pass())), render_case(build_case(*case_improved()))

    assert ("random weights" in cpu, "not GPU speed" in cpu) == (True, True)
    assert ("random weights" in gpu, "not GPU speed" in gpu) == (False, False)


def shape(comment):
    """Reduce markdown to what a reader's browser makes of it: its tokens, with the text left out and the HTML kept."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(comment)
    inner = [child for token in tokens for child in [token, *(token.children or ())]]
    return [(token.type, token.content if token.type.startswith("html") else "") for token in inner if "text" not in token.type]


@pytest.mark.parametrize("name", CASES)
def test_render_case__table_rows_have_as_many_cells_as_the_header(name):
    kinds = [kind for kind, _ in shape(render_case(build_case(*CASES[name]())))]

    tables = "".join({"table_open": "T", "tr_open": "R", "th_open": "h", "td_open": "d"}.get(kind, "") for kind in kinds)

    for table in tables.split("T")[1:]:
        assert {len(row) for row in table.split("R")[1:]} == {table.split("R")[1].count("h")}


def with_outside_text(text):
    verdict, _, scenario, baseline = case_regression()
    notes = tuple(replace(item, notes=(text,)) for item in verdict.judgements)
    verdict = replace(verdict, judgements=notes, reasons=(text, text), warnings=(text,), policy={text: text}, scenario=text)
    session = make_session(GPU_FACTS, {"sglang": text, text: text}, text)
    session = replace(session, source=text)
    return render_case(build_case(verdict, session, replace(scenario, title=text), baseline))


@pytest.mark.parametrize("text", HOSTILE)
def test_render_case__hostile_text_changes_nothing_around_it(text):
    benign, comment = with_outside_text("a plain value"), with_outside_text(text)

    assert shape(benign) == shape(comment)


@pytest.mark.parametrize("text", ["@team", "see #12", "http://e.example", "www.e.example", "HTTPS://e.example"])
def test_render_case__outside_text_notifies_no_one_and_links_nowhere(text):
    comment = with_outside_text(f"value {text}")

    prose = re.sub(r"```.*?```|`[^`\n]*`", "", comment, flags=re.DOTALL)
    assert re.findall(r"@\w|#\d|://e|www\.e", prose) == []


def test_render_text__hostile_text_cannot_drive_the_terminal():
    verdict, session, scenario, baseline = case_regression()
    hostile = "\x1b[2J\x9b0m\r\n# c\x07"

    case = build_case(replace(verdict, reasons=(hostile,)), replace(session, source=hostile), scenario, baseline)
    text = render_text(case)

    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text) == []
    assert "\n# c" not in text


def test_render_case__thousand_reasons_fit_into_a_comment():
    verdict, *rest = case_invalid()

    reasons = tuple(f"reason {n} {'x' * 500}" for n in range(1000))
    comment = render_case(build_case(replace(verdict, reasons=reasons), *rest))

    assert "and 988 more of the kind" in comment
    assert len(comment) < 60_000


def test_render_text__says_in_what_the_arms_differ():
    text = render_text(build_case(*case_regression()))

    assert "arms differ in sglang: 0.5.16 (base), 0.5.17.dev3 (candidate)" in text


@pytest.mark.parametrize("render_as_whole", [render_text, render_case])
def test_render__each_footnote_has_a_mark_in_the_table(render_as_whole):
    verdict, *rest = case_regression()
    noted = replace(verdict.judgements[0], notes=("the note of a metric",))
    verdict = replace(verdict, judgements=(noted, *verdict.judgements[1:]), warnings=("a remark on all of it",))

    text = render_as_whole(build_case(verdict, *rest))

    assert re.search(r"^(note {6}|> )a remark on all of it$", text, flags=re.MULTILINE)
    assert re.findall(r"^(?:\[(\d)\]|(\d)\.) (.+)$", text, flags=re.MULTILINE) in (
        [("1", "", "the note of a metric")],
        [("", "1", "the note of a metric")],
    )
    assert text.count("[1]") + text.count("<sup>1</sup>") == (2 if render_as_whole is render_text else 1)


def test_render_text__session_without_windows_or_fingerprints():
    verdict, session, scenario, _ = case_invalid()
    empty = replace(session, windows=(), fingerprints={})

    void = replace(verdict, judgements=(), reasons=("the server never became ready",))
    text = render_text(build_case(void, empty, scenario, None))

    assert "no window finished" in text
    assert text.startswith("INVALID")


def test_render__candidate_alone_is_held_against_the_stored_base():
    verdict, session, scenario, baseline = case_pass()
    alone = replace(session, fingerprints={Arm.CANDIDATE: session.fingerprints[Arm.CANDIDATE]})

    case = build_case(verdict, alone, scenario, baseline)
    text, comment = render_text(case), render_case(case)

    assert "the candidate alone against stored noise" in text
    assert "arms differ" not in text
    assert "| metric | stored base | candidate |" in comment
    assert "| sglang | not measured | same |" not in comment
