from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import replace

import pytest

from perfgate.cli import main
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from tests.fakes.requests import build_fake_engine, make_launch

DENSE = {"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 1536}


@pytest.fixture
def tiny(tmp_path, capsys):
    assert main(["model", "make", "tiny-qwen3-moe", str(tmp_path / "tiny")]) == 0
    capsys.readouterr()
    return tmp_path / "tiny"


def test_model_make__says_what_was_made(tmp_path, capsys):
    code = main(["model", "make", "tiny-gpt-oss", str(tmp_path / "tiny")])

    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("GptOssForCausalLM: 8 experts, 2 per token, 2 layers, hidden size 256, quantization none")
    assert "weights are RANDOM" in out


def test_model_make__a_large_shape_needs_no_hub(tmp_path, capsys):
    argv = ["model", "make", "gpt-oss-20b-shape", str(tmp_path), "--weights", "routed", "--dtype", "bf16", "--layers", "6"]

    code = main([*argv, "--seed", "3", "--imbalance", "1.5"])

    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("GptOssForCausalLM: 32 experts, 4 per token, 6 layers, hidden size 2880, quantization none")
    assert "weights are DRAWN by a recipe" in out


def test_model_verify__the_scenarios_model(tiny, capsys):
    code = main(["model", "verify", str(tiny), "--scenario", "cpu-moe"])

    assert (code, "WARNING: weights are RANDOM" in capsys.readouterr().out) == (0, True)


def test_model_verify__another_model_is_exit_3(tmp_path, capsys):
    main(["model", "make", "tiny-gpt-oss", str(tmp_path)])

    code = main(["model", "verify", str(tmp_path), "--scenario", "cpu-moe"])

    assert (code, len(capsys.readouterr().err.splitlines())) == (3, 1)


def test_model_verify__dense_model_is_exit_3(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(DENSE))

    code = main(["model", "verify", str(tmp_path)])

    assert (code, "is a dense model: it has none of num_experts" in capsys.readouterr().err) == (3, True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["verify", "nowhere"], "no such folder"),
        (["verify", "{tiny}", "--scenario", "nothing"], "unknown scenario 'nothing'"),
        (["make", "nothing", "{tiny}"], "perfgate generates only"),
        (["verify"], "DIR is missing"),
        (["verify", "--routing", "http://127.0.0.1:9"], "--recorded-in is missing"),
    ],
)
def test_model__bad_input_is_exit_2(tiny, capsys, argv, words):
    code = main(["model", *(word.replace("{tiny}", str(tiny)) for word in argv)])

    captured = capsys.readouterr()
    assert (code, captured.out, words in captured.err) == (2, "", True)


@contextlib.contextmanager
def serve(folder, model, monkeypatch, **env):
    """A fake engine with a router of its own, as if a user had started it."""
    monkeypatch.setattr("perfgate.serving.experts.expert_probe.HOLD_S", 0.01)
    launch = replace(make_launch(**env), engine=build_fake_engine(), python=sys.executable, model=model, ready_timeout_s=60.0)
    reaper = Reaper()
    with contextlib.closing(reaper), Server(launch, folder / "server.log", reaper) as server:
        server.wait_ready()
        yield server


@pytest.mark.parametrize(
    ("router", "code", "words"),
    [
        ("mixture", 0, ""),
        ("collapsed", 3, "this model cannot measure a MoE kernel: as http://127.0.0.1:"),
        ("cycling", 3, "this model cannot measure a MoE kernel: as http://127.0.0.1:"),
        ("", 3, "expert use unknown: perfgate's plug-in did not run in the server"),
        ("padded", 3, "expert use unknown: the recorded passes are not those of the prompts"),
        ("torn", 3, "expert use unknown: the recorded passes are not those of the prompts"),
    ],
)
def test_model_verify__routing_of_a_running_server(*, tmp_path, tiny, monkeypatch, capsys, router, code, words):
    with serve(tmp_path, tiny, monkeypatch, FAKE_ROUTING=router) as server:
        argv = ["model", "verify", str(tiny), "--routing", server.url, "--recorded-in", str(server.expert_folder)]
        found = main(argv)

    captured = capsys.readouterr()
    assert (found, words in captured.err) == (code, True)
    assert ("effective experts" in captured.out) == (router in {"mixture", "collapsed", "cycling"})


def test_model_verify__routing_as_json(tmp_path, tiny, monkeypatch, capsys):
    with serve(tmp_path, tiny, monkeypatch, FAKE_ROUTING="mixture") as server:
        monkeypatch.setenv("PERFGATE_EXPERTS", str(server.expert_folder))
        code = main(["model", "verify", str(tiny), "--routing", server.url, "--format", "json"])

    found = json.loads(capsys.readouterr().out)
    assert (code, found["tokens_a_step"], len(found["layers"])) == (0, 16, 3)


def test_model_verify__routing_of_no_server(capsys, tmp_path):
    code = main(["model", "verify", "--routing", "http://127.0.0.1:9", "--recorded-in", str(tmp_path)])

    assert (code, "gives no answer (ConnectError)" in capsys.readouterr().err) == (3, True)
