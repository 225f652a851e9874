"""Comments for people who never saw the tool, and for forges that take 60,000 characters."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.cli import program
from perfgate.core import Outcome
from perfgate.metrics import METRICS
from perfgate.report import wording
from perfgate.report.comment import build_comment, render_comment
from perfgate.report.escape import markdown
from perfgate.report.render import Fold, find_headline, render_case
from tests.fakes.verdicts import ARTIFACT, BASE, HEAD, LINK, judge, make_case, make_layers, make_several, make_verdict

GOLDEN = Path(__file__).parents[1] / "golden"
ROOM = 60_000


def read_answers(comment):
    """The five answers, each taken from the one place of a comment that gives it."""
    title, *rest = comment.splitlines()
    slower, numbers = re.fullmatch(r"##+ \S+ (.+?\.) (.+)", title).groups()
    lines = {words[1]: words[2] for line in rest if (words := re.fullmatch(r"- \*\*(.+?):\*\* (.+)", line))}
    how_sure = re.sub(r" <sup>.*</sup>$", "", lines["How sure"])
    return {"slower": slower, "by how much": numbers, "how sure": how_sure, "where": lines["Where"], "now": lines["What now"]}


ALPHA = "alpha 1 %: at most 1 % of unchanged builds are called a REGRESSION"
ON_CPU = "scenario `cpu-moe` (Tiny Qwen3-MoE on the CPU) on `cpu-intel-xeon-2.50ghz-2c`."
ON_GPU = "scenario `moe-decode` (gpt-oss-20b, decode-bound) on `nvidia-h200-141gb`."
MERGE = "nothing stands in the way of a merge."
ANSWERS = {
    "pass": {
        "slower": "PASS: not slower, as far as the margins go.",
        "by how much": "Output throughput +0.4 % (margin -20.0 %); P99 ITL +2.1 % (margin +50.0 %)",
        "how sure": f"2 blocks of fresh servers (12 judged windows), 10.0 CPU-minutes; {ALPHA}; power 90 %: a loss of "
        "P99 ITL +12.0 %, Output throughput -4.3 %, Median ITL +4.5 % is found 9 times in 10.",
        "where": ON_CPU,
        "now": MERGE,
    },
    "improved": {
        "slower": "IMPROVED: faster, and nothing slower.",
        "by how much": "Output throughput +8.2 % (margin -2.9 %); P99 ITL -6.1 % (margin +10.0 %)",
        "how sure": f"2 blocks of fresh servers (12 judged windows), 10.0 GPU-minutes; {ALPHA}; power 90 %: a loss of "
        "P99 ITL +2.4 %, Median ITL +0.6 %, Output throughput -0.9 % is found 9 times in 10.",
        "where": ON_GPU,
        "now": f"{MERGE} To keep the gain as the new baseline: "
        "`perfgate baseline add results/2026-11-20-1 --to perfgate/baselines`",
    },
    "regression": {
        "slower": "REGRESSION: slower in Median ITL.",
        "by how much": "Output throughput -1.1 % (margin -2.9 %); P99 ITL +2.2 % (margin +10.0 %); "
        "Median ITL +4.8 % (margin +3.0 %)",
        "how sure": f"3 blocks of fresh servers (18 judged windows), 10.0 GPU-minutes; {ALPHA}; power 90 %: a loss of "
        "Median ITL +0.9 %, Output throughput -1.3 %, P99 ITL +4.5 % is found 9 times in 10.",
        "where": f"Median ITL, in {ON_GPU}",
        "now": "find the cause; measuring the same code again does not undo this. To accept the loss in review, with a reason: "
        '`perfgate baseline add results/2026-11-20-1 --to perfgate/baselines --accept-slower "the reason"`',
    },
    "inconclusive": {
        "slower": "INCONCLUSIVE: too little evidence to call it slower or not slower.",
        "by how much": "Output throughput -11.0 % (margin -20.0 %); P99 ITL +27.0 % (margin +50.0 %)",
        "how sure": f"4 blocks of fresh servers (24 judged windows), 10.0 CPU-minutes; {ALPHA}; power 90 %: a loss of "
        "P99 ITL +61.5 %, Output throughput -22.2 %, Median ITL +18.0 % is found 9 times in 10.",
        "where": ON_CPU,
        "now": "give the scenario more blocks and measure again; repeating until it passes proves nothing. To see how many it "
        "takes: `perfgate power --scenario cpu-moe`",
    },
    "invalid": {
        "slower": "INVALID: the measurement cannot be trusted, so it says nothing about speed.",
        "by how much": "candidate, block 1, window 2: 47 of 48 requests completed; see logs/candidate-1.log and measure again",
        "how sure": "0 blocks of fresh servers (0 judged windows), 10.0 CPU-minutes.",
        "where": ON_CPU,
        "now": "mend what is named under Why, then measure again.",
    },
    "calibrating": {
        "slower": "PASS (advisory): not slower, as far as the margins go.",
        "by how much": "Output throughput -1.2 % (margin -20.0 %); P99 ITL +3.3 % (margin +50.0 %)",
        "how sure": "2 blocks of fresh servers (12 judged windows), 10.0 CPU-minutes; alpha 1 %: once the machine is "
        "calibrated, at most 1 % of unchanged builds are called a REGRESSION; power 90 %: a loss of P99 ITL +12.0 %, "
        "Output throughput -4.3 % is found 9 times in 10.",
        "where": ON_CPU,
        "now": MERGE,
    },
    "alone": {
        "slower": "PASS: not slower, as far as the margins go.",
        "by how much": "Output throughput -0.4 % (margin -20.0 %); P99 ITL +1.0 % (margin +50.0 %)",
        "how sure": f"the candidate alone against stored noise (3 judged windows), 10.0 CPU-minutes; {ALPHA}; power 90 %: a "
        "loss of P99 ITL +12.0 %, Output throughput -4.3 % is found 9 times in 10.",
        "where": ON_CPU,
        "now": MERGE,
    },
}
ANSWERS["kernels"] = ANSWERS["regression"] | {
    "by how much": f"{ANSWERS['regression']['by how much']}; kernels slower in 2 layers"
}


FETCH = "`gh run download 12 --repo o/r --name perfgate-report --dir report`"


def answer_of(name, scenario, hardware=""):
    """The answers of a golden comment as another one gives them, whose scenario or machine has another name."""
    old = "moe-decode" if ON_GPU in ANSWERS[name]["where"] else "cpu-moe"
    answers = {key: text.replace(f"`{old}`", f"`{scenario}`") for key, text in ANSWERS[name].items()}
    answers["now"] = answers["now"].replace(f"--scenario {old}", f"--scenario {scenario}")
    if hardware:
        answers["slower"] = f"{hardware}: {answers['slower']}"
        now = answers["now"].replace("results/2026-11-20-1", f"report/{hardware}/{scenario}")
        answers["now"] = now if now == answers["now"] else f"{now}, after {FETCH}"
    return answers


WHOLE = {"several", "pull-request", "pull-request-two-machines"}


def read_golden(name):
    return (GOLDEN / f"{name}.md").read_text(encoding="utf-8")


def split_parts(comment):
    """The parts of a comment, each from its heading on; in a machine's section with several scenarios one each."""
    return re.split(r"^(?=##+ )", comment, flags=re.MULTILINE)[1:]


