"""Which layers of a model hold experts, by its config.json: experts that no layer uses make a dense model.

The rules are those of the architectures' own code in transformers and SGLang. A key that is absent excludes no layer, and where
several are there, a layer has to satisfy each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

# Text models whose code, in SGLang and in transformers, has no experts: such keys in their configs are strays.
DENSE_ARCHITECTURES = frozenset(
    {
        "ArceeForCausalLM",
        "BaichuanForCausalLM",
        "Cohere2ForCausalLM",
        "CohereForCausalLM",
        "ExaoneForCausalLM",
        "Exaone4ForCausalLM",
        "GPT2LMHeadModel",
        "GPTBigCodeForCausalLM",
        "GPTJForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3nForCausalLM",
        "GemmaForCausalLM",
        "Glm4ForCausalLM",
        "GraniteForCausalLM",
        "InternLM2ForCausalLM",
        "InternLM3ForCausalLM",
        "Lfm2ForCausalLM",
        "LlamaForCausalLM",
        "MiMoForCausalLM",
        "Ministral3ForCausalLM",
        "MistralForCausalLM",
        "OPTForCausalLM",
        "Olmo2ForCausalLM",
        "OlmoForCausalLM",
        "OrionForCausalLM",
        "PersimmonForCausalLM",
        "Phi3ForCausalLM",
        "PhiForCausalLM",
        "QWenLMHeadModel",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "SolarForCausalLM",
        "StableLmForCausalLM",
        "Starcoder2ForCausalLM",
        "XverseForCausalLM",
    }
)

_FIRST_DENSE = (
    "first_k_dense_replace",  # DeepSeek V2 and V3, GLM-4 MoE, Kimi, dots1, Bailing
    "num_dense_layers",  # AFMoE, LFM2-MoE
    "moe_layer_start_index",  # ERNIE 4.5
)
_STEPS = ("decoder_sparse_step", "interleave_moe_layer_step")
"""Every so many layers one has experts, counted from the end of the first step: Qwen-MoE, Llama 4."""

_OPT_IN = ("Gemma4",)
"""Architectures whose layers hold experts only where the config says `enable_moe_block`."""


def explain_dense(levels: Sequence[Mapping[str, object]], layers: int | None) -> str | None:
    """Say why no layer of a model has experts although its config names some; None where one has.

    `levels` are the config and its nested configs, outermost first; `layers` is how many the model has, if that is known.
    """
    names = [name for level in levels for name in _list_names(level)]
    if dense := [name for name in names if name in DENSE_ARCHITECTURES]:
        return f"{dense[0]} has no experts, whatever its config names"
    merged: dict[str, object] = {key: value for level in reversed(levels) for key, value in level.items() if value is not None}
    is_opt_in = any(name.startswith(_OPT_IN) for name in names)
    if merged.get("enable_moe_block", not is_opt_in) is False:
        return "enable_moe_block is not true, so no layer has experts"
    if layers is None or any(_list_moe_layers(merged, layers)):
        return None
    told = ", ".join(f"{key} = {merged[key]}" for key in _KEYS if key in merged)
    return f"none of its {layers} layers has experts ({told})"


def count_moe_layers(levels: Sequence[Mapping[str, object]], layers: int) -> int:
    """How many of the model's layers hold experts."""
    merged: dict[str, object] = {key: value for level in reversed(levels) for key, value in level.items() if value is not None}
    return sum(_list_moe_layers(merged, layers))


_KEYS = (
    *_FIRST_DENSE,
    "moe_layer_end_index",
    "moe_layer_interval",
    *_STEPS,
    "moe_layer_freq",
    "mlp_only_layers",
    "moe_layers_enum",
    "hybrid_override_pattern",
)


def _list_names(level: Mapping[str, object]) -> Iterator[str]:
    names = level.get("architectures")
    if isinstance(names, list):
        yield from (name for name in names if isinstance(name, str))


def _list_moe_layers(config: Mapping[str, object], layers: int) -> Iterator[bool]:
    """Whether each layer holds experts."""
    first = max((_read(config, key, 0) for key in _FIRST_DENSE), default=0)
    last = _read(config, "moe_layer_end_index", layers)
    only = config.get("mlp_only_layers")
    dense = set(only) if isinstance(only, list) else set()
    for index in range(layers):
        yield (
            first <= index <= last
            and index not in dense
            and (index - first) % max(1, _read(config, "moe_layer_interval", 1)) == 0
            and all(_meets_step(config, key, index) for key in _STEPS)
            and _meets_frequency(config.get("moe_layer_freq"), index)
            and _is_listed(config, index)
        )


def _meets_step(config: Mapping[str, object], key: str, index: int) -> bool:
    step = _read(config, key, 1)
    return step > 0 and (index + 1) % step == 0


def _meets_frequency(frequency: object, index: int) -> bool:
    """A number: every so many layers, from the first. A list: one entry a layer."""
    if isinstance(frequency, list):
        return index < len(frequency) and bool(frequency[index])
    return not isinstance(frequency, int) or frequency < 1 or index % frequency == 0


def _is_listed(config: Mapping[str, object], index: int) -> bool:
    """Whether a list of layers (Step3) or a pattern of one letter a layer (Nemotron-H) names this one, where there is one."""
    listed, pattern = config.get("moe_layers_enum"), config.get("hybrid_override_pattern")
    if isinstance(listed, str) and str(index) not in (part.strip() for part in listed.split(",")):
        return False
    return not isinstance(pattern, str) or pattern[index : index + 1] == "E"


def _read(config: Mapping[str, object], key: str, default: int) -> int:
    """A whole number; some configs of several modalities give one for each, the first of which is the text's."""
    value = config.get(key)
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) else default
