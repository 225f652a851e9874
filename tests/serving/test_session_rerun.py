"""A stalled window is measured once more, by the rule that the judge holds it against."""

import json

import pytest

from perfgate.core import Arm, Role
from perfgate.gate.gate import GateJob, run_gate
from perfgate.results.results import load_results
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import measure
from perfgate.verdict.validity.pairing import group_starts
from tests.fakes.requests import KeptProgress, build_request, build_text, list_problems, use_fake_engine

# Two warm-up windows come first, so that the fourth is the second measured one.
STALLS = ArmSpec(env={"FAKE_ENGINE": "stall:4"})


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


def list_events(folder, name):
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == name]


@pytest.mark.parametrize("resident", ["both", "one"])
def test_measure__a_stalled_window_is_measured_once_more(tmp_path, resident):
    progress = KeptProgress()
    changes = {'resident = "both"': f'resident = "{resident}"'}
    measure(build_request(tmp_path / "out", candidate=STALLS, **changes), progress)
    starts = group_starts(load_results(tmp_path / "out")[1])
    events = list_events(tmp_path / "out", "window_stalled")

    assert [len(start.reruns) for start in starts if start.arm is Arm.CANDIDATE] == [1, 1]
    assert [len(start.reruns) for start in starts if start.arm is Arm.BASE] == [0, 0]
    assert [(event["arm"], event["block"], event["index"]) for event in events] == [("candidate", 1, 3), ("candidate", 2, 3)]
    assert "  candidate window 3 stalled: one more is measured, both are kept" in progress.lines


def test_measure__noise_that_explains_the_stall_asks_for_no_rerun(tmp_path):
    noise = dict.fromkeys(("output_tok_per_s", "mean_itl_ms", "mean_e2e_ms"), 1.0)
    measure(build_request(tmp_path / "out", candidate=STALLS, fields={"fix_noise": lambda _: noise}), KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert list_problems(session) == ()
    assert Role.RERUN not in {window.role for window in session.windows}


def test_run_gate__driver_and_judge_agree_on_what_stalled(tmp_path):
    text = build_text()
    job = GateJob(
        scenario=parse_scenario(text, "test"),
        text=text,
        arms={Arm.BASE: ArmSpec(), Arm.CANDIDATE: STALLS},
        folder=tmp_path / "out",
    )
    result = run_gate(job, KeptProgress())

    assert "although no window stalled" not in " ".join(result.verdict.reasons)
    assert "block 1, candidate: a window stalled and was measured again" in result.verdict.warnings
    assert list((tmp_path / "out" / "baselines").glob("*/cpu-moe.json"))
