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
from perfgate.core import PUBLISHED, Count, CountState, Outcome, combine_outcomes
from perfgate.github.comment.sections import render
from perfgate.metrics import METRICS
from perfgate.report.comment import build_comment, render_comment
from perfgate.report.escape import markdown
from perfgate.report.render import Fold, render_case
from perfgate.report.words import wording
from perfgate.report.words.headline import SUBJECT_SHOWN, write_several
from perfgate.report.words.length import close_folds, count_words
from perfgate.results.profiling.attribution import Attribution
from perfgate.verdict.counters import COUNTERS
from tests.fakes.verdicts import (
    ARTIFACT,
    BASE,
    CASES,
    HEAD,
    KERNELS,
    LINK,
    build_case,
    judge,
    make_case,
    make_layers,
    make_part,
    make_section,
    make_several,
    make_verdict,
    rename,
)

GOLDEN = Path(__file__).parents[1] / "golden"
ROOM = 60_000


def read_answers(comment):
    """The answers, each taken from the one place of a comment that gives it."""
    title, *rest = comment.splitlines()
    (slower,) = re.fullmatch(r"##+ \S+ (.+)", title).groups()
    lines = {words[1]: words[2] for line in rest if (words := re.fullmatch(r"- \*\*(.+?):\*\* (.+)", line))}
    return {"slower": slower, "how sure": lines.get("How sure", ""), "now": lines["What now"], "where": lines.get("Where", "")}


RATE = "False alarms: not counted on such machines."
H200_RATE = "False alarms on such machines: 0 of 59 equal builds, at most 5.0 %."
REPORT = f"Everything: [report]({LINK})."
MORE = f"More: [troubleshooting]({PUBLISHED}docs/troubleshooting.md#"
ANSWERS = {
    "pass": {
        "slower": "PASS: worst is P99 ITL +2.1 %, a loss beyond +12.5 % is excluded",
        "how sure": f"2 blocks, 10.0 CPU-minutes. {RATE}",
        "now": f"nothing to do. {REPORT}",
        "where": "",
    },
    "improved": {
        "slower": "IMPROVED: Output throughput +8.2 % (321.4 to 347.8 tok/s), nothing slower",
        "how sure": f"2 blocks, 10.0 GPU-minutes. {H200_RATE}",
        "now": f"nothing to do. {REPORT}",
        "where": "",
    },
    "regression": {
        "slower": "REGRESSION: Median ITL +4.8 % (11.13 to 11.66 ms), fails from +1.5 %",
        "how sure": f"3 blocks, 10.0 GPU-minutes. {H200_RATE}",
        "now": f"find the cause; measuring again does not undo it. {REPORT}",
        "where": "unknown: no profile was taken.",
    },
    "inconclusive": {
        "slower": "INCONCLUSIVE: P99 ITL changed by -14.0 to +68.0 %, a pass needs below +50.0 %; 1 more undecided",
        "how sure": f"4 blocks, 10.0 CPU-minutes. {RATE}",
        "now": "P99 ITL is undecided. Cheapest: measure once more with --blocks 9 (90 minutes), enough if the change seen is "
        f"true; repeating until it passes proves nothing. {MORE}inconclusive). {REPORT}",
        "where": "",
    },
    "invalid": {
        "slower": "INVALID: candidate, block 1, window 2: 47 of 48 requests completed",
        "how sure": "",
        "now": f"remove the cause, then measure again. {MORE}requests-failed-or-are-missing). {REPORT}",
        "where": "",
    },
    "calibrating": {
        "slower": "PASS (uncalibrated): worst is P99 ITL +3.3 %, a loss beyond +13.7 % is excluded",
        "how sure": f"2 blocks, 10.0 CPU-minutes. {RATE}",
        "now": f"nothing to do. {REPORT}",
        "where": "",
    },
    "alone": {
        "slower": "PASS: worst is P99 ITL +1.0 %, a loss beyond +11.4 % is excluded",
        "how sure": f"the candidate alone against stored noise, 10.0 CPU-minutes. {RATE}",
        "now": f"nothing to do. {REPORT}",
        "where": "",
    },
}
ANSWERS["kernels"] = ANSWERS["regression"] | {"slower": f"{ANSWERS['regression']['slower']}; MoE layer slower in 2 timings"}
GISTS = {
    "invalid": "INVALID invalid",
    "inconclusive": "INCONCLUSIVE inconclusive: P99 ITL undecided",
    "calibrating": "PASS (uncalibrated) calibrating: P99 ITL +3.3 %",
    "pass": "PASS pass: P99 ITL +2.1 %",
    "alone": "PASS alone: P99 ITL +1.0 %",
    "improved": "IMPROVED improved: Output throughput +8.2 %",
}
"""The headings over the folds of the scenarios that are not the worst, in their order."""
FETCH = "gh run download 12 --repo o/r --name perfgate-report --dir report"
WHOLE = {"several", "pull-request", "pull-request-two-machines"}


