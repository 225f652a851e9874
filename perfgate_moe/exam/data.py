"""Tensors for a case, drawn on the CPU from its seed and scaled so that the answer's size is known: no vacuous tolerance."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from perfgate_moe.errors import MoeInputError
from perfgate_moe.exam.cases import INTEGER_DATA
from perfgate_moe.layer.problem import ACTIVATIONS, MICRO_BLOCK, SCALE_BLOCK, BlockScales, MicroScales, Problem
from perfgate_moe.layer.reference import E2M1, E8M0_BIAS, FLOAT8, FLOAT8_MAX, SMALLEST_PEAK, route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perfgate_moe.exam.cases import LayerCase

# Standard deviation of gate_up rows: wide enough that the clamp at 7 cuts a few per cent of gpt-oss's values.
GATE_UP_STD = {"normal": 3.0, "edges": 7.0, "outlier": 3.0, "nan": 3.0, "inf": 3.0, "exact": 1.0, "flat": 3.0}
BIAS_STD = {"on": 0.5, "large": 5.0}
DOWN_GAIN = 0.5  # keeps answers of wide clamped rows under a root mean square of ten
SIZES_RMS = (sum(4.0**power for power in range(-2, 3)) / 5) ** 0.5
OUTLIER_CHANNEL = 3
# Where x * sigmoid(x) is least: rounding a gate there changes next to nothing, and alpha as much as anywhere.
FLATTEST = -1.2784645
FLAT_GATE_STD = 0.25
FLAT_DOWN_GAIN = 2.0
NAN_TOKEN = 1  # or infinite


def build(case: LayerCase, device: str = "cpu") -> Problem:
    """The case's tensors on `device`; the same case gives the same values on every device."""
    source = torch.Generator(device=_generator_device(case, device)).manual_seed(case.seed * 7919 + 17)
    ids = _mask(case, draw_ids(case, source))
    weights = draw_weights(case, source)
    problem = _exact(case, source) if case.data in INTEGER_DATA else _normal(case, source)
    scales: BlockScales | MicroScales | None = None
    if case.quant == "fp8":
        problem["gate_up"], first = quantise_blocks(problem["gate_up"], source)
        problem["down"], second = quantise_blocks(problem["down"], source)
        scales = BlockScales(gate_up=first.to(device), down=second.to(device))
    if case.quant == "mxfp4":
        problem["gate_up"], first = quantise_micro(problem["gate_up"], source)
        problem["down"], second = quantise_micro(problem["down"], source)
        scales = MicroScales(gate_up=first.to(device), down=second.to(device))
    return Problem(
        **{name: None if tensor is None else tensor.to(device).contiguous() for name, tensor in problem.items()},
        topk_weights=(torch.full_like(weights, 0.5) if case.data in INTEGER_DATA else weights).to(device),
        topk_ids=ids.to(device),
        activation=ACTIVATIONS[case.activation],
        routed_scaling=2.0 if case.data in INTEGER_DATA and case.scaling != 1.0 else case.scaling,
        weight_on_input=bool(case.on_input),
        out=torch.full((case.M, case.H), float("nan"), dtype=getattr(torch, case.dtype), device=device),
        scales=scales,
    )


