"""The client against bench_serving stand-ins: real worker processes over the real line protocol."""

import hashlib
import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from perfgate.engines.sglang import SGLANG
from perfgate.errors import ClientError, InputError
from perfgate.scenario.load import Load
from perfgate.serving.client import Client, build_argv, verify_dataset
from perfgate.serving.client_worker import SHORT_REST_S
from perfgate.serving.engine.reaper import Reaper

BENCH = """
import argparse, json, random, sys, time
import numpy
draws = 0
TIMED = []
class WORDS:
    vocab_size = 50
async def get_request(requests, rate, use_trace_timestamps=False):
    TIMED.append(use_trace_timestamps)
    for request in requests:
        yield request
def get_tokenizer(name):
    return [name]
def get_dataset(args, tokenizer, model):
    global draws
    draws += 1
    return [random.random(), numpy.random.rand(), args.num_prompts, *tokenizer]
def cli_main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-file")
    parser.add_argument("--num-prompts", type=int)
    parser.add_argument("--base-url")
    args, _ = parser.parse_known_args()
    print("noise on standard output")
    {body}
"""
DRAW = """
    random.seed(1), numpy.random.seed(1)
    requests = get_dataset(args, get_tokenizer("words"), "model")
    told = [list(requests), random.random(), numpy.random.rand(), draws]
    requests.clear()
    open(args.output_file, "w").write(json.dumps(told))
"""
LOAD = Load(num_prompts=3, input_len=4, output_len=5, max_concurrency=1, timeout_s=120.0)


@pytest.fixture
def build_client(tmp_path):
    reaper = Reaper()

    def build(body):
        package = tmp_path / "path" / "sglang" / "benchmark"
        package.mkdir(parents=True)
        for folder in (package, package.parent):
            (folder / "__init__.py").touch()
        (package / "serving.py").write_text(BENCH.format(body=body))
        engine = replace(
            SGLANG, name="fake", package="fake", module="fake", args=(), env={"PYTHONPATH": str(tmp_path / "path")}
        )
        return Client(sys.executable, engine, tmp_path / "client.log", reaper)

    yield build
    reaper.close()


def test_measure__returns_what_bench_serving_wrote(build_client, tmp_path):
    with build_client("open(args.output_file, 'w').write(f'{args.num_prompts}')") as client:
        client.wait_ready_once()
        client.wait_ready_once()
        first = client.measure(LOAD, tmp_path, "http://127.0.0.1:1")
        second = client.measure(LOAD, tmp_path, "http://127.0.0.1:1")

    assert (first, second) == (b"3", b"3")
    assert "noise on standard output" in (tmp_path / "client.log").read_text()


def test_measure__sends_the_same_requests_at_the_same_times_and_draws_them_once(build_client, tmp_path):
    other = replace(LOAD, num_prompts=4)
    with build_client(DRAW.strip()) as client:
        client.wait_ready_once()
        first, second, third, fourth = (
            json.loads(client.measure(load, tmp_path, f"http://127.0.0.1:{port}"))
            for port, load in enumerate([LOAD, LOAD, other, LOAD], start=1)
        )

    assert first[0][2:] == [3, "words"]
    assert (first, first) == ([*second[:3], 1], [*fourth[:3], 1])
    assert (third[0][2], third[1:3]) == (4, first[1:3])
    assert [told[3] for told in (first, second, third, fourth)] == [1, 1, 2, 2]


def test_measure__rests_briefly_before_the_load(build_client, tmp_path):
    # What sleeps in the end is asked for how long, not a clock.
    body = "import time as real\n    asked, real.sleep = [], lambda length: asked.append(length)\n    "
    body += 'time.sleep(1.0), time.sleep(0.4)\n    open(args.output_file, "w").write(json.dumps(asked))'
    with build_client(body) as client:
        client.wait_ready_once()
        asked = json.loads(client.measure(LOAD, tmp_path, "http://127.0.0.1:1"))

    assert asked == [SHORT_REST_S, 0.4]


# Bench_serving's own sender, and a window that tells what was sent.
TRACED = """
    import asyncio, types
    module = sys.modules[__name__]
    args.use_trace_timestamps, args.dataset_path = True, sys.argv[sys.argv.index("--dataset-path") + 1]
    args.seed = int(sys.argv[sys.argv.index("--seed") + 1])
    module.DatasetRow = types.SimpleNamespace
    rows = get_dataset(args, WORDS, "model")
    async def gather():
        return [row async for row in module.get_request(rows, 1.0)]
    told = {"rows": [vars(row) for row in asyncio.run(gather())], "timed": TIMED == [True], "draws": draws}
    TIMED.clear()
    open(args.output_file, "w").write(json.dumps(told))
"""


