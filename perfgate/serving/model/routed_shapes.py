"""Large mixtures of experts by their published sizes, written as folders without weights: config, tokenizer, recipe.

SGLang serves such a folder with `--load-format dummy`, and perfgate's plug-in fills the parameters by the config's recipe
(`routed_weights`). The sizes are those of the published config.json files; no hub is asked.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from perfgate.errors import InputError
from perfgate.serving.model.model_folder import write_folder
from perfgate.serving.model.routed_recipe import DEFAULT_IMBALANCE, DEFAULT_SEED, Sizes, build_recipe, write_recipe

Format = Literal["bf16", "mxfp4", "fp8"]
FORMATS: tuple[Format, ...] = get_args(Format)
Config = dict[str, object]
CHARACTERS = string.ascii_letters + string.digits + string.punctuation
"""Each is a word of a shape, so that a grammar can have it write JSON: the other words are `w` and their number."""
FIRST_CHARACTER = 256
"""The token of the first character; the special tokens of the published models lie elsewhere."""
# A chat is its messages in a row: words of roles would be unknown to the tokenizer, all of them one token.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"

_MXFP4: Config = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
}
_FP8: Config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A published model's sizes: how its config and its recipe's sizes follow from a number of layers.

    `formats` are the formats of its experts, the published one first. `special` are the ids of its special tokens.
    """

    layers: int
    vocabulary: int
    formats: tuple[Format, ...]
    special: tuple[int, ...]
    context: int
    describe: Callable[[int], Config]
    measure: Callable[[int], Sizes]


def _describe_gpt_oss(layers: int) -> Config:
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "eos_token_id": 200002,
        "pad_token_id": 199999,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "intermediate_size": 2880,
        "layer_types": [("sliding_attention", "full_attention")[index % 2] for index in range(layers)],
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "experts_per_token": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        "rope_theta": 150000,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "vocab_size": 201088,
    }


def _measure_gpt_oss(layers: int) -> Sizes:
    return Sizes(layers=layers, hidden=2880, experts=32, top_k=4, expert_width=2880, attention_width=64 * 64, is_clamped=True)


def _describe_qwen3(layers: int) -> Config:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": layers,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "vocab_size": 151936,
    }


def _measure_qwen3(layers: int) -> Sizes:
    return Sizes(layers=layers, hidden=2048, experts=128, top_k=8, expert_width=768, attention_width=32 * 128)


def _describe_deepseek(layers: int) -> Config:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "first_k_dense_replace": 1,
        "hidden_act": "silu",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "max_position_embeddings": 163840,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": layers,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
        "rope_theta": 10000,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "v_head_dim": 128,
        "vocab_size": 129280,
    }


def _measure_deepseek(layers: int) -> Sizes:
    return Sizes(
        layers=layers,
        hidden=7168,
        experts=256,
        top_k=8,
        expert_width=2048,
        attention_width=128 * 128,
        shared_width=2048,
        dense_width=18432,
        query_rank=1536,
        value_rank=512,
        routed_scale=2.5,
    )


SHAPES: Mapping[str, Shape] = {
    "gpt-oss-20b-shape": Shape(
        layers=24,
        vocabulary=201088,
        formats=("mxfp4", "bf16"),
        special=(199999, 200002),
        context=131072,
        describe=_describe_gpt_oss,
        measure=_measure_gpt_oss,
    ),
    "qwen3-30b-a3b-shape": Shape(
        layers=48,
        vocabulary=151936,
        formats=("bf16", "fp8"),
        special=(151643, 151645),
        context=40960,
        describe=_describe_qwen3,
        measure=_measure_qwen3,
    ),
    # Five of 61 layers, the first of them dense: what one GPU of 80 GB holds.
    "deepseek-fp8-shape": Shape(
        layers=5,
        vocabulary=129280,
        formats=("fp8",),
        special=(0, 1),
        context=163840,
        describe=_describe_deepseek,
        measure=_measure_deepseek,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What of a shape may be chosen; None is the shape's own."""

    format: Format | None = None
    layers: int | None = None
    seed: int = DEFAULT_SEED
    imbalance: float | None = None


def write_shape(folder: Path, name: str, choice: Choice | None = None) -> Path:
    """Write the shape `name` into `folder` and return it. Raise InputError for a format or a number that it cannot have.

    The name may end in a format, as `gpt-oss-20b-shape-bf16`. A folder that holds the same model is left as it is.
    """
    base, ending = split_name(name)
    shape = SHAPES[base]
    chosen = choice or Choice()
    if ending and chosen.format not in {None, ending}:
        raise InputError(f"model {name!r}: its name says {ending}, --dtype says {chosen.format}; leave one of them out")
    numbers = chosen.format or ending or shape.formats[0]
    if numbers not in shape.formats:
        raise InputError(f"model {base!r}: format {numbers} is not one of {', '.join(shape.formats)}")
    layers = shape.layers if chosen.layers is None else chosen.layers
    if not 1 <= layers <= 1000:
        raise InputError(f"model {base!r}: {layers} layers; give 1 to 1000")
    return write_folder(folder, _list_files(shape, _build_config(shape, layers, numbers, chosen)))


def split_name(name: str) -> tuple[str, Format | None]:
    """A shape's name without the format at its end, and that format."""
    for numbers in FORMATS:
        if name.endswith(f"-{numbers}"):
            return name.removesuffix(f"-{numbers}"), numbers
    return name, None


def is_shape(name: str) -> bool:
    """Whether this names a shape, with or without a format at its end."""
    return split_name(name)[0] in SHAPES


def _build_config(shape: Shape, layers: int, numbers: Format, choice: Choice) -> Config:
    recipe = build_recipe(
        shape.measure(layers),
        seed=choice.seed,
        imbalance=DEFAULT_IMBALANCE if choice.imbalance is None else choice.imbalance,
        never_generated=shape.special,
    )
    quantized: Mapping[Format, Config] = {"mxfp4": {"quantization_config": _MXFP4}, "fp8": {"quantization_config": _FP8}}
    common: Config = {"dtype": "bfloat16", "torch_dtype": "bfloat16", "tie_word_embeddings": False, "use_cache": True}
    return {**shape.describe(layers), **common, **quantized.get(numbers, {}), **write_recipe(recipe)}


def _list_files(shape: Shape, config: Config) -> Mapping[str, str]:
    """The files of a folder by name, the config last."""
    ends: Config = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
    named = {config[f"{name}_id"]: f"<{name}>" for name in ("eos_token", "pad_token") if f"{name}_id" in config}
    known = dict(enumerate(CHARACTERS, FIRST_CHARACTER)) | named
    words = {known.get(index, f"w{index}"): index for index in range(shape.vocabulary)}
    files: Mapping[str, Mapping[str, object]] = {
        "tokenizer.json": _describe_tokenizer(words),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape.context,
            "clean_up_tokenization_spaces": False,
            "unk_token": "w0",
            "chat_template": CHAT_TEMPLATE,
            **{word.strip("<>"): word for word in named.values()},
        },
        "generation_config.json": {**ends, "do_sample": False},
        "config.json": config,
    }
    return {name: json.dumps(content, indent=1, sort_keys=True) + "\n" for name, content in files.items()}


def _describe_tokenizer(words: Mapping[str, int]) -> Mapping[str, object]:
    """One token is one word, so that counts are exact; the whole vocabulary can be written and read.

    A special word is found wherever its letters stand, so none may be the beginning of another word.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": dict(words), "unk_token": "w0"},
    }
