"""Whatever engines, load generators and machines do: the verdict is INVALID or right, and no process is left."""

import errno
import json
import resource
import signal
import socket
import time
from types import SimpleNamespace

import pytest

from perfgate.core import Arm, Outcome, Role
from perfgate.errors import ClientError, EvidenceError
from perfgate.gate.gate import GateJob, run_gate
from perfgate.results.results import load_results
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.launch import HOST
from perfgate.serving.engine.server import Server
from perfgate.serving.window import explain_error
from tests.e2e.commands import find_leftovers, wait_for_leftovers
from tests.fakes.commands import read_lines, run_perfgate, start_perfgate, wait_for_lines
from tests.fakes.requests import KeptProgress, build_fake_engine, build_text, list_problems, use_fake_engine, use_fake_processes

STOP = {"stop_timeout_s = 2.0": "stop_timeout_s = 0.2"}


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


def run_job(tmp_path, candidate=None, **changes):
    """Run the gate without calibration; return its verdict and what it left on disk."""
    text = build_text(**{"calibrate_first = true": "calibrate_first = false", "looks = [2, 3, 4, 6]": "looks = [2]", **changes})
    job = GateJob(
        scenario=parse_scenario(text, "test"),
        text=text,
        arms={Arm.BASE: ArmSpec(), Arm.CANDIDATE: candidate or ArmSpec()},
        folder=tmp_path / "out",
    )
    verdict = run_gate(job, KeptProgress()).verdict
    _, session = load_results(tmp_path / "out")
    return verdict, session


@pytest.fixture
def processes(monkeypatch, tmp_path):
    use_fake_processes(monkeypatch, tmp_path)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("behaviour", ["deaf", "child"])
def test_run_gate__an_engine_that_will_not_end(tmp_path, behaviour):
    verdict, session = run_job(tmp_path, ArmSpec(env={"FAKE_ENGINE": behaviour, "FAKE_SLOW": "3.0"}), **STOP)

    assert list_problems(session) == ()
    assert verdict.outcome is Outcome.REGRESSION
    assert find_leftovers(tmp_path / "state") == []


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("die", "ended by itself with exit code 7"),
        ("die_later", "the scheduler hit an exception"),
        ("never_ready", "server not ready after 1 s"),
        ("gpu_full:4", "it says: Traceback (most recent call last): | "),
    ],
)
def test_run_gate__an_engine_that_does_not_serve(tmp_path, behaviour, words):
    hasty = {"ready_timeout_s = 300.0": "ready_timeout_s = 1.0"} if behaviour == "never_ready" else {}
    verdict, session = run_job(tmp_path, ArmSpec(env={"FAKE_ENGINE": behaviour}), **hasty)

    assert verdict.outcome is Outcome.INVALID
    assert words in " ".join(verdict.reasons)
    assert session.is_complete
    assert find_leftovers(tmp_path / "state") == []


def test_explain_error__a_server_that_lives_on(tmp_path):
    log = tmp_path / "server.log"
    log.write_text("ValueError: at the start\nRuntimeError: in the window\n")
    server = Server(SimpleNamespace(engine=build_fake_engine()), log, None)
    error = ClientError("no answer")

    assert str(explain_error(error, server, {log: 25})) == "no answer; the server says: RuntimeError: in the window"
    assert explain_error(error, server, {log: log.stat().st_size}) is error


def test_run_gate__a_verdict_that_cannot_be_written(tmp_path, monkeypatch):
    """What ends a gate without a verdict must not look like one: an unforeseen error exits with a REGRESSION's code."""

    def write(path, _content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("perfgate.gate.reports.write_atomically", write)

    with pytest.raises(
        EvidenceError, match=r"stopped, No space left on device \(.*report.md\); correct that, then continue with --r"
    ):
        run_job(tmp_path)


def test_run_gate__an_engine_that_loses_its_port(tmp_path, monkeypatch):
    """Another process binds the port after it was found free; the engine says so and ends."""
    with socket.socket() as rival:
        rival.bind((HOST, 0))
        rival.listen()
        monkeypatch.setattr("perfgate.serving.engine.server.find_free_port", lambda: rival.getsockname()[1])
        verdict, _ = run_job(tmp_path)

    assert verdict.outcome is Outcome.INVALID
    assert "Address already in use" in " ".join(verdict.reasons)
    assert find_leftovers(tmp_path / "state") == []


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("drop_one", "99 of 100 requests completed"),
        ("garbage", "the load generator's output is no result"),
        ("fail_third", "the load generator failed: bench_serving exited with 1"),
        ("hang", "the load generator gave no answer within 1 s"),
    ],
)
def test_run_gate__a_load_generator_that_fails(tmp_path, monkeypatch, behaviour, words):
    monkeypatch.setenv("FAKE_BENCH", behaviour)
    changes = {"timeout_s = 120.0": "timeout_s = 1.0"} if behaviour == "hang" else {}
    verdict, session = run_job(tmp_path, **{"num_prompts = 304": "num_prompts = 100"}, **changes)

    assert verdict.outcome is Outcome.INVALID
    assert words in " ".join(verdict.reasons)
    assert session.is_complete
    assert find_leftovers(tmp_path / "state") == []