def test_answers__every_golden_comment_is_asked():
    assert {path.stem for path in GOLDEN.glob("*.md")} == ANSWERS.keys() | WHOLE
    assert {case.verdict.outcome for case in make_several()} == set(Outcome)


@pytest.mark.parametrize("name", ANSWERS)
def test_comment__a_stranger_reads_the_five_answers(name):
    assert read_answers(read_golden(name)) == ANSWERS[name]


def test_comment__of_several_scenarios_gives_the_five_answers_of_each():
    head, *parts = split_parts(read_golden("several"))
    scenarios = [re.match(r"#### \S+ [A-Z]+(?: \(advisory\))? (\w+):", part)[1] for part in parts]

    assert head.startswith(
        "### ❌ REGRESSION in 1 of 7 scenarios; regression: slower in Median ITL. Output throughput -1.1 % (m"
    )
    assert scenarios[:3] == ["regression", "invalid", "inconclusive"]
    assert sorted(scenarios) == sorted(case.verdict.scenario for case in make_several())
    for name, part in zip(scenarios, parts, strict=True):
        assert read_answers(part.replace(f" {name}:", ":", 1)) == answer_of(name, name)


def test_pull_request__gives_the_five_answers():
    (section,) = split_parts(read_golden("pull-request"))

    assert read_answers(section) == answer_of("regression", "moe-decode", "h200")


