"""SGLang plug-in: fill the parameters of a server whose model's config asks for routed weights, and say so in its log.

`--load-format dummy` draws every floating-point parameter from +-0.001 with one seed and leaves integer ones at zero. A router
behind norms of 0.001 sees nothing of the token: all tokens of all layers then choose the same few experts, and MXFP4 experts
compute zeros. Where, and only where, the config says `perfgate_weights: "routed"`, this plug-in fills the parameters instead,
before the engine packs them for its kernels.

Every value follows from the seed, the parameter's name and the element's place by integer arithmetic, so that any machine draws
the same. A shard of a parameter is drawn as a parameter of its own: a server on several GPUs serves another model of the same
shape than one on a single GPU does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import torch

from perfgate.serving.model.routed_recipe import (
    Recipe,
    Role,
    assign_collapse,
    assign_popularity,
    describe_marker,
    draw_key,
    find_role,
    list_word_factors,
    read_recipe,
)

DUMMY = "sglang.srt.model_loader.loader.initialize_dummy_weights"

# Elements drawn at once: 64 MiB of integers, enough to keep a GPU busy.
CHUNK = 2**24
# The sum of four bytes less its mean of 510 has this deviation; at most 3.45 deviations, which bfloat16 and FP8 hold.
BYTES_MEAN, BYTES_DEVIATION = 510, math.sqrt(4 * (256**2 - 1) / 12)
# MXFP4 (OCP Microscaling Formats 1.0): e2m1 codes, the upper eight negative, and one e8m0 scale for 32 of them.
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_SPREAD = 2.0
FP4_BLOCK = 32
E8M0_BIAS = 127
FP8_MAX = 448.0
# Scales of FP8 blocks differ, mean square 1: a kernel that takes another block's scale must give another answer.
FP8_BLOCKS = (0.6, 0.8, 1.0, math.sqrt(2.0))
# The parameters of which every rank holds the whole.
REPLICATED: frozenset[Role] = frozenset({"norm", "qk_norm", "cache_scale", "router", "router_bias"})
REPLICATED_NAMES = ("q_a_proj", "kv_a_proj")
# Filled with their spread itself.
CONSTANT: frozenset[Role] = frozenset({"norm", "qk_norm", "cache_scale"})


class UnknownParameterError(RuntimeError):
    """A parameter that no recipe knows: the server must not start with what happens to be in its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process stands: its ranks among those that share the attention's heads, and the experts.

    `column` of `columns` ranks hold the same experts and divide their width; ranks of expert parallelism hold other experts.
    """

    attention_rank: int = 0
    expert_rank: int = 0
    column: int = 0
    columns: int = 1

    def find_rank(self, name: str, role: Role) -> int:
        """The rank that makes a shard of its own; 0 where every rank holds the whole parameter."""
        if role in REPLICATED or any(part in name for part in REPLICATED_NAMES):
            return 0
        return self.expert_rank if ".mlp." in name else self.attention_rank

    def cut_width(self, width: int) -> int:
        """How much of an expert's width this rank holds in MXFP4: whole blocks, as SGLang's loader deals them out."""
        blocks = -(-width // FP4_BLOCK)
        each = -(-blocks // self.columns) * FP4_BLOCK
        return max(0, min(each, width - self.column * each))


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parameter to fill, and what its recipe says of it. `packed` is the kind of numbers that its owner keeps."""

    name: str
    role: Role
    values: Any
    spread: float
    seed: int
    rank: int
    packed: str

    def draw_key(self, chunk: int) -> int:
        """64 bits for one chunk of this parameter."""
        return draw_key(self.seed, self.name, self.rank, chunk)


def register() -> None:
    """Entry point `sglang.srt.plugins`: fill a model where the engine would draw its dummy weights."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - exists in a server only

    HookRegistry.register(DUMMY, initialize, HookType.AROUND)


def initialize(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND hook of SGLang's `initialize_dummy_weights`: do its work for a model with a recipe, else let it be done.

    Raise UnknownParameterError for a parameter that no recipe knows, InputError for a recipe of another version.
    """
    return None if fill_routed(model, find_place) else original(model, *args, **kwargs)


def fill_routed(model: Any, find: Callable[[], Place]) -> bool:
    """Fill a model whose config has a recipe, say so in the log, and return whether it has one; `find` tells the ranks.

    Raise UnknownParameterError for a parameter that no recipe knows, InputError for a recipe of another version.
    """
    config = _read_config(model)
    recipe = read_recipe(config, "config.json")
    if recipe is None:
        return False
    count = fill_model(model, recipe, config, find())
    print(f"{describe_marker(recipe)} {count} tensors", flush=True)
    return True


