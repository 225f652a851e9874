"""Servers that compile, retract and restart while windows run: real processes that leave the traces that SGLang leaves."""

import json
import tomllib

import pytest

from perfgate.core import Arm, Outcome, Role
from perfgate.gate.gate import GateJob, run_gate
from perfgate.results.results import load_results
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import measure
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.validity.pairing import group_starts
from tests.fakes.requests import KeptProgress, build_request, build_text, list_problems, use_fake_engine

RETRACTING = ArmSpec(env={"FAKE_RETRACTS": "all"})
RESTARTING = ArmSpec(env={"FAKE_RESTARTS": "all"})


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


def compiling(tmp_path, windows):
    return ArmSpec(env={"FAKE_COMPILES": windows, "TRITON_CACHE_DIR": str(tmp_path / "triton")})


def list_events(folder, name="other_work"):
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == name]


def list_roles(session, arm):
    return [[window.role.value for window in session.windows if window.start == start] for start in list_starts(session, arm)]


def list_starts(session, arm):
    return [start.number for start in group_starts(session) if start.arm is arm]


def test_measure__warms_up_until_nothing_is_compiled_any_more(tmp_path):
    progress = KeptProgress()
    measure(build_request(tmp_path / "out", candidate=compiling(tmp_path, "1,2,3,4,5")), progress)
    _, session = load_results(tmp_path / "out")
    events = list_events(tmp_path / "out")

    assert list_problems(session) == ()
    assert list_roles(session, Arm.CANDIDATE) == [["warmup"] * 6 + ["measured"] * 3] * 2
    assert list_roles(session, Arm.BASE) == [["warmup"] * 2 + ["measured"] * 3] * 2
    assert [(event["arm"], event["start"], event["index"], event["role"]) for event in events] == [
        ("candidate", start, index, "warmup") for start in list_starts(session, Arm.CANDIDATE) for index in range(5)
    ]
    assert {(event["told"], *event["compiled"]) for event in events} == {("compiled 1 kernel", "fake_moe_kernel")}
    assert sum(line.endswith("s), compiled 1 kernel") for line in progress.lines) == 10


@pytest.mark.parametrize("resident", ["both", "one"])
def test_measure__a_window_that_compiled_is_measured_again(tmp_path, resident):
    progress = KeptProgress()
    changes = {'resident = "both"': f'resident = "{resident}"'}
    measure(build_request(tmp_path / "out", candidate=compiling(tmp_path, "4,6"), **changes), progress)
    _, session = load_results(tmp_path / "out")
    candidates = [start for start in group_starts(session) if start.arm is Arm.CANDIDATE]
    [settled, _] = [start.settle(session_rules(tmp_path / "out")) for start in candidates]

    assert list_problems(session) == ()
    assert list_roles(session, Arm.CANDIDATE) == [["warmup"] * 2 + ["measured"] * 3 + ["rerun"] * 2] * 2
    assert [window.index for window in settled.windows] == [2, 6, 4]
    assert "  candidate window 3 compiled 1 kernel: one more is measured, both are kept" in progress.lines
    assert list_events(tmp_path / "out", "window_stalled") == []


def session_rules(folder):
    scenario, session = load_results(folder)
    return fix_policy(session, scenario, None).limits.rules


@pytest.mark.parametrize(
    ("windows", "most", "words"),
    [
        ("all", 4, "candidate server never only served: the last of 8 warm-up windows compiled 1 kernel (window by window: "),
        ("4,5,6,7,8,9", 4, "candidate server compiled 1 kernel in window 8, after 4 windows were measured again already; "),
        ("4,5,6,7,8,9,10", 5, "candidate server compiled 1 kernel in window 9, after 5 windows were measured again already; "),
    ],
)
def test_run_gate__a_server_that_compiles_on_and_on(tmp_path, windows, most, words):
    text = build_text(**{"calibrate_first = true": "calibrate_first = false", "max_discards = 4": f"max_discards = {most}"})
    arms = {Arm.BASE: ArmSpec(), Arm.CANDIDATE: compiling(tmp_path, windows)}
    verdict = run_gate(
        GateJob(scenario=parse_scenario(text, "test"), text=text, arms=arms, folder=tmp_path / "out"), KeptProgress()
    ).verdict

    assert verdict.outcome is Outcome.INVALID
    assert words in " ".join(verdict.reasons)


@pytest.mark.parametrize(
    ("candidate", "reading", "told", "advice"),
    [
        (RETRACTING, "requests_retracted", "retracted 2 requests", "retraction itself says allow_retraction = true"),
        (RESTARTING, "processes_restarted", "restarted 1 process", "find out from the server's log why its processes end"),
    ],
)
def test_measure__other_work_is_read_from_the_log(tmp_path, candidate, reading, told, advice):
    measure(build_request(tmp_path / "out", candidate=candidate), KeptProgress())
    _, session = load_results(tmp_path / "out")
    [problem] = list_problems(session)

    assert f"candidate server never only served: the last of 8 warm-up windows {told} (" in problem
    assert problem.endswith(advice)
    assert {window.telemetry[reading] for window in session.windows if window.arm is Arm.BASE} == {0.0}


def test_measure__retraction_that_the_scenario_is_about(tmp_path):
    changes = {"schema = 1": "schema = 1\nallow_retraction = true"}
    measure(build_request(tmp_path / "out", candidate=RETRACTING, **changes), KeptProgress())
    scenario, session = load_results(tmp_path / "out")

    assert scenario.allow_retraction
    assert tomllib.loads((tmp_path / "out" / "scenario.toml").read_text())["allow_retraction"]
    assert list_problems(session) == ()
    assert Role.RERUN not in {window.role for window in session.windows}
    assert len(list_events(tmp_path / "out")) == sum(window.arm is Arm.CANDIDATE for window in session.windows)
