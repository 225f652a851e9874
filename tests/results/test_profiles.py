"""Profiles of a living server, a real process with the fake profiler, kept in and read from a result folder."""

import json
import sys
from dataclasses import replace

import pytest

from perfgate.core import Arm
from perfgate.engines.sglang import SGLANG
from perfgate.errors import EvidenceError, ServerError
from perfgate.results.profiling.profiles import PROFILES_FILE, Profile, attribute_profiles, load_profiles
from perfgate.scenario.schema import Load
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.profiling import profile_server
from tests.fakes.requests import ENGINE_MODULE, FAKE_PATH

LOAD = Load(num_prompts=8, input_len=16, output_len=12, max_concurrency=4)


@pytest.fixture
def reaper():
    reaper = Reaper()
    yield reaper
    reaper.close()


def profile(folder, reaper, *, arm=Arm.BASE, start=1, load=LOAD, **env):
    """Profile a fresh fake server into `folder`."""
    (folder / "config.json").write_text('{"vocab_size": 4096}')
    engine = replace(SGLANG, name="fake", package="fake", module=ENGINE_MODULE, args=(), env=FAKE_PATH)
    launch = Launch(
        engine=engine, python=sys.executable, model=folder, args=(), env=env, ready_timeout_s=120.0, stop_timeout_s=0.5
    )
    with Server(launch, folder / "server.log", reaper) as server:
        server.wait_ready()
        return profile_server(server, load, folder, Profile(arm=arm, block=1, start=start))


def test_profile_server__keeps_the_trace_of_one_batch(tmp_path, reaper):
    profile(tmp_path, reaper)
    [found] = load_profiles(tmp_path)
    trace = found.read()

    assert (found.arm, found.steps, found.prompts) == (Arm.BASE, 12, 4)
    assert [path.relative_to(tmp_path).as_posix() for path in found.traces] == [
        "profiles/start-01/1700000000.5-TP-0.trace.json.gz"
    ]
    assert trace.spent["fused_moe_kernel"].count == found.steps
    assert trace.total_us == 12 * 56


def test_attribute_profiles__kernel_that_got_slower_and_one_that_is_gone(tmp_path, reaper):
    caches = {name: tmp_path / name for name in ("base", "candidate")}
    for name, code in (("base", b"loop"), ("candidate", b"another loop")):
        (caches[name] / "HASH").mkdir(parents=True)
        (caches[name] / "HASH" / "fused_moe_kernel.cubin").write_bytes(code)
        (caches[name] / "HASH" / "attention.cubin").write_bytes(b"attention")
    profile(tmp_path, reaper, TRITON_CACHE_DIR=str(caches["base"]))
    before = attribute_profiles(load_profiles(tmp_path))
    slow = {"FAKE_KERNELS": "fused_moe_kernel:48,attention:20", "TRITON_CACHE_DIR": str(caches["candidate"])}
    profile(tmp_path, reaper, arm=Arm.CANDIDATE, start=2, **slow)
    found = attribute_profiles(load_profiles(tmp_path))

    assert before is None
    assert [(part.name, part.difference_us) for part in found.parts] == [
        ("fused_moe_kernel", pytest.approx(18.0)),
        ("moe_sum_reduce", pytest.approx(-6.0)),
        ("attention", pytest.approx(0.0)),
    ]
    assert [part.share for part in found.parts] == pytest.approx([0.75, -0.25, 0.0])
    assert [part.code for part in found.parts] == ["other", "", "same"]


def test_profile_server__long_answers_are_cut_to_a_small_window(tmp_path, reaper):
    long = Load(num_prompts=8, input_len=16, output_len=256, max_concurrency=4)

    assert profile(tmp_path, reaper, load=long).steps == 32


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("refuse", "server refused to start the profiler with HTTP 500"),
        ("traceless", "the server's profiler wrote no trace into"),
    ],
)
def test_profile_server__no_trace(tmp_path, reaper, fault, words):
    with pytest.raises(ServerError, match=words):
        profile(tmp_path, reaper, FAKE_PROFILE=fault)

    assert load_profiles(tmp_path) == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [("truncated", "truncated or no trace"), ("empty", "nothing ran while"), ("page", "not valid JSON")],
)
def test_profile_read__trace_that_is_none(tmp_path, reaper, fault, words):
    profile(tmp_path, reaper, FAKE_PROFILE=fault)
    [found] = load_profiles(tmp_path)

    with pytest.raises(EvidenceError, match=words):
        found.read()


def test_load_profiles__changed_after_the_run(tmp_path, reaper):
    [trace] = profile(tmp_path, reaper).traces
    trace.write_bytes(trace.read_bytes() + b" ")

    with pytest.raises(EvidenceError, match="does not match its digest"):
        load_profiles(tmp_path)
    trace.unlink()
    with pytest.raises(EvidenceError, match="is missing although the index names it"):
        load_profiles(tmp_path)


def test_load_profiles__no_path_out_of_the_folder(tmp_path, reaper):
    profile(tmp_path, reaper)
    index = tmp_path / PROFILES_FILE
    line = json.loads(index.read_text())
    line["traces"][0]["file"] = "profiles/../../etc/passwd"
    index.write_text(json.dumps(line) + "\n")

    with pytest.raises(EvidenceError, match=r"profiles\.jsonl:1: traces\.0\.file: String should match pattern"):
        load_profiles(tmp_path)
