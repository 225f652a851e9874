"""Do the servers of a block fit the GPU's memory? Computed from config.json and their arguments before one is started.

A server holds its weights, the pool of keys and values of its tokens, and what graphs and workspaces take. Weights are counted
layer by layer from the config; SGLang and vLLM hold as many bytes (38.9 GiB computed for gpt-oss-20b in bf16, 39.2 logged).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perfgate.engines.arguments import read_layout, read_option
from perfgate.engines.table import ENGINES
from perfgate.errors import InputError
from perfgate.machine.nvml import list_devices
from perfgate.results.records import ArmRecord
from perfgate.scenario.schema import Scenario
from perfgate.serving.model.dense_models import count_moe_layers
from perfgate.serving.model.model_guard import EXPERT_KEYS, LAYER_KEYS, list_levels

GIB = 2**30

WORKSPACE_GIB = 4.0
"""What a server holds besides weights and tokens: the CUDA context, graphs, activations. Two servers of gpt-oss-20b in bf16
held 90.8 to 91.5 GiB on an H200 with 65,536 tokens each and 97.3 GiB with 131,072: 3.5 to 3.8 GiB a server are left when
weights and tokens are taken away. In MXFP4 (`benchmarks/h200/serving/routed`) it is 4.4 GiB."""

DEFAULT_FRACTION = 0.88
"""The share of the card that SGLang gives weights and tokens where no option says it; it chooses 0.85 to 0.9 by the card."""

_DATA_BYTES = {"none": 2.0, "fp8": 1.0, "modelopt_fp8": 1.0, "compressed-tensors-fp8": 1.0, "mxfp4": 0.53125}
"""Bytes of one number of a weight matrix: MXFP4 has four bits and eight more for each block of 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNumbers:
    """How many numbers a model holds, in its experts and elsewhere, and how many of keys and values a token leaves in it.

    `token_parts` are the tensor ranks among which those of a token are divided at most: one a head, one in MLA.
    """

    expert_numbers: int
    other_numbers: int
    embedding_numbers: int
    token_numbers: int
    token_parts: int


class Reader(Protocol):
    """Reads a config's whole numbers."""

    def __call__(self, *keys: str, default: int | None = None) -> int:
        """The first of `keys` that is there, else `default`. Raise KeyError where that is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU as the driver names it, and its memory as NVML counts it."""

    name: str
    gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One arm's server: its engine (a name of the table), arguments and environment, and the format of its model's weights."""

    engine: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    quantization: str = "none"


def require_memory(scenario: Scenario, config: Mapping[str, object], arms: Mapping[Any, ArmRecord]) -> None:
    """Refuse servers that the GPU's memory cannot hold, before one is started.

    Both live at the same time where the scenario says so. Raise InputError naming the card, what is needed and what to do. A
    machine without a GPU, and a model whose bytes cannot be counted, are let through.
    """
    cards = [card for arm in arms.values() if (card := read_card(arm.facts)) is not None]
    if not cards or not ENGINES[scenario.server.engine].uses_gpu:
        return
    card, least = cards[0], scenario.server.min_gpu_memory_gib
    if least is not None and card.gib < least:
        raise InputError(
            f"memory: server.min_gpu_memory_gib: scenario {scenario.name} is for cards of at least {least:g} GiB, "
            f"{card.name} has {card.gib:.1f} GiB; choose another scenario (`perfgate scenarios`), or a larger card"
        )
    servings = [
        Serving(
            engine=scenario.server.engine,
            args=tuple(arm.argv),
            env=arm.env,
            quantization=scenario.model.quantization,
        )
        for arm in arms.values()
    ]
    told = explain_misfit(read_sizes(config), servings, card, is_both=scenario.blocks.resident == "both")
    if told is not None:
        raise InputError(told)


def read_card(facts: Mapping[str, str]) -> Card | None:
    """The GPU that a fingerprint describes; None where it describes none."""
    try:
        return Card(name=facts["gpu"], gib=float(facts["gpu_memory_gib"]))
    except (KeyError, ValueError):
        return None


def read_sizes(config: Mapping[str, object]) -> ModelNumbers | None:
    """Count a model's numbers from its config; None where the config does not say enough."""
    known = {key: value for level in reversed(list(list_levels(config))) for key, value in level.items()}

    def read(*keys: str, default: int | None = None) -> int:
        values = [known[key] for key in keys if isinstance(known.get(key), int) and not isinstance(known[key], bool)]
        if values:
            return int(str(values[0]))
        if default is None:
            raise KeyError(keys[0])
        return default

    try:
        layers, hidden = read(*LAYER_KEYS), read("hidden_size", "d_model", "n_embd")
        experts, wide = read(*EXPERT_KEYS), read("intermediate_size", "ffn_hidden_size")
        vocabulary, heads = read("vocab_size", "padded_vocab_size"), read("num_attention_heads", "n_heads")
    except KeyError:
        return None
    narrow = read("moe_intermediate_size", default=wide)
    with_experts = count_moe_layers(list(list_levels(config)), layers)
    shared = read("n_shared_experts", default=0) * narrow + read("shared_expert_intermediate_size", default=0)
    attention, kept, parts = _count_attention(read, hidden, heads)
    return ModelNumbers(
        expert_numbers=with_experts * experts * 3 * hidden * narrow,
        other_numbers=layers * attention + 3 * hidden * (with_experts * shared + (layers - with_experts) * wide),
        embedding_numbers=vocabulary * hidden * (1 if known.get("tie_word_embeddings") is True else 2),
        token_numbers=layers * kept,
        token_parts=parts,
    )