def test_pull_request__of_two_machines_gives_the_five_answers_of_each():
    """The worst machine first, and in its section the worst scenario; one machine kept no page, so the run is linked."""
    head, lost, gained, other = split_parts(read_golden("pull-request-two-machines"))

    assert re.match(r"## ❌ h200: REGRESSION in 1 of 2 scenarios; moe-prefill: slower in Median ITL\. Output through", head)
    for name, scenario, part in (("regression", "moe-prefill", lost), ("improved", "moe-decode", gained)):
        expected = answer_of(name, scenario, "h200") | {"slower": ANSWERS[name]["slower"]}
        assert read_answers(part.replace(f" {scenario}:", ":", 1)) == expected
    assert read_answers(other) == answer_of("inconclusive", "cpu-moe", "h20")


@pytest.mark.parametrize("name", sorted({*ANSWERS, *WHOLE}))
def test_comment__one_command_and_one_link(name, tmp_path, monkeypatch):
    """A command that the real parser takes, once the working trees that it names are there."""
    monkeypatch.chdir(tmp_path)
    for tree in ("sglang-base", "sglang-head"):
        Path(tree).mkdir()
    parts = [part for part in split_parts(read_golden(name)) if "**Where:**" in part]
    for part in parts:
        (command,) = re.findall(r"^- \*\*Reproduce:\*\* `perfgate gate (.+?)`", part, re.MULTILINE)
        program.get_command(click.Context(program), "gate").make_context("gate", shlex.split(command))
        (link,) = re.findall(r"\]\((.*?)\)", part.partition("<!-- perfgate:foot -->")[0])
        assert link in {LINK, ARTIFACT}
        if name.startswith("pull-request"):
            assert f"after `git fetch origin {BASE} {HEAD} && git worktree add sglang-base {BASE} && " in part
            assert f" && git worktree add sglang-head {HEAD}`" in part
            assert "opened/" not in part
    assert parts


def make_large(draws):
    """A case for each draw: a list of outcomes, one a metric."""
    cases = []
    for number, outcomes in enumerate(draws):
        judgements = [
            judge(metric, 10.0 + number, 0.01 * place + 0.001 * number + 0.02, 0.01, 0.03, outcome=outcome)
            for place, (metric, outcome) in enumerate(zip(METRICS, outcomes, strict=False))
        ]
        worst = Outcome.REGRESSION if Outcome.REGRESSION in outcomes else Outcome.PASS
        named = {"scenario": f"scenario-number-{number}-of-this-pull-request"}
        verdict = make_verdict(worst, judgements, **named)
        case = make_case("regression", layers=make_layers(0.031, 0.001) if number % 2 else None)
        cases.append(replace(case, verdict=verdict, session=replace(case.session, **named)))
    return cases


def list_lost(case):
    """Every metric and layer that was lost, as a comment writes it, whatever the table's columns."""
    judgements = (*case.verdict.judgements, *(case.layers.judgements if case.layers else ()))
    return [
        (METRICS[one.metric].title if one.metric in METRICS else one.metric, wording.percent(one.change))
        for one in judgements
        if one.outcome is Outcome.REGRESSION
    ]


def find_missing(cases, comment):
    """What was lost and is not said in the part of the comment that speaks of its scenario."""
    places = [comment.index(case.verdict.scenario, len(comment.partition("\n")[0])) for case in cases]
    bounds = sorted([*places, len(comment)])
    parts = [comment[place : bounds[bounds.index(place) + 1]] for place in places]
    return [
        (title, change)
        for case, part in zip(cases, parts, strict=True)
        for title, change in list_lost(case)
        if not any(title in line and change in line for line in map(markdown_off, part.splitlines()))
    ]


def markdown_off(line):
    return line.replace("\\", "")


