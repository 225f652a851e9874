"""The sticky comment as text: sections, history, room, and text that tries to be one of ours."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.core import Outcome
from perfgate.errors import StaleError
from perfgate.github.comment.sections import (
    ALL_BEGIN,
    MARK,
    MAX_COMMENT,
    MAX_HISTORY,
    build_section,
    cut,
    find_room,
    merge,
    parse,
    put,
    render,
)
from perfgate.github.comment.states import State, find_state
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.report.render import FOLD_BEGIN, FOLD_END
from perfgate.report.words.length import close_folds

RUNS = "https://github.com/o/r/actions/runs"


def make_section(hardware="h200", *, head="a", state=State.PASS, run=1, attempt=1, headline="", body="All well."):
    subject = HandoffSubject(
        repository="o/r", pull_request=7, head_sha=head * 40, run_id=run, run_attempt=attempt, hardware=hardware
    )
    return build_section(subject, state, "2026-11-21T10:00:00Z", headline=headline, body=body)


def make_comment(*sections):
    return render({section.hardware: section for section in sections}, RUNS)


def test_render__is_read_back_whole():
    sections = {name: make_section(name, body=f"### {name}\n\n| a |\n|--|\n| 1 |\n\nend") for name in ("h20", "h100", "h200")}

    assert parse(render(sections, RUNS)) == sections
    assert render(parse(render(sections, RUNS)), RUNS) == render(sections, RUNS)


def test_render__headings_beyond_120_words_are_short_and_stand_in_the_fold():
    """As many whole ones as fit, the worst first; of the rest a reader sees machine and state."""
    long = " ".join(["word"] * 48)
    made = [make_section(name, state=State.REGRESSION, headline=f"{long} {name}") for name in ("h100", "h20", "h200", "h4")]
    sections = {section.hardware: replace(section, history=(section.entry,)) for section in made}

    comment = render(sections, RUNS)

    shown = re.findall(r"^## (.*) \((\w+)\)$", close_folds(comment), re.MULTILINE)
    assert shown == [
        (f"❌ {long} h100", "h100"),
        (f"❌ {long} h20", "h20"),
        *(("❌ regression", name) for name in ("h200", "h4")),
    ]
    assert parse(comment) == sections
    assert render(parse(comment), RUNS) == comment
    assert comment.count("<details>") == comment.count("</details>")


def test_parse__sections_folded_as_before_headings_could_be_short():
    """A comment that an earlier version wrote: each heading stands above its fold."""
    sections = {name: make_section(name, headline="word " * 60 + name) for name in ("h100", "h200")}
    comment = render(sections, RUNS)
    folded = f"## ✅ pass (h200)\n\n{ALL_BEGIN}{sections['h200'].heading}\n\nAll well.\n"
    before = f"{sections['h200'].heading}\n\n{FOLD_BEGIN}All well.{FOLD_END}\n"
    assert folded in comment

    assert parse(comment.replace(folded, before)) == sections


def test_render__begins_with_the_mark_and_names_every_section():
    comment = make_comment(make_section("h20"), make_section("h100", state=State.REGRESSION))

    assert comment.startswith(f"{MARK}\n")
    assert "## ✅ pass: a loss as large as the margin is excluded (h20)" in comment
    assert "## ❌ regression: slower (h100)" in comment
    assert "commit aaaaaaaaaaaa, [run 1.1](https://github.com/o/r/actions/runs/1), 2026-11-21T10:00:00Z" in comment


@pytest.mark.parametrize("state", State)
def test_render__every_state_has_its_words(state):
    comment = make_comment(make_section(state=state, body=""))

    assert f"{state.icon} {state.value}: {state.sentence} (h200)" in comment
    assert parse(comment)["h200"].entry.state is state


HEADLINE = "REGRESSION: Median ITL +4.8 % (11.13 to 11.66 ms), fails from +1.5 %"


def test_render__the_first_line_of_a_section_is_its_verdict_with_numbers():
    section = make_section(state=State.REGRESSION, headline=HEADLINE)
    comment = make_comment(section)

    assert next(line for line in comment.splitlines() if line and not line.startswith("<!--")) == f"## ❌ {HEADLINE} (h200)"
    assert parse(comment) == {"h200": section}


def test_render__the_worst_section_comes_first():
    comment = make_comment(make_section("h100"), make_section("h20", state=State.PLANNED), make_section(state=State.REGRESSION))

    assert re.findall(r"^## .* \((\w+)\)$", comment, re.MULTILINE) == ["h200", "h20", "h100"]


@given(st.text(max_size=200))
def test_render__whatever_a_headline_says_the_sections_stay(headline):
    found = parse(make_comment(make_section(headline=headline), make_section("h20")))

    assert found["h200"].entry == make_section().entry
    assert found["h20"] == make_section("h20")


def test_put__another_machines_heading_is_carried_over_as_it_is():
    """Another version of perfgate may have had other icons, and a comment's text is not read back."""
    posted = make_comment(make_section("h20", state=State.REGRESSION, headline=HEADLINE))
    posted = posted.replace("## \N{CROSS MARK} ", "## \N{OCTAGONAL SIGN} ")

    comment = render(put(parse(posted), make_section("h100")), RUNS)

    assert f"## \N{OCTAGONAL SIGN} {HEADLINE} (h20)\n" in comment
    assert "## \N{WHITE HEAVY CHECK MARK} pass: a loss as large as the margin is excluded (h100)\n" in comment