def _count_attention(read: Reader, hidden: int, heads: int) -> tuple[int, int, int]:
    """The numbers of one layer's attention, those that a token leaves in it, compressed in MLA, and in how many parts."""
    if latent := read("kv_lora_rank", default=0):
        turned, plain = read("qk_rope_head_dim", default=64), read("qk_nope_head_dim", default=128)
        value, query = read("v_head_dim", default=128), read("q_lora_rank", default=0)
        asked = query * (hidden + heads * (plain + turned)) if query else hidden * heads * (plain + turned)
        numbers = asked + hidden * (latent + turned) + latent * heads * (plain + value) + heads * value * hidden
        return numbers, latent + turned, 1
    each = read("head_dim", default=hidden // heads)
    shared = read("num_key_value_heads", default=heads)
    return 2 * hidden * each * (heads + shared), 2 * shared * each, shared


def explain_misfit(sizes: ModelNumbers | None, servings: Sequence[Serving], card: Card | None, *, is_both: bool) -> str | None:
    """Say in one line that the servers of a block need more memory than the card has; None where they fit or cannot be counted.

    `is_both` tells whether they live at the same time. Servers on different GPUs do not meet.
    """
    if sizes is None or card is None:
        return None
    loads: dict[str, list[float]] = {}
    for serving in servings:
        needed = measure_serving(sizes, serving, card)
        if needed is None:
            return None
        for device in list_devices(serving.args, serving.env):
            loads.setdefault(device, []).append(needed)
    needed_gib = max(sum(load) if is_both else max(load) for load in loads.values())
    if needed_gib <= card.gib:
        return None
    together = is_both and max(map(len, loads.values())) > 1
    who = "both servers of a block" if together else "one server"
    alone_gib = max(max(load) for load in loads.values())
    return (
        f"memory: {who} would need {needed_gib:.1f} GiB of {card.name}, which has {card.gib:.1f} GiB: "
        f"{_advise(is_one_enough=together and alone_gib <= card.gib)}"
    )


def _advise(*, is_one_enough: bool) -> str:
    fewer = "fewer tokens (`--max-total-tokens`), a smaller format, or a larger card"
    return f'set resident = "one" in [blocks], or take {fewer}' if is_one_enough else f"take {fewer}"


def measure_serving(sizes: ModelNumbers, serving: Serving, card: Card) -> float | None:
    """How many GiB one server holds on each of its GPUs; None for a format whose bytes are not known here.

    Where an option gives the pool of tokens a size it has that one; else the engine fills its share of the card. Tensor ranks
    divide experts, attention and heads of keys and values; with DP attention each data rank holds the attention and its own
    pool. Embeddings are divided by words.
    """
    bytes_each = find_expert_bytes(serving)
    if bytes_each is None:
        return None
    # What quantizes experts to four bits leaves attention as it was; fp8 takes both. Embeddings stay.
    other_bytes = 1.0 if bytes_each == 1.0 else 2.0
    layout = read_layout(serving.args)
    shared = (sizes.expert_numbers * bytes_each + sizes.embedding_numbers * 2.0) / layout.weight_parts
    weights_gib = (shared + sizes.other_numbers * other_bytes / layout.attention_ranks / layout.pipeline) / GIB
    options = ENGINES[serving.engine].memory
    pool = read_option(serving.args, options.pool_option)
    if pool is not None and pool.isdecimal():
        parts = min(layout.attention_ranks, sizes.token_parts) * layout.pipeline
        token_bytes = 1.0 if options.is_pool_in_bytes else sizes.token_numbers * 2.0 / parts
        return weights_gib + int(pool) * token_bytes / GIB + WORKSPACE_GIB
    share = read_option(serving.args, options.share_option) or ""
    fraction = float(share) if share.replace(".", "", 1).isdecimal() else DEFAULT_FRACTION
    # An engine alone takes no more than there is.
    filled = min(card.gib, fraction * card.gib + (0.0 if options.is_workspace_in_share else WORKSPACE_GIB))
    return max(filled, weights_gib + WORKSPACE_GIB)


def find_expert_bytes(serving: Serving) -> float | None:
    """Bytes of one number of an expert's weights as the server holds it; None for a format that this table lacks."""
    kept = read_option(serving.args, "--quantization") or serving.quantization
    runner = read_option(serving.args, "--moe-runner-backend")
    if kept == "mxfp4" and runner in ENGINES[serving.engine].memory.widening_runners:
        return 2.0
    return _DATA_BYTES.get(kept)
