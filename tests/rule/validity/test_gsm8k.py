"""Questions that both arms answer through SGLang's own evaluation, and what may be concluded from them."""

import hashlib
import json

import pytest

from perfgate.check import judge
from perfgate.core import Arm, Outcome
from perfgate.errors import InputError, ScenarioError
from perfgate.results.records import read_record
from perfgate.results.results import load_results
from perfgate.scenario.safeguards import Gsm8k
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import measure
from perfgate.verdict.validity.gsm8k import check_gsm8k, describe_gsm8k, measure_chance
from tests.fakes.requests import KeptProgress, build_request, build_text, list_problems, use_fake_engine

RULES = Gsm8k()


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


def write_questions(path, count):
    lines = [
        {"question": f"What is {number} and 1?", "answer": f"It is {number + 1}.\n#### {number + 1}"} for number in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def name_questions(path, **more):
    """What a scenario says of the file at `path`."""
    fields = {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "shots": 2, "questions": 20, **more}
    table = "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    return {"[blocks]": f"[equivalence.gsm8k]\n{table}\n[blocks]"}


def run(tmp_path, candidate=None, *, count=30, **more):
    """Measure two blocks and judge them."""
    said = name_questions(write_questions(tmp_path / "questions.jsonl", count), **more)
    measure(build_request(tmp_path / "out", candidate=candidate, **said), KeptProgress())
    scenario, session = load_results(tmp_path / "out")
    return session, judge(session, scenario, None)


def test_measure__equal_arms_solve_the_same_questions(tmp_path):
    session, verdict = run(tmp_path)
    events = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    asked = [event for event in events if event["event"] == "gsm8k"]

    assert [(event["arm"], event["start"], event["marks"]) for event in asked] == [
        ("base", 1, "1" * 20),
        ("candidate", 2, "1" * 20),
    ]
    assert describe_gsm8k(session.marks, RULES).endswith(
        "GSM8K: 20 of 20 answers of the candidate right, 20 of 20 of the base (limit 2.0 % less)"
    )
    assert verdict.outcome is not Outcome.INVALID
    assert read_record(tmp_path / "out").checks == ("equivalence", "gsm8k", "expert_use")


def test_measure__candidate_that_solves_half(tmp_path):
    _, verdict = run(tmp_path, ArmSpec(env={"FAKE_SLOW": "2.0"}))

    assert verdict.outcome is Outcome.INVALID
    assert any(
        "its answers are wrong, however fast: 10 of 20 GSM8K answers right, the base 20 of 20" in reason
        for reason in verdict.reasons
    )


@pytest.mark.parametrize(
    ("count", "env", "words"),
    [
        (2, {}, "holds no question besides the 2 examples"),
        (30, {"FAKE_SLOW": "9.0"}, "the server answered none of 20 questions"),
    ],
)
def test_measure__nothing_was_answered(tmp_path, count, env, words):
    session, verdict = run(tmp_path, ArmSpec(env=env), count=count)

    assert verdict.outcome is Outcome.INVALID
    assert words in list_problems(session)[0]


def test_measure__evaluation_that_miscounts(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_EVAL", "miscounts")
    session, _ = run(tmp_path)

    assert "the evaluation counts 110.0 % right, its answers say other" in list_problems(session)[0]


def test_measure__evaluation_that_fails(tmp_path):
    """A question without an answer is none of GSM8K's."""
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "why?"}\n' * 9)
    measure(build_request(tmp_path / "out", **name_questions(path)), KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert "GSM8K: SGLang's evaluation failed; its last words are in" in list_problems(session)[0]
    assert "KeyError" in (tmp_path / "out" / "logs" / "gsm8k.log").read_text()


def test_measure__calibration_asks_nothing(tmp_path):
    said = name_questions(write_questions(tmp_path / "questions.jsonl", 30))
    measure(build_request(tmp_path / "out", fields={"purpose": "calibration"}, **said), KeptProgress())

    assert read_record(tmp_path / "out").checks == ("equivalence", "expert_use")
    assert '"gsm8k"' not in (tmp_path / "out" / "events.jsonl").read_text()


def test_measure__another_file_than_the_scenario_names(tmp_path):
    path = write_questions(tmp_path / "questions.jsonl", 30)
    said = name_questions(path)
    path.write_text("{}")

    with pytest.raises(InputError, match=r"equivalence\.gsm8k\.path .*: its SHA-256 is"):
        measure(build_request(tmp_path / "out", **said), KeptProgress())

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('path = "a.jsonl"', "equivalence.gsm8k.sha256: is missing; path needs it"),
        ('sha256 = "abc"', "equivalence.gsm8k.sha256: "),
        ("max_loss = 1.0", "equivalence.gsm8k.max_loss: must be less than 1"),
        ("question = 5", "equivalence.gsm8k.question: no such key; did you mean questions?"),
    ],
)
def test_parse_scenario__gsm8k_that_cannot_be_asked(line, words):
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(build_text(**{"[blocks]": f"[equivalence.gsm8k]\n{line}\n\n[blocks]"}), "toy.toml")

    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("base", "candidate", "words"),
    [
        ("1" * 200, "1" * 200, None),
        # Four of 200 are the limit.
        ("1" * 200, "1" * 196 + "0" * 4, None),
        ("1" * 200, "1" * 193 + "0" * 7, "193 of 200 GSM8K answers right, the base 200 of 200 (limit 2.0 % less)"),
        # Fourteen flips, five more against the candidate than for it: fair ones do that one time in six.
        ("1" * 10 + "0" * 4 + "1" * 186, "0" * 9 + "1" * 191, None),
        ("1" * 10, "1" * 9, "the arms were asked 10 and 9 GSM8K questions"),
        ("1" * 10, "noise", "candidate: it was never asked the GSM8K questions"),
        (None, "1" * 10, "base: it was never asked the GSM8K questions"),
    ],
)
def test_check_gsm8k__losses_and_flips(base, candidate, words):
    marks = {arm: found for arm, found in ((Arm.BASE, base), (Arm.CANDIDATE, candidate)) if found is not None}
    problems = list(check_gsm8k(marks, RULES))

    assert len(problems) == (words is not None)
    assert words is None or words in problems[0]


def test_measure_chance__exact():
    assert measure_chance("1111", "1111") == 1.0
    assert measure_chance("1111", "0000") == 1 / 16
    assert measure_chance("1110", "0001") == 5 / 16


def test_describe_gsm8k__nothing_right_shows_nothing():
    marks = dict.fromkeys(Arm, "000")

    assert describe_gsm8k(marks, RULES).endswith("; with none right a loss could not show")
    assert describe_gsm8k({}, RULES) == ""
