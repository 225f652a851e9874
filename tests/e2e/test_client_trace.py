"""The real load generator sends a trace: the same requests in each window, each at its time, with its lengths and prefixes."""

import contextlib
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.engines import table as engines
from perfgate.scenario.load import Load
from perfgate.serving.client import Client, verify_dataset
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server, wait_all_ready
from perfgate.serving.model.tiny_model import write_tiny_model

# One group: what a real engine measures meanwhile would be this one's noise.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.xdist_group("engine")]

STREAMING = Path(__file__).parents[1] / "fakes" / "streaming"
LINES = [
    {"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [7, 8]},
    {"timestamp": 3000, "input_length": 512, "output_length": 9, "hash_ids": [7]},
    {"timestamp": 3000, "input_length": 40, "output_length": 2},
    {"timestamp": 9000, "input_length": 520, "output_length": 5, "hash_ids": [7, 9]},
]
SLOWDOWN = 0.5
# A request that waited for another one, or for nothing, would be seconds off; a busy machine is not.
TOLERANCE_S = 0.75


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What the server saw in each of two windows, by bench_serving's warm-up request and the trace's."""
    folder = tmp_path_factory.mktemp("trace")
    model = write_tiny_model(folder / "model", "tiny-qwen3-moe")
    trace, record = folder / "trace.jsonl", folder / "asked.jsonl"
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    load = Load(
        num_prompts=len(LINES),
        max_concurrency=len(LINES),
        dataset="trace",
        dataset_path=str(trace),
        dataset_sha256=hashlib.sha256(trace.read_bytes()).hexdigest(),
        trace_slowdown=SLOWDOWN,
        timeout_s=60.0,
    )
    verify_dataset(load)
    real = engines.ENGINES["sglang-cpu"]
    engine = replace(real, module="streaming_server", metrics_path=None, env={**real.env, "PYTHONPATH": str(STREAMING)})
    launch = Launch(
        engine=engine,
        python=sys.executable,
        model=model,
        args=(),
        env={"STREAM_RECORD": str(record)},
        ready_timeout_s=300,
        stop_timeout_s=2,
    )
    windows, outputs = [], []
    with contextlib.ExitStack() as stack:
        reaper = Reaper()
        stack.callback(reaper.close)
        client = stack.enter_context(Client(sys.executable, real, folder / "client.log", reaper))
        server = stack.enter_context(Server(launch, folder / "server.log", reaper))
        wait_all_ready([server], lambda *_: None)
        client.wait_ready_once()
        for _ in range(2):
            record.write_text("")
            outputs.append(json.loads(client.measure(load, model, server.url)))
            windows.append([json.loads(line) for line in record.read_text().splitlines()])
    return windows, outputs, (folder / "client.log").read_text()


def test_measure__sends_each_request_of_a_trace_at_its_time(asked):
    windows, outputs, log = asked

    for _, *sent in windows:
        found = [one["at_s"] - sent[0]["at_s"] for one in sent]
        assert found == pytest.approx([SLOWDOWN * line["timestamp"] / 1e3 for line in LINES], abs=TOLERANCE_S)
    assert [output["request_rate"] for output in outputs] == ["trace", "trace"]
    assert log.count("trace: 4 requests, each at most ") == 2


def test_measure__keeps_lengths_and_shared_prefixes_of_a_trace(asked):
    windows, outputs, _ = asked
    _, *sent = windows[0]
    # Two come at once, in any order.
    first, second, third, fourth = sorted(sent, key=lambda one: (len(one["input_ids"]) == 520, -len(one["input_ids"])))
    prompts = [one["input_ids"] for one in (first, second, third, fourth)]

    assert [len(prompt) for prompt in prompts] == [700, 512, 40, 520]
    assert [one["max_new_tokens"] for one in (first, second, third, fourth)] == [3, 9, 2, 5]
    assert prompts[0][:512] == prompts[1] == prompts[3][:512]
    assert prompts[0][512:520] != prompts[3][512:]
    assert prompts[2] != prompts[1][:40]
    assert outputs[0]["input_lens"] == [line["input_length"] for line in LINES]
    assert outputs[0]["output_lens"] == [line["output_length"] for line in LINES]


def test_measure__sends_the_same_trace_in_each_window(asked):
    one, other = (sorted((sent["input_ids"], sent["max_new_tokens"]) for sent in window) for window in asked[0])

    assert one == other