def test_measure__a_trace_has_its_lengths_and_shared_blocks(build_client, tmp_path):
    lines = [
        {"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [7, 8]},
        {"timestamp": 6, "input_length": 20, "output_length": 2, "hash_ids": [7]},
        {"timestamp": 9, "input_length": 20, "output_length": 1, "hash_ids": []},
    ]
    trace = tmp_path / "mine.jsonl"
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    load = Load(num_prompts=3, max_concurrency=3, dataset="trace", dataset_path=str(trace), dataset_sha256="0" * 64)
    with build_client(TRACED) as client:
        client.wait_ready_once()
        first, again, other = (
            json.loads(client.measure(one, tmp_path, "http://127.0.0.1:1")) for one in (load, load, replace(load, seed=2))
        )

    prompts, sent = [one["prompt"] for one in first["rows"]], [one["timestamp"] for one in first["rows"]]
    assert [(one["prompt_len"], len(one["prompt"]), one["output_len"]) for one in first["rows"]] == [
        (600, 600, 3),
        (20, 20, 2),
        (20, 20, 1),
    ]
    assert (prompts[0][:20], sent, first["timed"]) == (prompts[1], [0.0, 1.0, 4.0], True)
    assert prompts[2] != prompts[1]
    assert (again["rows"], again["draws"]) == (first["rows"], 0)
    assert other["rows"] != first["rows"]
    assert "trace: 3 requests, each at most" in (tmp_path / "client.log").read_text()


# A release whose command line is there only where it is run as a program.
PROGRAM = """
import argparse, os, sys
def run_benchmark(args):
    if args.num_prompts == 13:
        sys.exit(4)
    open(args.output_file, "w").write(str(os.getpid()))
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-file")
    parser.add_argument("--num-prompts", type=int)
    run_benchmark(parser.parse_known_args()[0])
"""


def test_measure__a_process_for_each_window_where_there_is_no_other_way(build_client, tmp_path):
    client = build_client("pass")
    (tmp_path / "path" / "sglang" / "benchmark" / "serving.py").write_text(PROGRAM)
    with client:
        client.wait_ready_once()
        pids = {client.measure(LOAD, tmp_path, "http://127.0.0.1:1") for _ in range(2)}

        with pytest.raises(ClientError, match="exited with 4"):
            client.measure(replace(LOAD, num_prompts=13), tmp_path, "http://127.0.0.1:1")

    assert len(pids) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit(1)", "exited with 1"),
        ("raise ValueError('bad')", "ValueError: bad"),
        ("pass", "wrote no result"),
        ("import os; os._exit(3)", "has died"),
    ],
)
def test_measure__bench_serving_fails(build_client, tmp_path, body, message):
    with build_client(body) as client:
        client.wait_ready_once()

        with pytest.raises(ClientError, match=message):
            client.measure(LOAD, tmp_path, "http://127.0.0.1:1")


def test_measure__no_answer_in_time(build_client, tmp_path):
    load = Load(num_prompts=3, input_len=4, output_len=5, max_concurrency=1, timeout_s=0.5)
    with build_client("time.sleep(60)") as client:
        client.wait_ready_once()

        with pytest.raises(ClientError, match=r"no answer within \d s"):
            client.measure(load, tmp_path, "http://127.0.0.1:1")


def test_measure__worker_was_killed(build_client, tmp_path):
    """What it never read is still to be written when its pipe is closed."""
    with build_client("pass") as client:
        client.wait_ready_once()
        process = client._require()
        process.kill()
        process.wait()

        with pytest.raises(ClientError, match="has died"):
            client.measure(LOAD, tmp_path, "http://127.0.0.1:1")


def test_wait_ready_once__bench_serving_cannot_be_imported(build_client, tmp_path):
    client = build_client("pass")
    (tmp_path / "path" / "sglang" / "benchmark" / "serving.py").write_text("import nothing_of_that_name")

    with client, pytest.raises(ClientError, match="has died"):
        client.wait_ready_once()


def test_build_argv__passes_the_seed_and_the_exact_lengths():
    argv = build_argv(LOAD, Path("/m"), "http://h:1", Path("/o"))
    options = dict(pairwise(argv))

    assert options["--seed"] == "1"
    assert options["--random-range-ratio"] == "1.0"
    assert options["--request-rate"] == "inf"
    assert options["--output-file"] == "/o"


def test_build_argv__of_a_data_set():
    load = Load(
        num_prompts=3,
        max_concurrency=1,
        dataset="sharegpt",
        dataset_path="chat.json",
        dataset_sha256="0" * 64,
        output_len=7,
        warmup_requests=0,
        args=("--apply-chat-template",),
    )
    argv = build_argv(load, Path("/m"), "http://h:1", Path("/o"))

    assert dict(pairwise(argv))["--sharegpt-output-len"] == "7"
    assert dict(pairwise(argv))["--dataset-path"] == "chat.json"
    assert dict(pairwise(argv))["--warmup-requests"] == "0"
    assert argv[-1] == "--apply-chat-template"
    assert not any(word.startswith("--random") for word in argv)


def test_build_argv__of_a_trace():
    load = Load(num_prompts=3, max_concurrency=3, dataset="trace", dataset_path="t.jsonl", dataset_sha256="0" * 64)
    argv = build_argv(load, Path("/m"), "http://h:1", Path("/o"))

    assert dict(pairwise(argv))["--dataset-name"] == "custom"
    assert "--use-trace-timestamps" in argv


def test_verify_dataset__a_trace_of_wrong_lines(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_bytes(b'{"timestamp": 0}\n')
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    load = Load(num_prompts=1, max_concurrency=1, dataset="trace", dataset_path=str(file), dataset_sha256=digest)

    with pytest.raises(InputError, match=r"trace\.jsonl:1: input_length: Field required"):
        verify_dataset(load)


def test_verify_dataset__the_file_that_the_scenario_names(tmp_path):
    file = tmp_path / "chat.json"
    file.write_bytes(b"[]")
    right = hashlib.sha256(b"[]").hexdigest()
    load = Load(num_prompts=3, max_concurrency=1, dataset="sharegpt", dataset_path=str(file), dataset_sha256=right)
    verify_dataset(load)
    verify_dataset(LOAD)

    with pytest.raises(InputError, match=r"chat\.json: its SHA-256 is"):
        verify_dataset(replace(load, dataset_sha256="0" * 64))
    with pytest.raises(InputError, match="absent: cannot be read"):
        verify_dataset(replace(load, dataset_path=str(tmp_path / "absent")))