OUTCOMES = st.sampled_from([Outcome.PASS, Outcome.REGRESSION, Outcome.INCONCLUSIVE])


@settings(max_examples=15)
@given(st.lists(st.lists(OUTCOMES, min_size=1, max_size=16), min_size=2, max_size=64), st.integers(2_000, ROOM))
def test_render_comment__no_regression_is_lost_whatever_the_size(draws, room):
    cases = make_large(draws)

    comment = render_comment(cases, room)

    lost = [case for case in cases if list_lost(case)]
    assert find_missing(lost, comment) == []


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.REGRESSION, Outcome.INCONCLUSIVE])
def test_render_comment__forty_scenarios_of_twelve_metrics_fit(outcome):
    cases = make_large([[outcome] * 12] * 40)

    comment = render_comment(cases, ROOM)

    assert len(comment) <= ROOM
    assert len(comment) > ROOM / 2
    assert all(case.verdict.scenario in comment for case in cases)
    assert comment.count("<details>") == comment.count("</details>")
    assert find_missing([case for case in cases if list_lost(case)], comment) == []


@pytest.mark.parametrize("room", [60_000, 3_000, 1_500, 400])
def test_render_comment__one_scenario_is_folded_to_its_room(room):
    (case,) = make_large([[Outcome.REGRESSION, Outcome.PASS, Outcome.PASS]])

    comment = render_comment([case], room)

    assert len(comment) <= room
    assert find_missing([case], f"\n{case.verdict.scenario} {comment}") == []


def test_render_comment__calm_metrics_are_folded_before_those_in_doubt():
    (case,) = make_large([[Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.PASS]])
    room = len(render_case(case, Fold.ENVIRONMENT)) - 1

    comment = render_comment([case], room)

    assert "2 metrics are within their margins: Median ITL +4.0 %, Output throughput +2.0 %." in comment
    assert "| P99 ITL |" in comment


def test_build_comment__a_gain_beside_a_pass_is_a_gain():
    """As the judge says of two metrics: the improved scenario gives the numbers, though the other is shown first."""
    passed, improved = make_case("pass"), make_case("improved")

    comment = build_comment([improved, passed], ROOM)

    assert comment.outcome is Outcome.IMPROVED
    assert comment.headline.startswith("IMPROVED in 1 of 2 scenarios; moe-decode: faster, and nothing slower. Output through")
    assert re.findall(r"^#### \S+ (\w+)", comment.body, re.MULTILINE) == ["PASS", "IMPROVED"]
    assert comment.render() == f"### \N{WHITE HEAVY CHECK MARK} {comment.headline}\n{comment.body}"


def test_build_comment__the_numbers_of_a_scenario_whose_name_looks_like_a_heading():
    """The head is written from values: a colon in a name moves no border."""
    case = make_case("regression")
    named = replace(case, verdict=replace(case.verdict, scenario="a: b"), session=replace(case.session, scenario="a: b"))

    comment = build_comment([named, make_case("pass")], ROOM)

    assert comment.headline.startswith("REGRESSION in 1 of 2 scenarios; a: b: slower in Median ITL. Output throughput -1.1 %")


def test_find_headline__its_pieces_are_values():
    headline = find_headline(make_case("regression", layers=make_layers(0.031, 0.001)))

    assert (headline.outcome, headline.answer, headline.slower_layers) == (Outcome.REGRESSION, "REGRESSION", 1)
    assert headline.findings[0] == "Output throughput -1.1 % (margin -2.9 %)"
    assert headline.write(markdown).endswith("; kernels slower in 1 layer")


def test_render_comment__of_nothing_is_nothing():
    assert render_comment([], ROOM) == ""


def test_render_comment__hostile_names_stay_text():
    (one, two) = make_large([[Outcome.REGRESSION], [Outcome.PASS]])
    name = "</details> @team [x](http://e.example)"
    named = replace(one, verdict=replace(one.verdict, scenario=name), session=replace(one.session, scenario=name))

    for room in (ROOM, 400):
        prose = re.sub(r"`[^`\n]*`", "", render_comment([named, two], room))
        assert markdown(name) in prose
        assert "</details> @team" not in prose