def test_run_gate__answers_that_are_all_empty_end_the_session_in_its_first_window(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_BENCH", "empty")
    verdict, session = run_job(tmp_path, **{"num_prompts = 304": "num_prompts = 100"})

    assert verdict.outcome is Outcome.INVALID
    assert "answered no request of window 0: 100 of 100 requests never saw a first token" in " ".join(verdict.reasons)
    assert len(session.windows) == 1


def test_run_gate__an_engine_that_stalls_once_is_not_slow(tmp_path):
    verdict, session = run_job(tmp_path, ArmSpec(env={"FAKE_ENGINE": "stall:4"}))

    assert [window.role for window in session.windows].count(Role.RERUN) == 2
    assert verdict.outcome is not Outcome.REGRESSION
    assert [warning for warning in verdict.warnings if "a window stalled and was measured again" in warning] != []


def test_run_gate__one_token_of_a_session_stalls_for_ten_seconds(tmp_path):
    """The engine really hangs for those 10 s, and the window's numbers are what that wait makes of them."""
    env = {"FAKE_ENGINE": "stall:4", "FAKE_STALL_S": "10", "FAKE_STALL_ONCE": str(tmp_path / "stalled")}
    verdict, session = run_job(tmp_path, ArmSpec(env=env))
    [rerun] = [window for window in session.windows if window.role is Role.RERUN]
    [stalled] = [window for window in session.windows if window.run.values["max_itl_ms"] >= 10_000]

    assert list_problems(session) == ()
    assert (stalled.arm, stalled.block, stalled.role, stalled.index) == (Arm.CANDIDATE, 1, Role.MEASURED, 3)
    assert stalled.ended_s - stalled.begun_s >= 10
    assert (rerun.arm, rerun.start) == (stalled.arm, stalled.start)
    assert stalled.run.values["output_tok_per_s"] <= stalled.run.output_tokens / 10
    assert rerun.run.values["output_tok_per_s"] > stalled.run.values["output_tok_per_s"]
    assert verdict.outcome is not Outcome.REGRESSION
    assert verdict.warnings.count("block 1, candidate: a window stalled and was measured again") == 1


@pytest.mark.usefixtures("processes")
def test_gate__stopped_while_both_servers_load(tmp_path):
    """Each is waited for by a thread of its own, and none of them may keep the gate from its end."""
    path, folder, state = tmp_path / "scenario.toml", tmp_path / "out", tmp_path / "state"
    path.write_text(build_text(**{"calibrate_first = true": "calibrate_first = false"}))
    process = start_perfgate(state, "gate", path, "--out", folder, FAKE_ENGINE="never_ready")
    events = folder / "events.jsonl"
    while not events.exists() or events.read_text().count('"server_started"') < 2:
        time.sleep(0.05)
    time.sleep(0.5)  # by then both are asked
    process.send_signal(signal.SIGTERM)
    # The engine would be waited for five minutes.
    _, err = process.communicate(timeout=300)

    assert process.returncode == 130
    assert "stopped by SIGTERM" in err
    assert "Traceback" not in err
    assert [line["event"] for line in read_lines(folder, "events.jsonl")].count("server_started") == 2
    assert wait_for_leftovers(state) == []


@pytest.mark.usefixtures("processes")
def test_run__stopped_in_the_middle_keeps_what_was_measured(tmp_path):
    """One server at a time: the other one need not have been started."""
    path, folder, state = tmp_path / "scenario.toml", tmp_path / "out", tmp_path / "state"
    path.write_text(build_text(**{'resident = "both"': 'resident = "one"', **STOP}))
    process = start_perfgate(state, "run", path, "--out", folder)
    windows = folder / "windows.jsonl"
    # A line during whose write the run is stopped is taken back.
    while not windows.exists() or windows.read_bytes().count(b"\n") < 2:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    judged, out, _ = run_perfgate(state, "check", folder)

    assert process.returncode == 130, err
    assert "what was measured stays" in err
    assert len(read_lines(folder, "windows.jsonl")) >= 1
    assert judged == 3, out
    assert wait_for_leftovers(state) == []


@pytest.mark.usefixtures("processes")
def test_gate__a_disk_that_is_full_costs_no_line(tmp_path):
    """The gate's own files may grow no further: what a full disk does, at an instant of our choice."""
    path, folder, state = tmp_path / "scenario.toml", tmp_path / "out", tmp_path / "state"
    path.write_text(build_text(**{"calibrate_first = true": "calibrate_first = false", "looks = [2, 3, 4, 6]": "looks = [2]"}))
    command = ("gate", path, "--out", folder, "--candidate-env", "FAKE_SLOW=2.0")
    process = start_perfgate(state, *command)
    wait_for_lines(process, folder, 12)
    limit = (folder / "windows.jsonl").stat().st_size + 10
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    _, err = process.communicate()
    left = wait_for_leftovers(state)
    whole = [json.loads(line) for line in (folder / "windows.jsonl").read_text().splitlines()]
    resumed = run_perfgate(state, *command, "--resume")
    _, session = load_results(folder)

    assert process.returncode == 2
    assert "stopped, File too large" in err.splitlines()[-1]
    assert "continue with --resume" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert left == []
    assert resumed[0] == 1, resumed[1] + resumed[2]
    assert len(session.superseded) == len(whole) > 0
    assert list_problems(session) == ()
