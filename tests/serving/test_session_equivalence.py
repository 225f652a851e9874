"""Sessions whose candidate answers otherwise: real HTTP, judged from the folder that they leave."""

import json

import pytest

from perfgate.check import judge
from perfgate.core import Outcome
from perfgate.report.render import ReportedCase, render_case, render_text
from perfgate.report.view import describe_answers
from perfgate.results.answers import ANSWERS_FILE
from perfgate.results.results import load_results
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import measure
from tests.fakes.requests import KeptProgress, build_request, list_problems, use_fake_engine


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


def run(folder, fault, **changes):
    """Measure two blocks whose candidate shows `fault`, and judge the folder."""
    measure(build_request(folder, candidate=ArmSpec(env={"FAKE_ANSWER": fault}), **changes), KeptProgress())
    scenario, session = load_results(folder)
    return scenario, session, judge(session, scenario, None)


def test_measure__asks_each_start_once(tmp_path):
    scenario, session, _ = run(tmp_path / "out", "noisy")
    lines = [json.loads(line) for line in (tmp_path / "out" / ANSWERS_FILE).read_text().splitlines()]

    assert list_problems(session) == ()
    assert [(line["arm"], line["block"], line["start"]) for line in lines] == [
        ("base", 1, 1),
        ("candidate", 1, 2),
        ("candidate", 2, 3),
        ("base", 2, 4),
    ]
    assert describe_answers(session, scenario.equivalence).startswith("log-probs of the candidate differ from the base's by 0.")


def test_measure__wrong_but_fast_is_invalid(tmp_path):
    scenario, session, verdict = run(tmp_path / "out", "wrong")
    again = judge(load_results(tmp_path / "out")[1], scenario, None)
    case = ReportedCase(session=session, scenario=scenario, baseline=None, verdict=verdict)

    assert verdict.outcome is Outcome.INVALID
    assert "candidate, start 2: its answers are wrong, however fast" in verdict.reasons[0]
    assert again == verdict
    assert "- Answers: log-probs of the candidate differ" in render_case(case)
    assert "\nanswers   log-probs of the candidate differ" in render_text(case)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "refuse",
            'server refused the equivalence prompts with HTTP 500: {"error": {"message": "logprobs are not supported here"}}',
        ),
        ("hang_up", "server gave no answer to the equivalence prompts (RemoteProtocolError: Server disconnected"),
    ],
)
def test_measure__server_that_gives_no_answer_voids_the_session(tmp_path, fault, words):
    _, session, verdict = run(tmp_path / "out", fault)

    assert list_problems(session)[0].startswith(words)
    assert verdict.outcome is Outcome.INVALID


def test_measure__lost_answers_are_missed(tmp_path):
    measure(build_request(tmp_path / "out"), KeptProgress())
    index = tmp_path / "out" / ANSWERS_FILE
    index.write_text("".join(index.read_text().splitlines(keepends=True)[:-1]))
    _, session = load_results(tmp_path / "out")

    [problem] = list_problems(session)
    assert problem == "block 2, base, start 4: measured but never asked the equivalence prompts; measure again"


def test_measure__asks_nothing_where_the_scenario_says_so(tmp_path):
    off = {"[warmup]": "[equivalence]\nenabled = false\n\n[warmup]"}
    scenario, session, _ = run(tmp_path / "out", "wrong", **off)

    assert (list_problems(session), describe_answers(session, scenario.equivalence)) == ((), "")
    assert not (tmp_path / "out" / ANSWERS_FILE).exists()