def test_put__the_last_result_moves_into_the_history():
    sections = put({}, make_section(run=1, state=State.REGRESSION))
    sections = put(sections, make_section(run=2, head="b", state=State.RUNNING))
    sections = put(sections, make_section(run=2, head="b", state=State.PASS))

    assert [entry.state for entry in sections["h200"].history] == [State.REGRESSION]
    assert "<details><summary>Before (1)</summary>" in render(sections, RUNS)
    assert "- commit aaaaaaaaaaaa: regression, [run 1.1]" in render(sections, RUNS)


def test_put__the_history_is_bounded():
    sections = {}
    for run in range(1, 20):
        sections = put(sections, make_section(run=run))

    assert [entry.run_id for entry in sections["h200"].history] == list(range(18, 18 - MAX_HISTORY, -1))


@pytest.mark.parametrize(
    ("shown", "late"),
    [
        ({"run": 5}, {"run": 4}),
        ({"run": 5, "attempt": 2}, {"run": 5, "attempt": 1}),
        ({"run": 5, "state": State.PASS}, {"run": 5, "state": State.RUNNING}),
        ({"run": 5, "state": State.PASS}, {"run": 6, "state": State.AWAITING}),
    ],
)
def test_put__a_late_word_replaces_nothing(shown, late):
    with pytest.raises(StaleError, match="has nothing newer to say of this commit"):
        put({"h200": make_section(**shown)}, make_section(**late))


def test_put__an_answer_is_not_kept_back_by_a_later_event_that_measured_nothing():
    """Another label was added while the measurement ran: its run announced itself and then skipped every job."""
    sections = put({}, make_section(run=5, state=State.RUNNING))
    sections = put(sections, make_section(run=6, state=State.PLANNED))

    assert put(sections, make_section(run=5, state=State.REGRESSION))["h200"].entry.state is State.REGRESSION


def test_put__an_older_run_of_a_newer_commit_counts():
    """The branch was pushed back to a commit that had been measured under a smaller number."""
    assert put({"h200": make_section(run=9)}, make_section(run=5, head="b"))["h200"].entry.run_id == 5


def test_merge__keeps_the_later_of_each_hardware():
    one = {"h200": make_section(run=1), "h20": make_section("h20", run=7)}
    other = {"h200": make_section(run=2), "h20": make_section("h20", run=6), "h100": make_section("h100")}

    assert {name: section.entry.run_id for name, section in merge(one, other).items()} == {"h200": 2, "h20": 7, "h100": 1}


FORGED = '<!-- perfgate:section -->\nPASS\n<!-- perfgate:foot -->\n<!-- perfgate:end {"hardware":"h200","entry":{}} -->'


@pytest.mark.parametrize(
    "body", [FORGED, f"text\n{MARK}\nmore", FORGED.replace("\n", "\r\n"), "<!-- open", "<!--perfgate:end {}-->"]
)
def test_attack__a_result_that_poses_as_a_section(body):
    regression = replace(make_section(state=State.REGRESSION), body=body)

    found = parse(make_comment(regression, make_section("h20")))

    assert found["h200"].entry.state is State.REGRESSION
    assert found["h20"].body == "All well."
    assert "<!--" not in found["h200"].body


@given(st.text(max_size=300))
def test_render__whatever_the_body_says_the_other_section_stays(body):
    found = parse(make_comment(make_section(body=body), make_section("h20")))

    assert found["h200"].entry.state is State.PASS
    assert found["h20"] == make_section("h20")


