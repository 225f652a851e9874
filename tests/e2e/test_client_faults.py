"""The real load generator against servers that fail one request of a hundred: what perfgate says of such windows."""

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.core import Arm, Outcome, Remark, RemarkKind, Role
from perfgate.engines import table as engines
from perfgate.gate.gate import GateJob, run_gate
from perfgate.readers.bench_serving import read_window
from perfgate.results.results import load_results
from perfgate.scenario.load import Load
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.client import Client
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server, wait_all_ready
from perfgate.serving.model.tiny_model import write_tiny_model
from perfgate.stats.steady import SENTINEL_METRICS, find_stalled
from perfgate.verdict.validity.pairing import read_run_badness
from tests.fakes.requests import KeptProgress, build_text, list_problems

# One group: what a real engine measures meanwhile would be this one's noise.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.xdist_group("engine")]

STREAMING = Path(__file__).parents[1] / "fakes" / "streaming"
REQUESTS = 100
STALL_S = 10.0
# Longer than what a busy machine does to a token, and shorter than a stall of which it hides a part.
IS_STALL_MS = 1000 * STALL_S / 2
LOAD = Load(
    num_prompts=REQUESTS,
    input_len=16,
    output_len=16,
    max_concurrency=16,
    timeout_s=60.0,
    args=("--cache-report",),
    warmup_requests=2,
)
TOLERANCE = 0.5  # as in the scenario cpu-moe


def build_engine():
    """SGLang's adapter in front of the small server; the load generator stays the installed SGLang's."""
    real = engines.ENGINES["sglang-cpu"]
    return replace(real, module="streaming_server", metrics_path=None, env={**real.env, "PYTHONPATH": str(STREAMING)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One window of each server, by the server's fault; "" is a server that answers all."""
    folder = tmp_path_factory.mktemp("windows")
    model = write_tiny_model(folder / "model", "tiny-qwen3-moe")
    with contextlib.ExitStack() as stack:
        reaper = Reaper()
        stack.callback(reaper.close)
        client = stack.enter_context(Client(sys.executable, engines.ENGINES["sglang-cpu"], folder / "client.log", reaper))
        servers = {
            fault: stack.enter_context(Server(build_launch(model, fault), folder / f"{fault}.log", reaper))
            for fault in ("", "drop", "garbage", "stall")
        }
        wait_all_ready(list(servers.values()), lambda *_: None)
        client.wait_ready_once()
        for fault, server in servers.items():
            (folder / f"{fault}.jsonl").write_bytes(client.measure(LOAD, server.launch.model, server.url))
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    """The windows as perfgate reads them."""
    return {fault: read_window(folder / f"{fault}.jsonl") for fault in ("", "drop", "garbage", "stall")}


def build_launch(model, fault):
    env = {"STREAM_FAULT": fault, "STREAM_STALL_S": str(STALL_S)}
    return Launch(
        engine=build_engine(), python=sys.executable, model=model, args=(), env=env, ready_timeout_s=300, stop_timeout_s=2
    )


def test_build_argv__is_understood_by_the_installed_engine(folder):
    told = json.loads((folder / ".jsonl").read_text())

    assert [told[name] for name in ("random_input_len", "random_output_len", "max_concurrency")] == [16, 16, 16]
    assert len(told["cached_tokens"]) == REQUESTS
    assert "Starting warmup with 2 sequences" in (folder / "client.log").read_text()


def test_measure__a_server_that_answers_all(runs):
    control = runs[""]

    assert control.problems == ()
    assert control.completed == control.requested == REQUESTS
    assert control.values["max_itl_ms"] < IS_STALL_MS


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("drop", "aiohttp.client_exceptions.ClientPayloadError: Response payload is not completed"),
        ("garbage", "orjson.JSONDecodeError: unexpected character, expected a JSON value: line 1 column 1"),
    ],
)
def test_measure__one_request_of_a_hundred_fails(runs, fault, error):
    run = runs[fault]

    assert run.completed == REQUESTS - 1
    assert Remark(kind=RemarkKind.INCOMPLETE, found=REQUESTS - 1, due=REQUESTS) in run.problems
    (failed,) = (problem for problem in run.problems if problem.kind is RemarkKind.FAILED)
    assert (failed.found, failed.due) == (1, REQUESTS)
    assert failed.detail.startswith(error)


def test_measure__one_token_stalls_for_ten_seconds(runs):
    stalled = runs["stall"]

    assert stalled.problems == ()
    assert stalled.completed == REQUESTS
    # A busy client reads the token before the stall late, and sees a shorter one. A whole request spans all of it.
    assert stalled.values["max_itl_ms"] >= IS_STALL_MS
    assert stalled.duration_s >= STALL_S
    # The window lasts as long as its last request, and each of a hundred carries a hundredth of the stall in the mean.
    assert stalled.values["output_tok_per_s"] <= stalled.output_tokens / STALL_S
    assert stalled.values["mean_e2e_ms"] >= 1000 * STALL_S / REQUESTS
    # One token of 1600 is no median, however slow the others are.
    assert stalled.values["median_itl_ms"] < IS_STALL_MS


def test_find_stalled__the_window_that_stalled_and_no_other(runs):
    control, stalled = (read_run_badness(runs[fault], SENTINEL_METRICS) for fault in ("", "stall"))

    assert find_stalled([control, stalled, control], TOLERANCE, {}) == 1
    assert find_stalled([control, control, control], TOLERANCE, {}) is None


@pytest.mark.long
def test_run_gate__a_session_whose_server_stalls_once(tmp_path, monkeypatch):
    """A whole session of the real load generator: 20 windows, in one of which a token of one request takes 10 s."""
    monkeypatch.setitem(engines.ENGINES, "sglang-cpu", build_engine())
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    changes = {"calibrate_first = true": "calibrate_first = false", "looks = [2, 3, 4, 6]": "looks = [2]"}
    text = build_text(**changes, **{"output_len = 6": "output_len = 16"}).replace(
        "num_prompts = 8", f"num_prompts = {REQUESTS}"
    )
    text += "[equivalence]\nenabled = false\n"
    # In the fourth window: each has one request of bench_serving's own.
    env = {"STREAM_FAULT": "stall", "STREAM_AT": str(3 * (REQUESTS + 1) + 50), "STREAM_STALL_S": str(STALL_S)}
    arms = {Arm.BASE: ArmSpec(), Arm.CANDIDATE: ArmSpec(env=env)}
    job = GateJob(scenario=parse_scenario(text, "test"), text=text, arms=arms, folder=tmp_path / "out", profile="never")
    verdict = run_gate(job, KeptProgress()).verdict
    _, session = load_results(tmp_path / "out")
    stalled = [window for window in session.windows if window.run.values["max_itl_ms"] >= IS_STALL_MS]

    assert list_problems(session) == ()
    # Each block has a fresh server, and each of them stalls once.
    assert [(window.arm, window.block, window.role) for window in stalled] == [
        (Arm.CANDIDATE, block, Role.MEASURED) for block in (1, 2)
    ]
    assert [window.role for window in session.windows].count(Role.RERUN) == len(stalled)
    assert verdict.outcome is not Outcome.REGRESSION, verdict.reasons
    assert sum("a window stalled and was measured again" in warning for warning in verdict.warnings) == len(stalled)