def quantise_blocks(weight: Tensor | None, source: Generator) -> tuple[Tensor, Tensor]:
    """8-bit codes and block scales of weights [E, N, K] whose blocks differ in size by up to sixteen times.

    Blocks of one size would let a kernel take its neighbour's scale unseen.
    """
    if weight is None:
        raise MoeInputError("a layer without weights cannot be quantised")
    experts, rows, columns = weight.shape
    shape = (experts, -(-rows // SCALE_BLOCK), 1, -(-columns // SCALE_BLOCK), 1)
    sizes = 2.0 ** torch.randint(-2, 3, shape, generator=source, device=source.device)
    return _stack(map(_round_blocks, weight, sizes))


def _round_blocks(weight: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = weight.shape
    padding = (0, -columns % SCALE_BLOCK, 0, -rows % SCALE_BLOCK)
    blocks = torch.nn.functional.pad(weight.float(), padding).unflatten(1, (-1, SCALE_BLOCK)).unflatten(0, (-1, SCALE_BLOCK))
    blocks = blocks * sizes / SIZES_RMS
    scales = blocks.abs().amax(dim=(1, 3), keepdim=True).clamp(min=SMALLEST_PEAK) / FLOAT8_MAX
    codes = (blocks / scales).to(FLOAT8).flatten(2, 3).flatten(0, 1)[:rows, :columns].contiguous()
    return codes, scales[:, 0, :, 0].contiguous()


def quantise_micro(weight: Tensor | None, source: Generator) -> tuple[Tensor, Tensor]:
    """Pairs of 4-bit codes and e8m0 scales of weights [E, N, K], whose blocks of 32 differ in size as above."""
    if weight is None:
        raise MoeInputError("a layer without weights cannot be quantised")
    experts, rows, columns = weight.shape
    shape = (experts, rows, columns // MICRO_BLOCK, 1)
    sizes = 2.0 ** torch.randint(-2, 3, shape, generator=source, device=source.device)
    return _stack(map(_round_micro, weight, sizes))


def _round_micro(weight: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    blocks = weight.float().unflatten(1, (-1, MICRO_BLOCK)) * sizes / SIZES_RMS
    # The largest code is 6 = 1.5 * 2^2: a block's scale brings its peak to between 4 and 8, and 8 is cut to 6.
    exponents = blocks.abs().amax(dim=2, keepdim=True).clamp(min=SMALLEST_PEAK).log2().floor() - 2
    scaled = (blocks / torch.exp2(exponents)).clamp(-E2M1[7], E2M1[7])
    edges = torch.tensor([(low + high) / 2 for low, high in pairwise(E2M1[:8])], device=weight.device)
    codes = torch.bucketize(scaled.abs(), edges).to(torch.uint8) | ((scaled < 0).to(torch.uint8) << 3)
    codes = codes.flatten(1)
    return codes[:, 0::2] | (codes[:, 1::2] << 4), (exponents[..., 0] + E8M0_BIAS).to(torch.uint8)


def _stack(experts: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Codes and scales of all experts. One by one they are made, for all at once take up to 47 bytes a weight."""
    codes, scales = zip(*experts, strict=True)
    return torch.stack(codes), torch.stack(scales)


def _generator_device(case: LayerCase, device: str) -> str:
    """Draw the weights of real layers on the device itself: billions of numbers take a CPU minutes."""
    return device if case.E * case.H * case.I > 1 << 24 else "cpu"


def _randn(source: Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=source, device=source.device)


def _normal(case: LayerCase, source: Generator) -> dict[str, Tensor | None]:
    dtype = getattr(torch, case.dtype)
    hidden = _randn(source, case.M, case.H)
    gate_up = _randn(source, case.E, 2 * case.I, case.H).mul_(GATE_UP_STD[case.data] / case.H**0.5)
    if case.data == "outlier":
        hidden[:, OUTLIER_CHANNEL] *= 1000.0
        gate_up[:, :, OUTLIER_CHANNEL] /= 100.0
    gates = slice(0, None, 2) if ACTIVATIONS[case.activation].interleaved else slice(0, case.I)
    if case.data == "flat":
        gate_up[:, gates] *= FLAT_GATE_STD / GATE_UP_STD["flat"]
    # Rounded before the next one is drawn: both in float32 would be the most memory that a large layer takes.
    gate_up = gate_up.to(dtype)
    down_gain = FLAT_DOWN_GAIN if case.data == "flat" else DOWN_GAIN
    down = _randn(source, case.E, case.H, case.I).mul_(down_gain / case.I**0.5).to(dtype)
    if case.data in {"nan", "inf"} and case.M > NAN_TOKEN:
        hidden[NAN_TOKEN, 0] = float(case.data)
    has_bias = case.bias != "off"
    gate_up_bias = _randn(source, case.E, 2 * case.I).mul_(BIAS_STD[case.bias]).to(dtype) if has_bias else None
    if case.data == "flat" and gate_up_bias is not None:
        gate_up_bias[:, gates] = FLATTEST / ACTIVATIONS[case.activation].alpha
    return {
        "hidden": hidden.to(dtype),
        "gate_up": gate_up,
        "gate_up_bias": gate_up_bias,
        "down": down,
        "down_bias": _randn(source, case.E, case.H).mul_(BIAS_STD[case.bias]).to(dtype) if has_bias else None,
    }


def _exact(case: LayerCase, source: Generator) -> dict[str, Tensor | None]:
    """Small integers whose every intermediate value is a float16 and a bfloat16, so that the answer must be right to the bit.

    Gates are 64 by bias alone, where silu(64) rounds to 64 in every float; ups are sums of a few +-1. With data=cancel half of
    a token's experts add the largest power of two beside which a one still counts, and half take it away: each slot is exact,
    and so is the answer, but a sum of two slots that is rounded to 16 bits is not.
    """
    dtype = getattr(torch, case.dtype)

    def signs(*shape: int, kept: float) -> Tensor:
        drawn = torch.rand(shape, generator=source, device=source.device)
        return ((drawn < kept / 2).float() - (drawn > 1 - kept / 2).float()).to(dtype)

    gate_up = signs(case.E, 2 * case.I, case.H, kept=4 / case.H)
    gate_up[:, : case.I] = 0
    gate_up_bias = torch.zeros(case.E, 2 * case.I, dtype=dtype, device=source.device)
    gate_up_bias[:, : case.I] = 64
    down = signs(case.E, case.H, case.I, kept=4 / case.I) / 64
    down_bias = signs(case.E, case.H, kept=0.5)
    if case.data == "cancel":
        down_bias[0::2] += 1 / torch.finfo(dtype).eps
        down_bias[1::2] -= 1 / torch.finfo(dtype).eps
    hidden = signs(case.M, case.H, kept=1.0)
    return {"hidden": hidden, "gate_up": gate_up, "gate_up_bias": gate_up_bias, "down": down, "down_bias": down_bias}


def draw_ids(case: LayerCase, source: Generator) -> Tensor:
    """Expert ids [M, k] int32, distinct within a token unless the routing says otherwise."""
    tokens = torch.arange(case.M, device=source.device)[:, None]
    slots = torch.arange(case.k, device=source.device)[None, :]
    if case.routing == "same":
        return (slots + 0 * tokens + case.E - case.k).to(torch.int32)
    if (
        case.routing == "blocks"
    ):  # groups of 16 tokens share their experts: exact multiples of a block when 16 divides M, one over at M = 17
        return ((tokens // 16 * case.k + slots) % case.E).to(torch.int32)
    scores = torch.rand(case.M, case.E, generator=source, device=source.device).clamp_(min=1e-9)
    if case.data == "cancel":  # as many even experts as odd ones, in any order
        pairs = scores.unflatten(1, (-1, 2)).topk(case.k // 2, dim=1).indices * 2
        pairs[:, :, 1] += 1
        order = torch.rand(case.M, case.k, generator=source, device=source.device).argsort(dim=1)
        return pairs.flatten(1).gather(1, order).to(torch.int32)
    popularity = torch.ones(case.E, device=source.device)
    if case.routing == "zipf":
        popularity = torch.arange(1, case.E + 1, device=source.device) ** -1.2
    if case.routing == "empty" and case.k < case.E:
        popularity[case.E // 2] = 1e-9
    ids = torch.topk(popularity / -scores.log(), case.k, dim=1).indices  # weighted sampling without replacement
    if case.routing == "duplicate" and case.k > 1:
        ids[:, 1] = ids[:, 0]
    return ids.to(torch.int32)


def _mask(case: LayerCase, ids: Tensor) -> Tensor:
    """Mark slots without a local expert: another rank's half, everything, or the padded tail of a captured batch."""
    if case.mask == "ep":
        ids = ids.masked_fill(ids < case.E // 2, -1)
    if case.mask == "all":
        ids = ids.fill_(-1)
    if case.mask == "padded":
        ids[case.M - case.M // 4 :] = -1
    return ids


def draw_weights(case: LayerCase, source: Generator) -> Tensor:
    """Router weights [M, k] float32: renormalised, as they come, or with zeros, ones and negatives among them."""
    logits = _randn(source, case.M, case.E)
    weights, _ = route(logits, case.k, renormalize=case.weights != "raw")
    if case.weights == "odd":
        weights[0::3, 0] = 0.0
        weights[1::3, 0] = 1.0
        weights[2::3, 0] *= -1.0
    return weights.contiguous()