def read_golden(name):
    return (GOLDEN / f"{name}.md").read_text(encoding="utf-8")


def split_parts(comment):
    """The parts of a comment, each from its heading on; in a machine's section with several scenarios one each."""
    return re.split(r"^(?=##+ )", comment, flags=re.MULTILINE)[1:]


def join_first(head, whose, part):
    """The first of several scenarios, whose heading is that of all."""
    title, _, body = part.partition("\n")
    assert re.fullmatch(r"#### \S+ [\w-]+", title)
    return head.splitlines()[0].replace(f" {whose}", "") + "\n" + body


def answer_of(name, link=LINK, title="report"):
    """The answers of a golden comment as another one gives them, whose report lies elsewhere."""
    return ANSWERS[name] | {"now": ANSWERS[name]["now"].replace(REPORT, f"Everything: [{title}]({link}).")}


def test_answers__every_golden_comment_is_asked():
    assert {path.stem for path in GOLDEN.glob("*.md")} == ANSWERS.keys() | WHOLE
    assert {case.verdict.outcome for case in make_several()} == set(Outcome)


@pytest.mark.parametrize("name", ANSWERS)
def test_comment__a_stranger_reads_the_five_answers(name):
    assert read_answers(read_golden(name)) == ANSWERS[name]


def test_comment__of_several_scenarios_gives_the_answers_of_each():
    head, first, *rest = split_parts(read_golden("several"))
    first = join_first(head, "in 1 of 7 scenarios, regression", first)

    assert head.startswith("### ❌ REGRESSION in 1 of 7 scenarios, regression: Median ITL +4.8 % (11.13 to 11.66 ms)")
    assert {"regression", *GISTS} == {case.verdict.scenario for case in make_several()}
    assert read_answers(first) == ANSWERS["regression"]
    for (name, gist), part in zip(GISTS.items(), rest, strict=True):
        assert read_answers(part) == ANSWERS[name] | {"slower": gist}


def test_comment__of_several_scenarios_counts_those_beyond_five_rows_in_one_line():
    """One row of the first one's table and four headings; the last two lie in a fold."""
    comment = read_golden("several")
    shown, _, folded = comment.partition("<details><summary>2 more scenarios: 1 PASS, 1 IMPROVED</summary>")

    assert re.findall(r"^#### \S+ (.+)$", close_folds(comment), re.MULTILINE) == ["regression", *list(GISTS.values())[:4]]
    assert re.findall(r"^#### \S+ (.+)$", folded, re.MULTILINE) == list(GISTS.values())[4:]
    assert shown.count("<details>") == shown.count("</details>")


def test_comment__a_first_scenario_of_five_rows_leaves_the_others_a_count():
    cases = make_large([[Outcome.REGRESSION] * 6, [Outcome.REGRESSION], [Outcome.PASS]])

    shown = close_folds(render_comment(cases, ROOM))

    assert (shown.count("\n| "), "\n2 more below.\n" in shown) == (4, True)
    assert shown.count("\n#### ") == 1
    assert "<summary>2 more scenarios: 1 REGRESSION, 1 PASS</summary>" in render_comment(cases, ROOM)


def test_pull_request__gives_the_answers():
    (section,) = split_parts(read_golden("pull-request"))

    where = "spin (new) +510.0 us a step, all of the loss of 534.2 us; all kernels together +516.0 us."
    assert read_answers(section.replace(" (h200)\n", "\n", 1)) == answer_of("regression", ARTIFACT) | {"where": where}