def _read_config(model: Any) -> Mapping[str, Any]:
    config: Any = getattr(model, "config", None)
    return {} if config is None else dict(config.to_dict())


def find_place() -> Place:
    """Ask the engine for this process's ranks."""
    from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - exists in a server only

    ranks = get_parallel()
    experts = ranks.moe_ep_rank * ranks.moe_tp_size + ranks.moe_tp_rank
    return Place(attention_rank=ranks.attn_tp_rank, expert_rank=experts, column=ranks.moe_tp_rank, columns=ranks.moe_tp_size)


def fill_model(model: Any, recipe: Recipe, config: Mapping[str, Any], place: Place) -> int:
    """Fill every parameter of `model` by `recipe`, in place, and return how many there are.

    `config` is the model's config.json, for the sizes by which a padded parameter is told. Raise UnknownParameterError naming
    the parameters that no recipe knows.
    """
    parameters = dict(model.named_parameters())
    if unknown := sorted(name for name in parameters if find_role(name) is None):
        raise UnknownParameterError(
            f"perfgate has no recipe for {', '.join(unknown[:5])}{' and more' if len(unknown) > 5 else ''}; "
            "serve one of the shapes that `perfgate model make` knows"
        )
    top_k = int(config.get("num_experts_per_tok") or 1)
    with torch.no_grad():
        for name, parameter in parameters.items():
            target = _aim(name, parameter.data, parameters, recipe, place)
            _fill(_cut_padding(target, config, place), recipe, top_k)
    return len(parameters)


def _aim(name: str, values: Any, parameters: Mapping[str, Any], recipe: Recipe, place: Place) -> Target:
    role = find_role(name)
    if role is None:
        raise UnknownParameterError(name)
    owner = parameters.get(name.removesuffix("_scale_inv").removesuffix("_scale"))
    kind = "" if owner is None else str(owner.dtype).removeprefix("torch.")
    return Target(
        name=name,
        role=role,
        values=values,
        spread=recipe.spreads[role],
        seed=recipe.seed,
        rank=place.find_rank(name, role),
        packed=f"scale of {kind}" if name.endswith(("_scale", "_scale_inv")) else kind,
    )


