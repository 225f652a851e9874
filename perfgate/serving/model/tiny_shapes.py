"""The shapes of the tiny models: configs and weight names as the real architectures have them, at a few megabytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

VOCAB, HIDDEN, LAYERS, EXPERTS, TOP_K, EXPERT_WIDTH = 4096, 256, 2, 8, 2, 64
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 64
CONTEXT = 1024
SPECIAL = ("<unk>", "<bos>", "<eos>", "<pad>")
# Well separated logits: greedy decoding must not hang on the last bit of a sum.
LOGIT_SPREAD = 4.0

Dtype = Literal["bfloat16", "float32"]
Config = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One weight: its shape, and the standard deviation of its draws around `mean` (0 gives a constant).

    `rows` multiplies each row, `first_column` then replaces the first one; empty where neither is wanted.
    """

    shape: tuple[int, ...]
    spread: float
    mean: float = 0.0
    rows: tuple[float, ...] = ()
    first_column: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """A model that perfgate can write: its config.json, its weights by name, and the seed that they are drawn by."""

    config: Config
    dtype: Dtype
    tensors: Mapping[str, Tensor]
    seed: int = 20


Named = tuple[str, Tensor]


def _common_config(architecture: str, model_type: str, dtype: Dtype) -> Config:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": dtype,
        "torch_dtype": dtype,
        "perfgate_weights": "random",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "num_experts_per_tok": TOP_K,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": SPECIAL.index("<bos>"),
        "eos_token_id": SPECIAL.index("<eos>"),
        "pad_token_id": SPECIAL.index("<pad>"),
    }


def _qwen3_moe() -> TinyModel:
    config = _common_config("Qwen3MoeForCausalLM", "qwen3_moe", "bfloat16") | {
        "num_experts": EXPERTS,
        "intermediate_size": EXPERT_WIDTH * EXPERTS,
        "moe_intermediate_size": EXPERT_WIDTH,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "use_sliding_window": False,
    }
    return TinyModel(config=config, dtype="bfloat16", tensors=_tensors(_qwen3_layer))


def _gpt_oss() -> TinyModel:
    config = _common_config("GptOssForCausalLM", "gpt_oss", "float32") | {
        "num_local_experts": EXPERTS,
        "experts_per_token": TOP_K,
        "intermediate_size": EXPERT_WIDTH,
        "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
        "sliding_window": 128,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "max_position_embeddings": 131072,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
        "router_aux_loss_coef": 0.9,
    }
    return TinyModel(config=config, dtype="float32", tensors=_tensors(_gpt_oss_layer))


def _tensors(layer: Callable[[int], Iterable[Named]]) -> dict[str, Tensor]:
    return dict([*_ends(), *(item for index in range(LAYERS) for item in layer(index))])


def _ends() -> list[Named]:
    return [
        ("model.embed_tokens.weight", Tensor(shape=(VOCAB, HIDDEN), spread=1.0)),
        ("model.norm.weight", Tensor(shape=(HIDDEN,), spread=0.0, mean=1.0)),
        ("lm_head.weight", Tensor(shape=(VOCAB, HIDDEN), spread=LOGIT_SPREAD * HIDDEN**-0.5)),
    ]


def _linear(outputs: int, inputs: int) -> Tensor:
    return Tensor(shape=(outputs, inputs), spread=inputs**-0.5)


def _block(prefix: str) -> Iterator[Named]:
    yield f"{prefix}.input_layernorm.weight", Tensor(shape=(HIDDEN,), spread=0.0, mean=1.0)
    yield f"{prefix}.post_attention_layernorm.weight", Tensor(shape=(HIDDEN,), spread=0.0, mean=1.0)
    yield f"{prefix}.self_attn.q_proj.weight", _linear(HEADS * HEAD_DIM, HIDDEN)
    yield f"{prefix}.self_attn.k_proj.weight", _linear(KV_HEADS * HEAD_DIM, HIDDEN)
    yield f"{prefix}.self_attn.v_proj.weight", _linear(KV_HEADS * HEAD_DIM, HIDDEN)
    yield f"{prefix}.self_attn.o_proj.weight", _linear(HIDDEN, HEADS * HEAD_DIM)


def _qwen3_layer(index: int) -> Iterator[Named]:
    prefix = f"model.layers.{index}"
    yield from _block(prefix)
    for norm in ("q_norm", "k_norm"):
        yield f"{prefix}.self_attn.{norm}.weight", Tensor(shape=(HEAD_DIM,), spread=0.0, mean=1.0)
    yield f"{prefix}.mlp.gate.weight", _linear(EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        yield f"{prefix}.mlp.experts.{expert}.gate_proj.weight", _linear(EXPERT_WIDTH, HIDDEN)
        yield f"{prefix}.mlp.experts.{expert}.up_proj.weight", _linear(EXPERT_WIDTH, HIDDEN)
        yield f"{prefix}.mlp.experts.{expert}.down_proj.weight", _linear(HIDDEN, EXPERT_WIDTH)


def _gpt_oss_layer(index: int) -> Iterator[Named]:
    prefix = f"model.layers.{index}"
    yield from _block(prefix)
    for projection, width in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        yield f"{prefix}.self_attn.{projection}_proj.bias", Tensor(shape=(width * HEAD_DIM,), spread=0.02)
    yield f"{prefix}.self_attn.o_proj.bias", Tensor(shape=(HIDDEN,), spread=0.02)
    yield f"{prefix}.self_attn.sinks", Tensor(shape=(HEADS,), spread=1.0)
    yield f"{prefix}.mlp.router.weight", _linear(EXPERTS, HIDDEN)
    yield f"{prefix}.mlp.router.bias", Tensor(shape=(EXPERTS,), spread=0.02)
    # gpt-oss stores its experts as one tensor each, inputs before outputs, gate and up columns in turn.
    yield f"{prefix}.mlp.experts.gate_up_proj", Tensor(shape=(EXPERTS, HIDDEN, 2 * EXPERT_WIDTH), spread=HIDDEN**-0.5)
    yield f"{prefix}.mlp.experts.gate_up_proj_bias", Tensor(shape=(EXPERTS, 2 * EXPERT_WIDTH), spread=0.02)
    yield f"{prefix}.mlp.experts.down_proj", Tensor(shape=(EXPERTS, EXPERT_WIDTH, HIDDEN), spread=EXPERT_WIDTH**-0.5)
    yield f"{prefix}.mlp.experts.down_proj_bias", Tensor(shape=(EXPERTS, HIDDEN), spread=0.02)


MODELS: dict[str, TinyModel] = {"tiny-qwen3-moe": _qwen3_moe(), "tiny-gpt-oss": _gpt_oss()}