def test_pull_request__of_two_machines_gives_the_answers_of_each():
    """The worst machine first, and in its section the worst scenario; one machine kept no page, so the run is linked."""
    head, lost, gained, other = split_parts(read_golden("pull-request-two-machines"))

    assert re.match(r"## ❌ REGRESSION in 1 of 2 scenarios, moe-prefill: Median ITL \+4\.8 % .* \(h200\)\n", head)
    lost = join_first(head.replace(" (h200)\n", "\n"), "in 1 of 2 scenarios, moe-prefill", lost)
    gist = GISTS["improved"].replace(" improved", " moe-decode")
    assert read_answers(lost.replace(" moe-prefill:", ":", 1)) == answer_of("regression", ARTIFACT)
    assert read_answers(gained) == answer_of("improved", ARTIFACT) | {"slower": gist}
    undecided = answer_of("inconclusive", LINK, "run's summary")
    now = undecided["now"].replace("minutes),", "minutes), as under Reproduce,")
    assert read_answers(other.replace(" (h20)\n", "\n", 1)) == undecided | {"now": now}


def list_commands(part):
    """Every line of perfgate in the fenced blocks of a part."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("perfgate ")]


@pytest.mark.parametrize("name", sorted({*ANSWERS, *WHOLE}))
def test_comment__every_command_is_one_that_the_parser_takes(name, tmp_path, monkeypatch):
    """Once the working trees are there that they name."""
    monkeypatch.chdir(tmp_path)
    for tree in ("sglang-base", "sglang-head"):
        Path(tree).mkdir()
    commands = list_commands(read_golden(name))

    assert commands
    for line in commands:
        command, context = program, click.Context(program)
        _, *words = shlex.split(line, comments=True)
        while isinstance(command, click.Group):
            command, context = command.get_command(context, words.pop(0)), click.Context(command)
        command.make_context("perfgate", words)


def test_comment__a_pull_request_names_commits_and_how_results_are_fetched():
    (section,) = split_parts(read_golden("pull-request"))

    assert f"git fetch origin {BASE} {HEAD} && git worktree add sglang-base {BASE} && " in section
    assert f"perfgate bisect {BASE} {HEAD} --scenario moe-decode" in section
    assert f"{FETCH}\nperfgate profile report/h200/moe-decode  # kernel by kernel\nperfgate explain report/h200/moe-" in section


@pytest.mark.parametrize("name", sorted({*ANSWERS, *WHOLE}))
def test_comment__says_it_in_120_words_and_five_rows_outside_the_folds(name):
    shown = close_folds(read_golden(name))

    assert 20 < count_words(shown) <= 120
    assert shown.count("\n| ") <= 6


KINDS = ("nvidia-h20", "nvidia-h20-x8", "nvidia-h100-80gb-hbm3", "nvidia-h200-141gb", "nvidia-b200-x8")
MACHINES = ("cpu-intel-xeon-2.50ghz-2c", "nvidia-h100-80gb-hbm3-x8", "nvidia-h200-141gb-x8", *KINDS)
LOADS = ("chat-json-c16", "closed-c16", "mixed-c16", "mixed-c64", "saturation", "prefill", "decode", "soak", "kept-c64", "c1")
MODELS = ("gpt-oss-120b-shape-mxfp4", "qwen3-30b-a3b-shape-bf16", "deepseek-shape-fp8", "gpt-oss-20b-shape-mxfp4-tp2")
SCENARIOS = tuple(f"{model}-{load}" for load in LOADS for model in MODELS)
FEW = [(machines, scenarios) for machines in (1, 2, 3) for scenarios in (1, 2)]
MANY = [(1, 8), (1, 40), (2, 40), (3, 12), (5, 1), (8, 1)]
LOST = ("median_itl_ms", "output_tok_per_s", "mean_e2e_ms", "p99_itl_ms", "mean_ttft_ms", "p99_ttft_ms")


def make_worst(losses, counters, layers, *, is_uncalibrated):
    """A loss with everything that a comment can say of it: metrics, counters, kernels, layers, a machine without noise."""
    verdict, session, scenario, _ = CASES["regression"]()
    lost = [
        judge(name, 4.0, -0.111 if name == "output_tok_per_s" else 0.111, 0.006, 0.03, outcome=Outcome.REGRESSION)
        for name in LOST[:losses]
    ]
    loss = {"state": CountState.LOST, "base": 65_536.0, "candidate": 60_000.0, "change": -0.084, "fails_beyond": -0.01}
    counts = tuple(Count(counter=name, **loss) for name in list(COUNTERS)[:counters])
    verdict = replace(verdict, judgements=tuple(lost), counts=counts, uncalibrated=is_uncalibrated)
    parts = (make_part("void fused_moe<int, 4>(int*)", 100.0, 550.0), make_part("added", 50.0, 40.0))
    found = Attribution(kind="kernel", parts=parts, base_us=1000.0, candidate_us=1420.0)
    timed = make_layers(*[0.03] * layers) if layers else None
    return replace(build_case(verdict, session, scenario, object()), link=LINK, attribution=found, layers=timed)


def make_long(name, change=0.11, half_width=0.05, reasons=()):
    """Another outcome with every metric, every counter, an uncalibrated machine and long reasons."""
    verdict, session, scenario, baseline = CASES[name]()
    counts = [
        Count(counter=one, state=CountState.CHANGED, base=9.0, candidate=8.0, change=-0.1, fails_beyond=-0.01)
        for one in COUNTERS
    ]
    judgements = [judge(metric, 10.0, change, half_width, 0.03, outcome=verdict.outcome) for metric in LOST]
    more = {"counts": tuple(counts), "judgements": tuple(judgements), "uncalibrated": True, "reasons": reasons}
    return replace(build_case(replace(verdict, **more), session, scenario, baseline), link=LINK)


REASON = f"{'candidate, block 1, window 2: 47 of 48 requests completed; ' * 9}read the server's log, then measure again"
LONG = {
    "regression": [make_worst(6, 6, 3, is_uncalibrated=True)],
    "invalid": [make_long("invalid", reasons=(REASON,) * 20)],
    "inconclusive": [make_long("inconclusive")],
    "hopeless": [make_long("inconclusive", half_width=0.2)],
    "pass": [make_long("pass", -0.01)],
    "improved": [make_long("improved", -0.08)],
}
LONG["mixed"] = [LONG[name][0] for name in ("pass", "regression", "invalid", "inconclusive")]
LONG["without a loss"] = [LONG[name][0] for name in ("improved", "invalid", "hopeless")]


def render_pull_request(cases, machines, scenarios):
    """The comment on a change that is measured on so many machines and scenarios, `cases` by turns."""
    sections = {}
    for place, hardware in enumerate(MACHINES[:machines]):
        named = [rename(cases[(place + turn) % len(cases)], name) for turn, name in enumerate(SCENARIOS[:scenarios])]
        sections[hardware] = make_section(hardware, *named, machines=machines)
    return render(sections, "https://github.com/o/r/actions/runs")


def count_shown_rows(shown):
    """Metrics of tables, and headings of scenarios other than the one that is open."""
    tables = re.findall(r"^\| (?!(?:.*\| metric|:--))", shown, re.MULTILINE)
    return len(tables) + max(shown.count("\n#### ") - 1, 0)


@pytest.mark.parametrize(("machines", "scenarios"), [*FEW, *MANY])
@pytest.mark.parametrize("name", LONG)
def test_render__keeps_to_120_words_and_five_rows_over_all_machines(name, machines, scenarios):
    """Every machine is named before the folds, and what is short there stands in full in a fold."""
    comment = render_pull_request(LONG[name], machines, scenarios)
    shown = close_folds(comment)

    assert 20 < count_words(shown) <= 120
    assert count_shown_rows(shown) <= 5
    assert sorted(re.findall(r"^## .*\((\S+)\)$", shown, re.MULTILINE)) == sorted(MACHINES[:machines])
    assert len(set(re.findall(r"^## \S+ [A-Z].*\((\S+)\)$", comment, re.MULTILINE))) == machines
    assert ("\n- **Where:** fused_moe" in shown) is ("❌" in shown)
    assert comment.count("<details>") == comment.count("</details>")


@pytest.mark.parametrize("size", FEW)
@pytest.mark.parametrize("is_uncalibrated", [False, True])
@pytest.mark.parametrize("layers", [0, 3])
@pytest.mark.parametrize("counters", [0, 1, 6])
@pytest.mark.parametrize("losses", [1, 3, 6])
def test_comment__keeps_to_120_words_whatever_was_lost(losses, counters, layers, is_uncalibrated, size):
    """What is left out before the folds stands in one."""
    case = make_worst(losses, counters, layers, is_uncalibrated=is_uncalibrated)

    comment = render_pull_request([case], *size)

    assert 20 < count_words(close_folds(comment)) <= 120
    assert all(f"{METRICS[one.metric].title}" in comment for one in case.verdict.judgements)
    assert ("**Machine:** uncalibrated" in close_folds(comment)) is is_uncalibrated
    assert "4 of 20 blocks" in comment or not is_uncalibrated
    assert all(COUNTERS[one.counter].title in comment for one in case.verdict.counts)
    assert "All kernels of one forward step" in comment
    assert "0 of " in comment


@pytest.mark.parametrize("size", MANY)
@pytest.mark.parametrize("counters", [0, 6])
@pytest.mark.parametrize("losses", [1, 6])
def test_comment__keeps_to_120_words_where_there_is_no_room_for_all_folds(losses, counters, size):
    """What is cut from the scenario that is open stands in a fold of its own, the rest in the report that is linked."""
    case = make_worst(losses, counters, 3, is_uncalibrated=True)

    comment = render_pull_request([case], *size)

    shown = close_folds(comment)
    assert 20 < count_words(shown) <= 120
    assert all(METRICS[one.metric].title in comment for one in case.verdict.judgements)
    assert "**Machine:** uncalibrated" in shown
    assert "4 of 20 blocks" in comment
    assert ARTIFACT in shown
    assert comment.count("<details>") == comment.count("</details>")


@pytest.mark.parametrize("name", LONG)
def test_comment__keeps_to_120_words_where_a_line_for_each_scenario_has_no_room(name):
    """Eight machines of 40 scenarios have 2,800 letters each: every loss stands there, the first ones before the fold."""
    comment = render_pull_request(LONG[name], 8, 40)

    shown = close_folds(comment)
    assert 20 < count_words(shown) <= 120
    assert sorted(re.findall(r"^## .*\((\S+)\)$", shown, re.MULTILINE)) == sorted(MACHINES)
    assert comment.count("<details>") == comment.count("</details>")


def test_comment__accepting_a_loss_is_in_a_fold_for_maintainers():
    shown, folded = read_golden("regression").split("<details><summary>For maintainers</summary>")

    assert "--accept-slower" not in shown
    assert "perfgate baseline add RESULT_DIR --to perfgate/baselines --accept-slower 'the reason'" in folded
    assert "# after the merge: store the new level, from a session whose base already has the loss\n" in folded
    # A baseline takes in no candidate: this session would store the level without the loss.
    assert "perfgate baseline add results/2026-11-20-1" not in folded


def test_comment__an_uncalibrated_machine_is_told_with_its_remedy():
    comment = read_golden("calibrating")

    assert (
        "- **Machine:** uncalibrated, 4 of 20 blocks of equal arms stored; the remedy, about 200 minutes: `perfgate cal"
        in comment
    )
    assert "advisory" not in comment


def test_comment__an_uncalibrated_machine_of_a_pull_request_has_a_remedy_without_a_shell():
    comment = render({"h20": make_section("h20", make_case("calibrating"))}, "https://github.com/o/r/actions/runs")

    assert (
        "- **Machine:** uncalibrated, 4 of 20 blocks of equal arms stored; the nightly workflow proposes more, and a "
        "maintainer merges them, or starts it at once: `gh workflow run perfgate-baseline.yml`\n"
    ) in close_folds(comment)
    assert "perfgate calibrate" not in comment


def test_comment__a_short_one_says_whose_the_remedy_is():
    comment = render_pull_request([make_worst(6, 6, 3, is_uncalibrated=True)], 1, 1)

    assert "- **Machine:** uncalibrated, for maintainers: `gh workflow run perfgate-baseline.yml`\n" in close_folds(comment)
    assert "the nightly workflow proposes more" in comment


def test_comment__where_a_loss_is_comes_from_the_profiles():
    parts = (make_part("void fused_moe<int, 4>(int*)", 100.0, 550.0), make_part("added", 50.0, 40.0))
    found = Attribution(kind="kernel", parts=parts, base_us=1000.0, candidate_us=1440.0)

    comment = render_comment([make_case("regression", attribution=found)], ROOM)

    where = "fused\\_moe +450.0 us a step, 84 % of the loss of 534.2 us; all kernels together +440.0 us."
    assert f"- **Where:** {where}" in comment.replace("fused_moe", "fused\\_moe")
    assert "perfgate profile results/2026-11-20-1  #" in comment


def test_comment__a_slower_metric_that_does_not_gate_is_not_counted_among_those_that_do():
    shown = judge("mean_ttft_ms", 31.0, 0.2, 0.05, 0.1, gating=False, outcome=Outcome.REGRESSION)
    case = make_case("regression")
    case = replace(case, verdict=replace(case.verdict, judgements=(*case.verdict.judgements, shown)))

    comment = render_comment([case], ROOM)

    assert "\nSlower, but cannot fail a change: Mean TTFT +20.0 %.\n" in comment
    assert "more slower" not in comment
    assert "Also slower" not in comment


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


def test_render_comment__calm_metrics_are_folded_before_undecided_ones():
    (case,) = make_large([[Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.PASS]])
    room = len(render_case(case, Fold.ENVIRONMENT)) - 1

    comment = render_comment([case], room)

    assert "2 metrics are within their margins: Median ITL +4.0 %, Output throughput +2.0 %." in comment
    assert "| P99 ITL |" in comment


def test_build_comment__a_gain_beside_a_pass_is_a_gain():
    """As the judge says of two metrics: the improved scenario gives the numbers, and is shown first."""
    passed, improved = make_case("pass"), make_case("improved")

    comment = build_comment([improved, passed], ROOM)

    assert comment.outcome is Outcome.IMPROVED
    assert comment.headline.startswith(
        "IMPROVED in 1 of 2 scenarios, moe-decode: Output throughput +8.2 % (321.4 to 347.8 tok/s), n"
    )
    assert re.findall(r"^#### \S+ (\S+)", comment.body, re.MULTILINE) == ["moe-decode", "PASS"]
    assert comment.render() == f"### \N{WHITE HEAVY CHECK MARK} {comment.headline}\n{comment.body}"


def test_build_comment__the_numbers_of_a_scenario_whose_name_looks_like_a_heading():
    """The head is written from values: a colon in a name moves no border."""
    case = make_case("regression")
    named = replace(case, verdict=replace(case.verdict, scenario="a: b"), session=replace(case.session, scenario="a: b"))

    comment = build_comment([named, make_case("pass")], ROOM)

    assert comment.headline.startswith("REGRESSION in 1 of 2 scenarios, a: b: Median ITL +4.8 % (11.13 to 11.66 ms)")


def test_headline__its_pieces_are_values():
    headline = make_case("regression", layers=make_layers(0.031, 0.001)).headline

    assert (headline.outcome, headline.answer, headline.slower_layers) == (Outcome.REGRESSION, "REGRESSION", 1)
    assert headline.finding == "Median ITL +4.8 % (11.13 to 11.66 ms), fails from +1.5 %"
    assert headline.write(markdown).endswith("; MoE layer slower in 1 timing")


def test_headline__a_change_without_bounds_is_told_by_its_size():
    """After one block of a session that stores no noise."""
    case = make_case("inconclusive")
    judgements = tuple(replace(one, low=None, high=None, fails_from=None) for one in case.verdict.judgements)

    finding = replace(case, verdict=replace(case.verdict, judgements=judgements)).headline.finding

    assert finding == "P99 ITL +27.0 %, too little evidence to size it; 1 more undecided"


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("name", LONG)
def test_headline__fits_the_subject_of_a_mail_whatever_was_lost(name, count):
    found = [rename(LONG[name][place % len(LONG[name])], SCENARIOS[0]).headline for place in range(count)]

    line = found[0].write(str) if count == 1 else write_several(found, str)

    assert len(line) <= SUBJECT_SHOWN
    assert line.startswith(str(combine_outcomes(one.outcome for one in found)))
    assert any(title in line for title in ("ITL", "throughput", "E2E", "TTFT", "block 1"))


@pytest.mark.parametrize(("uncalibrated", "told"), [((True, True), True), ((True, False), False), ((False, True), False)])
def test_write_several__says_uncalibrated_where_all_that_share_the_outcome_are(uncalibrated, told):
    found = [make_worst(1, 0, 0, is_uncalibrated=one).headline for one in uncalibrated]

    line = write_several([*found, make_long("pass", -0.01).headline], str)

    assert line.startswith("REGRESSION (uncalibrated) in 2 of 3" if told else "REGRESSION in 2 of 3")


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


def test_comment__shows_the_times_of_layers_by_tokens_in_its_fold():
    """Each number of tokens has a row with both arms' times, the change and its bounds."""
    case = make_case("pass", layers=make_layers(0.03, 0.0))

    body = render_case(case)

    rows = [line for line in body.splitlines() if " M=" in line and line.startswith("| ")]
    assert len(rows) == 2
    assert all(line.count("%") >= 3 for line in rows)
    assert case.verdict.outcome is Outcome.PASS


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_comment__says_where_layers_of_a_pull_request_were_not_timed(is_handed_over):
    case = make_case("pass", kernels=KERNELS)
    case = replace(case, session=replace(case.session, is_handed_over=is_handed_over))

    assert ("Times of the MoE layer: not measured." in render_case(case)) is is_handed_over