def _cut_padding(target: Target, config: Mapping[str, Any], place: Place) -> Target:
    """Leave out what an engine adds to MXFP4 experts to suit its kernels: a checkpoint's loader leaves it zero, too."""
    hidden, width = config.get("hidden_size"), config.get("intermediate_size")
    if "uint8" not in target.packed or not hidden or not width:
        return target
    target.values.zero_()
    inner = FP4_BLOCK if target.packed.startswith("scale") else 2
    own = place.cut_width(width)
    rows, columns = (2 * own, hidden) if target.role == "gate_up" else (hidden, own)
    part = target.values[:, :rows, : columns // inner]
    return replace(target, values=part)


def _fill(target: Target, recipe: Recipe, top_k: int) -> None:
    """Fill one parameter by its role and its kind of numbers."""
    if target.role in CONSTANT:
        target.values.fill_(target.spread)
    elif target.packed == "scale of uint8":
        _draw(target, _scale_fp4(target.spread))
    elif target.packed.startswith("scale of"):
        _draw(target, _scale_fp8(target.spread))
    elif target.packed == "uint8":
        _draw(target, _pack_fp4(target.values.device), numbers_each=2)
    elif target.packed.startswith("float8"):
        _draw(target, lambda bits: _sum_bytes(bits).mul_(FP8_MAX / BYTES_MEAN))
    else:
        _draw(target, lambda bits: _sum_bytes(bits).mul_(target.spread / BYTES_DEVIATION))
        _scale_rows(target, recipe, top_k)


def _scale_rows(target: Target, recipe: Recipe, top_k: int) -> None:
    """Make some experts and some words more popular than others; a rare word of the tokenizer's own is never generated."""
    values = target.values
    if target.role == "router":
        factors = torch.tensor(assign_popularity(recipe, target.name), dtype=values.dtype, device=values.device)
        values.mul_(factors[: len(values), None])
    elif target.role == "router_bias" and recipe.collapsed:
        layer = target.name.rpartition(".")[0]
        values.copy_(torch.tensor(assign_collapse(recipe, layer, top_k), device=values.device))
    elif target.role == "head":
        factors = torch.tensor(list_word_factors(), dtype=values.dtype, device=values.device)
        words = torch.empty(len(values), dtype=torch.int32, device=values.device)
        _draw(replace(target, name=f"{target.name} rows", values=words), lambda bits: bits & 0xFF)
        values.mul_(factors[words.long()][:, None])
        first = target.rank * len(values)
        blocked = [word - first for word in recipe.never_generated if first <= word < first + len(values)]
        values[blocked] = 0


def _draw(target: Target, shape_bits: Callable[[Any], Any], *, numbers_each: int = 1) -> None:
    """Fill the values chunk by chunk: 32 random bits make `numbers_each` of them by `shape_bits`."""
    for chunk, part in enumerate(_split(target.values)):
        count = -(-part.numel() // numbers_each)
        drawn = shape_bits(draw_bits(count, target.draw_key(chunk), part.device))
        part.copy_(drawn.view(-1)[: part.numel()].view(part.shape))


def _split(values: Any) -> Iterator[Any]:
    """Parts of at most CHUNK elements, cut at rows; the same parts on every machine. A part need not be contiguous."""
    if values.numel() <= CHUNK or values.ndim == 0:
        yield values
        return
    rows = CHUNK // (values.numel() // len(values))
    if rows:
        for start in range(0, len(values), rows):
            yield values[start : start + rows]
        return
    for row in values:
        yield from _split(row)


def draw_bits(count: int, key: int, device: Any) -> Any:
    """`count` integers of 32 random bits each (int32): a counter, through the integer hash `lowbias32` of Chris Wellons.

    `key` gives each parameter a stride and a start of its own.
    """
    bits = torch.arange(count, dtype=torch.int32, device=device)
    bits.mul_(_sign(key | 1)).add_(_sign(key >> 32))
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits.bitwise_xor_((bits >> shift) & (2 ** (32 - shift) - 1)).mul_(_sign(factor))
    return bits.bitwise_xor_((bits >> 16) & 0xFFFF)


def _sign(number: int) -> int:
    """The low 32 bits as the signed number that they are."""
    return (number + 2**31) % 2**32 - 2**31


def _sum_bytes(bits: Any) -> Any:
    """Close to normal numbers (float32) of mean 0 and deviation BYTES_DEVIATION: the sums of four bytes, which are exact."""
    pairs = (bits & 0xFF00FF).add_((bits >> 8) & 0xFF00FF)
    return (pairs & 0xFFFF).add_(pairs >> 16).sub_(BYTES_MEAN).to(torch.float32)


def list_fp4_codes() -> list[int]:
    """The e2m1 codes of the 256 quantiles of a normal distribution with deviation FP4_SPREAD."""
    codes = []
    for place in range(256):
        value = FP4_SPREAD * NormalDist().inv_cdf((place + 0.5) / 256)
        nearest = min(range(8), key=lambda code: abs(FP4_VALUES[code] - abs(value)))
        codes.append(nearest + 8 * (value < 0))
    return codes


def _pack_fp4(device: Any) -> Callable[[Any], Any]:
    """Turn 32 bits into two bytes of two codes each."""
    codes = torch.tensor(list_fp4_codes(), dtype=torch.uint8, device=device)
    table = (codes[:, None] << 4 | codes[None, :]).view(-1)

    def pack(bits: Any) -> Any:
        pairs = torch.stack((bits & 0xFFFF, (bits >> 16) & 0xFFFF), dim=-1)
        return torch.index_select(table, 0, pairs.view(-1))

    return pack


def _scale_fp4(spread: float) -> Callable[[Any], Any]:
    """Exponents of two neighbouring powers of two, mixed so that the mean square of the scaled codes is right."""
    size = math.sqrt(sum(FP4_VALUES[code % 8] ** 2 for code in list_fp4_codes()) / 256)
    wanted = spread / size
    exponent = math.floor(math.log2(wanted))
    share = round(256 * ((wanted / 2**exponent) ** 2 - 1) / 3)

    def scale(bits: Any) -> Any:
        return ((bits & 0xFF) < share).to(bits.dtype).add_(E8M0_BIAS + exponent)

    return scale


def _scale_fp8(spread: float) -> Callable[[Any], Any]:
    """One of four scales for each block, of the mean square that gives the wanted spread."""
    unit = spread / (BYTES_DEVIATION * FP8_MAX / BYTES_MEAN)

    def scale(bits: Any) -> Any:
        table = torch.tensor([unit * factor for factor in FP8_BLOCKS], dtype=torch.float32, device=bits.device)
        return table[(bits & 3).long()]

    return scale
