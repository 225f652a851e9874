"""Dense models whose configs name experts are refused; mixtures with some dense layers are not."""

import pytest

from perfgate.errors import ModelError
from perfgate.serving.model.dense_models import DENSE_ARCHITECTURES, count_moe_layers
from perfgate.serving.model.model_guard import read_model_facts

V3 = {"n_routed_experts": 256, "num_experts_per_tok": 8}
QWEN = {"num_experts": 60, "num_experts_per_tok": 4}
GEMMA = {"num_experts": 128, "top_k_experts": 8}


def config(architecture, layers=24, **keys):
    return {"architectures": [architecture], "num_hidden_layers": layers, "hidden_size": 64} | keys


DENSE = {
    "every layer before the first mixture": (config("DeepseekV3ForCausalLM", **V3, first_k_dense_replace=24), "first_k_dense"),
    "step beyond the last layer": (config("Qwen2MoeForCausalLM", **QWEN, decoder_sparse_step=100), "decoder_sparse_step = 100"),
    "every layer listed": (config("Qwen3MoeForCausalLM", **QWEN, mlp_only_layers=list(range(24))), "mlp_only_layers"),
    "two keys that leave none": (
        config("Qwen3MoeForCausalLM", **QWEN, decoder_sparse_step=12, mlp_only_layers=[11, 23]),
        "decoder_sparse_step = 12, mlp_only_layers = [11, 23]",
    ),
    "frequency of zeros": (config("MiMoV2FlashForCausalLM", **V3, moe_layer_freq=[0] * 24), "moe_layer_freq"),
    "Llama 4 without steps": (
        config("Llama4ForCausalLM", num_local_experts=16, num_experts_per_tok=1, interleave_moe_layer_step=0),
        "interleave_moe_layer_step = 0",
    ),
    "pattern without experts": (config("NemotronHForCausalLM", **V3, hybrid_override_pattern="M-M*" * 6), "hybrid_override"),
    "stray keys": (config("Qwen2ForCausalLM", **QWEN), "Qwen2ForCausalLM has no experts, whatever its config names"),
    "block switched off": (config("Gemma4ForCausalLM", **GEMMA, enable_moe_block=False), "enable_moe_block is not true"),
    "block never switched on": (config("Gemma4ForCausalLM", **GEMMA), "enable_moe_block is not true"),
    "block switched off within": (
        {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "text_config": {**GEMMA, "num_hidden_layers": 4, "hidden_size": 64, "enable_moe_block": False},
        },
        "enable_moe_block is not true",
    ),
    "dense model within": (
        {
            "architectures": ["InternVLChatModel"],
            "llm_config": config("Qwen3ForCausalLM", **QWEN),
        },
        "Qwen3ForCausalLM has no experts",
    ),
}


@pytest.mark.parametrize("case", DENSE)
def test_read_model_facts__dense_model_with_expert_keys_is_refused(case):
    given, words = DENSE[case]

    with pytest.raises(ModelError) as caught:
        read_model_facts(given, "m/config.json")

    message = str(caught.value)
    assert message.startswith(f"this model cannot measure a MoE kernel: m/config.json: {given['architectures'][0]} is a dense")
    assert words in message
    assert "\n" not in message


MIXED = {
    "DeepSeek-V3": (config("DeepseekV3ForCausalLM", 61, **V3, first_k_dense_replace=3, moe_layer_freq=1), 58),
    "Qwen3-30B-A3B": (config("Qwen3MoeForCausalLM", 48, **QWEN, decoder_sparse_step=1, mlp_only_layers=[]), 48),
    "Qwen2-57B-A14B": (config("Qwen2MoeForCausalLM", 28, **QWEN, decoder_sparse_step=1), 28),
    "Llama 4 Maverick": (
        config("Llama4ForCausalLM", 48, num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2),
        24,
    ),
    "ERNIE 4.5": (
        config(
            "Ernie4_5_MoeForCausalLM",
            28,
            moe_num_experts=64,
            moe_k=6,
            moe_layer_start_index=1,
            moe_layer_end_index=27,
            moe_layer_interval=1,
        ),
        27,
    ),
    "MiMo-V2": (config("MiMoV2FlashForCausalLM", 4, **V3, moe_layer_freq=[0, 1, 1, 1]), 3),
    "Step3": (config("Step3TextForCausalLM", 6, moe_num_experts=48, moe_top_k=3, moe_layers_enum="4, 5"), 2),
    "Nemotron-H": (config("NemotronHForCausalLM", 6, **V3, hybrid_override_pattern="MEM*ME"), 2),
    "Gemma 4": (config("Gemma4ForCausalLM", 30, **GEMMA, enable_moe_block=True), 30),
    "gpt-oss": (config("GptOssForCausalLM", num_local_experts=32, experts_per_token=4), 24),
}


@pytest.mark.parametrize("name", MIXED)
def test_count_moe_layers__known_families(name):
    given, wanted = MIXED[name]
    facts = read_model_facts(given)

    assert count_moe_layers([given], facts.layers) == wanted


def test_read_model_facts__unknown_architecture_with_experts_is_taken():
    """A model that is newer than this list must not be refused."""
    assert read_model_facts(config("BrandNewForCausalLM", **QWEN)).experts == 60
    assert "BrandNewForCausalLM" not in DENSE_ARCHITECTURES
