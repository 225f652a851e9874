from __future__ import annotations

import json
from dataclasses import replace

import pytest

from perfgate.errors import CANNOT_MEASURE, InputError, ModelError
from perfgate.scenario import schema as scenario
from perfgate.serving.model.model_guard import read_model_facts, verify_model, verify_moe_config

QWEN3 = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "hidden_size": 2048,
}
EXPECTED = scenario.Model(path="Qwen/Qwen3-30B-A3B", architecture="Qwen3MoeForCausalLM", experts=128, top_k=8, layers=48)
# The config of the dense model that a first benchmark was once run on by mistake.
DENSE = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "vocab_size": 151936,
}


def config(architecture, layers=4, hidden=64, **experts):
    return {"architectures": [architecture], "num_hidden_layers": layers, "hidden_size": hidden} | experts


ARCHITECTURES = {
    "gpt-oss": (config("GptOssForCausalLM", num_local_experts=32, experts_per_token=4), 32, 4),
    "qwen2-moe": (config("Qwen2MoeForCausalLM", num_experts=60, num_experts_per_tok=4), 60, 4),
    "deepseek-v2": (config("DeepseekV2ForCausalLM", n_routed_experts=64, num_experts_per_tok=6, n_shared_experts=2), 64, 6),
    "deepseek-v3": (config("DeepseekV3ForCausalLM", n_routed_experts=256, num_experts_per_tok=8, n_shared_experts=1), 256, 8),
    "mixtral": (config("MixtralForCausalLM", num_local_experts=8, num_experts_per_tok=2), 8, 2),
    "olmoe": (config("OlmoeForCausalLM", num_experts=64, num_experts_per_tok=8), 64, 8),
    "phimoe": (config("PhiMoEForCausalLM", num_local_experts=16, num_experts_per_tok=2), 16, 2),
    "glm4-moe": (config("Glm4MoeForCausalLM", n_routed_experts=128, num_experts_per_tok=8), 128, 8),
    "ernie": (config("Ernie4_5_MoeForCausalLM", moe_num_experts=64, moe_k=6), 64, 6),
    "hunyuan": (config("HunYuanMoEV1ForCausalLM", num_experts=64, moe_topk=[8, 8, 8, 8]), 64, 8),
    "dbrx": (
        {
            "architectures": ["DbrxForCausalLM"],
            "n_layers": 4,
            "d_model": 64,
            "ffn_config": {"moe_num_experts": 16, "moe_top_k": 4},
        },
        16,
        4,
    ),
    "llama4": (
        {
            "architectures": ["Llama4ForConditionalGeneration"],
            "text_config": {"num_local_experts": 16, "num_experts_per_tok": 1, "num_hidden_layers": 4, "hidden_size": 64},
        },
        16,
        1,
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_read_model_facts__every_known_family(name):
    given, experts, top_k = ARCHITECTURES[name]

    facts = read_model_facts(given)

    assert (facts.experts, facts.top_k, facts.layers, facts.hidden) == (experts, top_k, 4, 64)


def test_read_model_facts__dense_model_is_refused_by_its_missing_keys():
    with pytest.raises(ModelError) as caught:
        read_model_facts(DENSE, "DeepSeek-R1-Distill-Qwen-1.5B/config.json")

    message = str(caught.value)
    assert message.startswith(f"{CANNOT_MEASURE}: DeepSeek-R1-Distill-Qwen-1.5B/config.json: Qwen2ForCausalLM is a dense model")
    keys = ("num_experts_per_tok", "router_top_k", "moe_top_k", "num_local_experts", "num_experts")
    assert [key for key in keys if f"{key}," not in f"{message},"] == []
    assert (caught.value.exit_code, "\n" in message) == (3, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_experts": None}, "does not say how many experts there are"),
        ({"num_experts_per_tok": None}, "does not say how many experts serve a token"),
        ({"num_experts": 1}, "has 1 experts"),
        ({"num_experts": 0}, "is a dense model"),
    ],
)
def test_read_model_facts__half_a_mixture_is_none(change, words):
    with pytest.raises(ModelError, match=words):
        read_model_facts(QWEN3 | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_experts": "128"}, "experts: must be a whole number of at least 1, not '128'"),
        ({"num_experts_per_tok": True}, "top_k: must be a whole number"),
        ({"num_experts_per_tok": [2, 4]}, "top_k: must be a whole number"),
        ({"num_hidden_layers": -1}, "layers: must be a whole number"),
        ({"hidden_size": None}, "hidden: must be a whole number"),
        ({"architectures": []}, "architectures: must be a list"),
        ({"architectures": [3]}, "architectures: must be a list"),
    ],
)
def test_read_model_facts__nonsense_is_named(change, words):
    with pytest.raises(InputError, match=words):
        read_model_facts(QWEN3 | change)


