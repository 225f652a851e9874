from __future__ import annotations

import json

import pytest

from perfgate.cli import main

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
        (["verify"], "Missing argument"),
    ],
)
def test_model__bad_input_is_exit_2(tiny, capsys, argv, words):
    code = main(["model", *(word.replace("{tiny}", str(tiny)) for word in argv)])

    captured = capsys.readouterr()
    assert (code, captured.out, words in captured.err) == (2, "", True)
