"""The client against bench_serving stand-ins: real worker processes over the real line protocol."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from perfgate.errors import ClientError
from perfgate.scenario import Load
from perfgate.serving.client import Client, build_argv
from perfgate.serving.engines import Engine
from perfgate.serving.reaper import Reaper

BENCH = """
import argparse, sys, time
def get_tokenizer(name):
    return name
def cli_main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-file")
    parser.add_argument("--num-prompts", type=int)
    args, _ = parser.parse_known_args()
    print("noise on standard output")
    {body}
"""
LOAD = Load(num_prompts=3, input_len=4, output_len=5, max_concurrency=1, timeout_s=20.0)


@pytest.fixture
def build_client(tmp_path):
    reaper = Reaper()

    def build(body):
        package = tmp_path / "path" / "sglang" / "benchmark"
        package.mkdir(parents=True)
        for folder in (package, package.parent):
            (folder / "__init__.py").touch()
        (package / "serving.py").write_text(BENCH.format(body=body))
        engine = Engine(name="fake", package="fake", module="fake", env={"PYTHONPATH": str(tmp_path / "path")})
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