def test_read_model_facts__top_k_above_the_experts_is_refused():
    with pytest.raises(InputError, match="top_k: 9 of 8 experts cannot serve a token"):
        read_model_facts(QWEN3 | {"num_experts": 8, "num_experts_per_tok": 9})


@pytest.mark.parametrize(
    ("quantized", "name"),
    [(None, "none"), ({"quant_method": "mxfp4"}, "mxfp4"), ({"quant_algo": "NVFP4"}, "NVFP4"), ({}, "unknown")],
)
def test_read_model_facts__quantization(quantized, name):
    facts = read_model_facts(QWEN3 | {"quantization_config": quantized})

    assert facts.quantization == name


def test_read_model_facts__random_weights_are_said_loudly():
    drawn, unstated = read_model_facts(QWEN3 | {"perfgate_weights": "random"}), read_model_facts(QWEN3)

    assert "RANDOM" in str(drawn.warning)
    assert (unstated.weights, unstated.warning) == ("unstated", None)


def test_read_model_facts__digest_depends_on_content_and_not_on_order():
    reordered = dict(reversed(QWEN3.items()))

    assert read_model_facts(QWEN3).digest == read_model_facts(reordered).digest
    assert read_model_facts(QWEN3).digest != read_model_facts(QWEN3 | {"rope_theta": 1}).digest


def test_verify_moe_config__names_its_source():
    with pytest.raises(ModelError, match=rf"^{CANNOT_MEASURE}: old\.json: Qwen2ForCausalLM is a dense model"):
        verify_moe_config(DENSE, "old.json")


def test_verify_model__the_scenarios_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))

    assert verify_model(tmp_path, EXPECTED).experts == 128
    assert verify_model(tmp_path / "config.json", EXPECTED).experts == 128


def test_verify_model__each_difference_with_both_values(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3 | {"quantization_config": {"quant_method": "fp8"}}))
    wanted = replace(EXPECTED, architecture="GptOssForCausalLM", experts=32, top_k=4, layers=24, quantization="mxfp4")

    with pytest.raises(ModelError) as caught:
        verify_model(tmp_path, wanted)

    assert str(caught.value) == (
        f"{tmp_path}/config.json: not the scenario's model: architecture is Qwen3MoeForCausalLM, the scenario wants "
        "GptOssForCausalLM; experts is 128, the scenario wants 32; top_k is 8, the scenario wants 4; layers is 48, the "
        "scenario wants 24; quantization is fp8, the scenario wants mxfp4; serve Qwen/Qwen3-30B-A3B"
    )


def test_verify_model__random_weights_are_no_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3 | {"perfgate_weights": "random"}))

    with pytest.raises(ModelError, match="weights is random, the scenario wants checkpoint"):
        verify_model(tmp_path, EXPECTED)
    assert verify_model(tmp_path, replace(EXPECTED, weights="random")).weights == "random"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no config.json there"),
        (b"", "not valid JSON"),
        (b'{"architectures": [', "not valid JSON"),
        (b"[1]", "not a JSON object"),
        (b"\xff\xfe{", "cannot be read"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_verify_model__unreadable_config(tmp_path, content, words):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)

    with pytest.raises(InputError, match=words) as caught:
        verify_model(tmp_path, EXPECTED)

    assert (caught.value.exit_code, "\n" in str(caught.value)) == (2, False)


def test_verify_model__missing_folder(tmp_path):
    with pytest.raises(InputError, match="no such folder; give the folder that holds the model"):
        verify_model(tmp_path / "nowhere", EXPECTED)


def test_verify_model__config_is_a_directory(tmp_path):
    (tmp_path / "config.json").mkdir()

    with pytest.raises(InputError, match="cannot be read"):
        verify_model(tmp_path, EXPECTED)
