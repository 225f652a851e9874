"""An arm's Python is a real process; what it answers is read as values, or is one line."""

import stat
import sys

import orjson
import pytest

from perfgate.cli import main
from perfgate.errors import EngineError
from perfgate.resolution.arms import Source
from perfgate.resolution.ask import ask_arms
from perfgate.resolution.table import CONFIGS, GPUS, MODELS

ENVIRONMENT = {"sglang": "0.5.23", "torch": "2.14.1", "triton": "3.8.0", "stand_ins": ["sgl_kernel"]}
ANSWER = {"flags": {"page_size": 1}, "choices": {"moe_runner": "triton", "pool_tokens": 700_000}, "unverified": {}}
PROGRAM = """#!{python}
import json, os, sys
asked = json.load(sys.stdin)
assert os.environ["PATH"] == os.getcwd() and "SECRET" not in os.environ, os.environ
print(json.dumps({environment}))
for gpu in asked["gpus"]:
    for model in gpu["models"]:
        assert os.listdir(model["folder"]) == ["config.json"]
        print(json.dumps(dict({answer}, model=model["name"], gpu=gpu["id"])))
"""


def make_python(folder, *, answer=ANSWER, environment=ENVIRONMENT, text=None):
    """A Python that answers without an engine, by a process of its own."""
    file = folder / f"python-{len(list(folder.iterdir()))}"
    file.write_text(text or PROGRAM.format(python=sys.executable, environment=environment, answer=answer))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def resolve(base, candidate, *more):
    return main(["resolve", "--base", base, "--candidate", candidate, "--gpu", "h200", "--gpu", "b200", *more])


def test_resolve__equal_arms(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    python = make_python(tmp_path)

    code = resolve(python, python)
    said = capsys.readouterr()

    assert (code, said.err) == (0, "")
    assert said.out.splitlines()[-1] == "same: 0 lost, 0 accepted, 0 changed; both arms resolve to the same"


def test_resolve__a_smaller_pool_fails_until_it_is_accepted(tmp_path, capsys):
    choices = ANSWER["choices"] | {"pool_tokens": 600_000}
    arms = make_python(tmp_path), make_python(tmp_path, answer=ANSWER | {"choices": choices})

    assert resolve(*arms, "--model", "qwen3-30b") == 1
    assert (
        "lost  pool_tokens (tokens of the KV pool, estimated): 700000 -> 600000 (-14.3 %) [all models on all GPUs]"
        in capsys.readouterr().out
    )
    assert resolve(*arms, "--accept", "pool_tokens: the new graphs need it", "--format", "json") == 0
    document = orjson.loads(capsys.readouterr().out)
    assert document["differences"][0]["reason"] == "the new graphs need it"


def test_resolve__a_table_of_another_triton_is_lost(tmp_path, capsys):
    own, other = ({"name": "E=8.json", "triton": "3.6.0", "is_own": is_own, "digest": "0a1b2c3d"} for is_own in (True, False))
    choices = [
        ANSWER["choices"] | {"moe_tiles": [table], "moe_tiles_down": [{"name": "E=8_down.json"}]} for table in (own, other)
    ]
    arms = [make_python(tmp_path, answer=ANSWER | {"choices": one}) for one in choices]

    assert resolve(*arms) == 1
    said = capsys.readouterr().out
    assert ": E=8.json of its own Triton 3.6.0 (0a1b2c3d) -> E=8.json of another Triton 3.6.0 (0a1b2c3d) [" in said
    assert "moe_tiles_down" not in said


def test_resolve__what_could_not_be_verified_exits_with_3(tmp_path, capsys):
    arms = make_python(tmp_path), make_python(tmp_path, answer=ANSWER | {"unverified": {"pool": "AttributeError: moved"}})

    assert resolve(*arms) == 3
    assert "unverified  candidate: pool could not be verified: AttributeError: moved" in capsys.readouterr().out


def test_resolve__a_newer_release_is_told(tmp_path, capsys):
    python = make_python(tmp_path, environment=ENVIRONMENT | {"sglang": "0.5.99"})

    assert resolve(python, python) == 0
    assert "sglang 0.5.99 is none of 0.5.13 to 0.5.23" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--base", "nowhere", "--candidate", "0.5.23"), "--base nowhere: is no release"),
        (("--base", "A", "--candidate", "A", "--gpu", "tpu"), "--gpu tpu: choose one of h20"),
        (("--base", "A", "--candidate", "A", "--model", "gpt"), "--model gpt: choose one of gpt-oss-20b"),
        (("--base", "A", "--candidate", "A", "--accept", "moe_tiles"), "has no reason"),
        (("--base", "A", "--candidate", "A", "--accept", "tiles: x"), "is no key that can be lost"),
        (("--base", "A", "--candidate", "A", "--accept", "moe_tiles@x: y"), "no model x"),
        (("--base", "A", "--candidate", "A", "--base-triton", "x"), "is no version"),
    ],
)
def test_resolve__bad_input_is_one_line(words, message, tmp_path, capsys):
    python = make_python(tmp_path)

    assert main(["resolve", *(python if word == "A" else word for word in words)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\necho 'No module named torch' >&2\nexit 1\n", "No module named torch"),
        ("#!/bin/sh\nexit 0\n", "gave no answer"),
        ("#!/bin/sh\necho hello\n", "its answer cannot be read"),
        ("#!/bin/sh\necho '{\"sglang\": 3}'\n", "its answer cannot be read"),
    ],
)
def test_ask_arms__a_python_that_does_not_answer(text, message, tmp_path):
    source = Source(name="base", python=make_python(tmp_path, text=text))

    with pytest.raises(EngineError, match=message):
        ask_arms([source], [MODELS["qwen3-30b"]], [GPUS["h200"]])


def test_ask_arms__words_of_an_arm_are_printable_and_short(tmp_path):
    answer = {"flags": {"a\x1b[31m": "x\n::error::y"}, "choices": {"sampling": "z" * 999}, "unverified": {}}
    source = Source(name="base", python=make_python(tmp_path, answer=answer))

    (arm,) = ask_arms([source], [MODELS["qwen3-30b"]], [GPUS["h200"]])

    (reading,) = arm.readings.values()
    assert reading.flags == {"a?[31m": "x?::error::y"}
    assert len(reading.choices["sampling"]) == 240


def test_models__each_has_a_config_of_its_own():
    assert {file.stem for file in CONFIGS.iterdir()} == set(MODELS)
    for model in MODELS.values():
        config = orjson.loads((CONFIGS / f"{model.name}.json").read_bytes())
        assert config["architectures"] == [model.architecture]