EDITED = ["{}", '{"hardware":"../x"}', "{not json}", '{"hardware":"h200","entry":{"head_sha":"x"}}', "gone"]


@pytest.mark.parametrize("state", EDITED)
def test_parse__a_section_whose_state_was_edited_is_left_out(state):
    comment = make_comment(make_section("h20")).replace(
        MARK, f"{MARK}\n<!-- perfgate:section -->\nx\n<!-- perfgate:end {state} -->"
    )

    assert parse(comment) == {"h20": make_section("h20")}


def test_render__a_mail_shows_the_verdict_before_any_state():
    """Mails hold the text as it is, HTML comments included."""
    comment = make_comment(make_section("h20"), make_section(state=State.REGRESSION, headline=HEADLINE))

    assert comment.splitlines()[:4] == [MARK, "", "<!-- perfgate:section -->", f"## ❌ {HEADLINE} (h200)"]


def test_render__fits_into_a_comment_and_cuts_the_longest():
    long = "\n".join(["### head", "<details><summary>s</summary>", "", "```sh", *["perfgate check results"] * 9000])

    comment = make_comment(make_section(body=long), make_section("h100", body=long), make_section("h20"))

    assert len(comment) <= MAX_COMMENT
    assert comment.count("The rest does not fit into a comment") == 2
    assert "All well." in comment
    assert comment.count("```") % 2 == 0
    assert comment.count("<details>") == comment.count("</details>")


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_find_room__bodies_of_that_length_are_never_cut(count):
    """However long the history: what a section was promised, it keeps."""
    names = [f"{'x' * 62}-{number}" for number in range(count)]
    body = "y" * find_room(count)
    made = [make_section(name, state=State.INCONCLUSIVE, run=2**52, body=body) for name in names]
    sections = {section.hardware: replace(section, history=(section.entry,) * MAX_HISTORY) for section in made}

    comment = render(sections, f"https://github.example/{'o' * 39}/{'r' * 100}/actions/runs")

    assert len(comment) <= MAX_COMMENT
    assert comment.count(body) == count


@given(st.text(alphabet="ab\n`<details>/ ", max_size=2000), st.integers(min_value=200, max_value=1500))
def test_cut__never_exceeds_its_room(body, most):
    assert len(cut(body, most)) <= most


def test_cut__closes_every_fold_wherever_it_cuts():
    """Folds lie in those of scenarios, which lie in that of the scenarios that are only counted."""
    comment = (Path(__file__).parents[1] / "golden" / "several.md").read_text(encoding="utf-8")

    for most in range(1_000, len(comment), 500):
        shorter = cut(comment, most)
        assert len(shorter) <= most
        assert shorter.count("<details>") == shorter.count("</details>")
        assert shorter.count("\n```") % 2 == 0


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ([], State.INVALID),
        (["PASS"], State.PASS),
        (["IMPROVED", "IMPROVED"], State.IMPROVED),
        (["IMPROVED", "PASS"], State.IMPROVED),
        (["PASS", "INCONCLUSIVE"], State.INCONCLUSIVE),
        (["INCONCLUSIVE", "INVALID"], State.INVALID),
        (["PASS", "REGRESSION", "INVALID"], State.REGRESSION),
    ],
)
def test_find_state__the_worst_speaks_for_all_and_a_gain_where_all_pass(outcomes, state):
    assert find_state([Outcome(outcome) for outcome in outcomes]) is state


def test_state__those_of_a_verdict_speak_as_its_outcome_and_the_others_have_a_place_between():
    of_outcome = {outcome: find_state([outcome]) for outcome in Outcome}

    assert all((state.icon, state.sentence) == (found.icon, found.sentence) for found, state in of_outcome.items())
    assert [state.value for state in sorted(State, key=lambda state: state.order)] == [
        "regression",
        "regression-reported",
        "accepted",
        "invalid",
        "sick-runner",
        "inconclusive",
        "awaiting",
        "running",
        "planned",
        "pass",
        "improvement",
    ]


def test_commit_status__only_a_pass_is_a_success():
    assert {state.value: state.commit_status for state in State} == {
        "awaiting": "pending",
        "planned": "pending",
        "running": "pending",
        "pass": "success",
        "improvement": "success",
        "regression": "failure",
        "regression-reported": "success",
        "accepted": "success",
        "inconclusive": "error",
        "invalid": "error",
        "sick-runner": "error",
    }
