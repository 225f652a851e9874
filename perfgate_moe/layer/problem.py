"""The question every MoE implementation answers: one layer's inputs, weights, routing and options."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from perfgate_moe.errors import MoeInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """How gate and up become one intermediate row: gate * sigmoid(alpha * gate) * (up + shift), after clamping.

    `interleaved` says that rows of the gate_up weight alternate gate, up (gpt-oss) instead of all gates first. With a `limit`,
    gate is clamped from above and up from both sides.
    """

    name: str
    interleaved: bool
    alpha: float
    limit: float | None
    shift: float


SWIGLU = Activation(name="swiglu", interleaved=True, alpha=1.702, limit=7.0, shift=1.0)
SWIGLU_CHUNKED = Activation(name="swiglu-chunked", interleaved=False, alpha=1.702, limit=7.0, shift=1.0)
SILU = Activation(name="silu", interleaved=False, alpha=1.0, limit=None, shift=0.0)
ACTIVATIONS = {activation.name: activation for activation in (SWIGLU, SWIGLU_CHUNKED, SILU)}


SCALE_BLOCK = 128
MICRO_BLOCK = 32
QUANTS = ("none", "fp8", "mxfp4")  # the formats of weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockScales:
    """Scales of 8-bit weights, float32, one for each block of SCALE_BLOCK rows and columns; partial blocks at the edges.

    Shapes: gate_up [E, ceil(2I / 128), ceil(H / 128)], down [E, ceil(H / 128), ceil(I / 128)]. A weight is its 8-bit value
    times the scale of its block. Activations are rounded too, each token by groups of 128 columns (`reference.round_rows`):
    the hidden states, and the intermediate rows after rounding to the layer's dtype.
    """

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroScales:
    """Scales of 4-bit weights (MXFP4, gpt-oss's own format): uint8 e8m0, one for each MICRO_BLOCK columns of a row.

    Shapes: gate_up [E, 2I, H / 32], down [E, H, I / 32]. A scale byte s means 2^(s - 127). Weights are uint8 pairs of e2m1
    codes, [E, 2I, H / 2] and [E, H, I / 2], the earlier column in the low half. Activations stay in the layer's dtype.
    """

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """One MoE layer applied to M tokens, all tensors contiguous on one device.

    Shapes: hidden [M, H], gate_up [E, 2I, H], down [E, H, I], biases [E, 2I] and [E, H] or None, topk_weights [M, k] float32,
    topk_ids [M, k] int32 where -1 marks a slot without an expert on this rank. A slot adds
    `topk_weight * routed_scaling * (down @ activation(gate_up @ x + bias) + bias)` to its token; with `weight_on_input` the
    router weight multiplies x instead (only defined without biases). `out` [M, H] is where the answer may be written: its old
    content is garbage, and it belongs to the implementation wholly. With BlockScales both weights are
    float8_e4m3fn, with MicroScales pairs of 4-bit floats.
    """

    hidden: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    topk_weights: Tensor
    topk_ids: Tensor
    activation: Activation
    routed_scaling: float
    weight_on_input: bool
    out: Tensor
    scales: BlockScales | MicroScales | None = None

    def __post_init__(self) -> None:
        experts, hidden_size, intermediate_size = self.experts, self.hidden_size, self.intermediate_size
        _require("gate_up", self.gate_up, (experts, 2 * intermediate_size, hidden_size // self.pack))
        _require("hidden", self.hidden, (self.hidden.shape[0], hidden_size))
        _require("topk_weights", self.topk_weights, tuple(self.topk_ids.shape))
        _require("out", self.out, tuple(self.hidden.shape))
        if self.weight_on_input and (self.gate_up_bias is not None or self.down_bias is not None):
            raise MoeInputError("weight_on_input is not defined for a layer with biases: drop one of the two")
        if self.scales is not None:
            if self.weight_on_input:
                raise MoeInputError("weight_on_input is not defined for a quantised layer: drop one of the two")
            blocks_of = micro_blocks_of if isinstance(self.scales, MicroScales) else scale_blocks_of
            _require("scales.gate_up", self.scales.gate_up, (experts, *blocks_of(2 * intermediate_size, hidden_size)))
            _require("scales.down", self.scales.down, (experts, *blocks_of(hidden_size, intermediate_size)))

    @property
    def tokens(self) -> int:
        """M, the number of tokens."""
        return int(self.hidden.shape[0])

    @property
    def top_k(self) -> int:
        """Slots per token."""
        return int(self.topk_ids.shape[1])

    @property
    def experts(self) -> int:
        """E, the number of experts on this rank."""
        return int(self.down.shape[0])

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.down.shape[1])

    @property
    def intermediate_size(self) -> int:
        """I, of this rank's shard."""
        return int(self.down.shape[2]) * self.pack

    @property
    def quant(self) -> str:
        """The weights' format as `LayerCase.quant` names it: none, fp8 or mxfp4."""
        if self.scales is None:
            return "none"
        return "mxfp4" if isinstance(self.scales, MicroScales) else "fp8"

    def list_fields(self) -> dict[str, Any]:
        """What a problem is made of, by name, for one that holds more."""
        return {field.name: getattr(self, field.name) for field in fields(Problem)}

    @property
    def pack(self) -> int:
        """Weights in one element of their tensors."""
        return 2 if isinstance(self.scales, MicroScales) else 1


def scale_blocks_of(rows: int, columns: int) -> tuple[int, int]:
    """How many scale blocks cover a weight."""
    return -(-rows // SCALE_BLOCK), -(-columns // SCALE_BLOCK)


def micro_blocks_of(rows: int, columns: int) -> tuple[int, int]:
    """How many scales 4-bit weights have."""
    if columns % MICRO_BLOCK:
        raise MoeInputError(f"4-bit weights come in blocks of {MICRO_BLOCK} columns, and {columns} is no multiple of that")
    return rows, columns // MICRO_BLOCK


def _require(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise MoeInputError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    if not tensor.is_contiguous():
        raise MoeInputError(f"{name} is not contiguous: pass {name}.contiguous()")
