"""What servers inherit is kept where it steers an engine, and never where its name speaks of a secret."""

import sys

import pytest

from perfgate.core import Arm
from perfgate.errors import InputError
from perfgate.results.records import ArmRecord, read_record
from perfgate.serving.engine.inheritance import inherit, read_steering, require_apart
from perfgate.serving.measure import measure
from tests.fakes.requests import KeptProgress, build_request, use_fake_engine


def make_arms(base, candidate):
    envs = {Arm.BASE: base, Arm.CANDIDATE: candidate}
    return {arm: ArmRecord(label="", python=sys.executable, argv=(), env=env, facts={}) for arm, env in envs.items()}


@pytest.mark.parametrize(
    "name", ["SGLANG_X", "VLLM_X", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "TORCHINDUCTOR_X", "OMP_NUM_THREADS"]
)
def test_read_steering__what_engines_read(name):
    assert read_steering({name: "1"}) == {name: "1"}


@pytest.mark.parametrize("name", ["HF_TOKEN", "VLLM_API_KEY", "SGLANG_AUTH", "SGLANG_ADMIN_PASSWORD", "HOME", "MY_SGLANG_X"])
def test_read_steering__neither_secrets_nor_what_steers_nothing(name):
    assert read_steering({name: "1"}) == {}


def test_read_steering__a_count_of_tokens_is_no_secret():
    assert read_steering({"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "64"}) == {"SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "64"}


def test_inherit__all_but_an_injection():
    assert inherit({"PERFGATE_INJECT": "gpu:10", "PATH": "/bin"}) == {"PATH": "/bin"}


def test_measure__keeps_what_servers_inherit(tmp_path, monkeypatch):
    use_fake_engine(monkeypatch, tmp_path)
    monkeypatch.setenv("SGLANG_X", "1")
    monkeypatch.setenv("SGLANG_API_KEY", "hidden")
    monkeypatch.setenv("PERFGATE_INJECT", "gpu:10")
    measure(build_request(tmp_path / "out"), KeptProgress())
    inherited = read_record(tmp_path / "out").inherited

    assert inherited["SGLANG_X"] == "1"
    assert not {"SGLANG_API_KEY", "PERFGATE_INJECT"} & inherited.keys()
    assert "hidden" not in (tmp_path / "out" / "session.json").read_text()


@pytest.mark.parametrize(
    ("base", "candidate", "who"),
    [
        ({}, {"SGLANG_X": "1"}, "the candidate sets it to what the base"),
        ({"SGLANG_X": "1"}, {}, "the base sets it to what the"),
    ],
)
def test_require_apart__said_of_one_and_inherited_by_the_other(base, candidate, who):
    with pytest.raises(InputError, match=f"SGLANG_X: {who}"):
        require_apart(make_arms(base, candidate), {"SGLANG_X": "1"})


@pytest.mark.parametrize(
    ("base", "candidate", "inherited"),
    [
        ({}, {"SGLANG_X": "2"}, {"SGLANG_X": "1"}),
        ({"SGLANG_X": "1"}, {"SGLANG_X": "1"}, {"SGLANG_X": "1"}),
        ({"SGLANG_X": "0"}, {"SGLANG_X": "1"}, {"SGLANG_X": "1"}),
        ({}, {"SGLANG_X": "1"}, {}),
    ],
)
def test_require_apart__arms_that_differ_or_are_meant_to_be_equal(base, candidate, inherited):
    require_apart(make_arms(base, candidate), inherited)
