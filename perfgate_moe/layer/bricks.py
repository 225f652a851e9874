"""4-bit weights laid out for Hopper's matrix units: one read brings a thread what it multiplies, in the order of its registers.

Weights as a checkpoint holds them are unpacked into tiles that change hands in shared memory before the matrix units take them.
A brick of 64 rows by 64 columns holds the same codes in the order in which the threads of a warpgroup hold the first operand of
`wgmma` (m64k16, 16 bits: PTX ISA, "Register Fragments for wgmma"), so nothing changes hands. A model is laid out once, when it
is loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.layer.problem import MICRO_BLOCK, Activation, MicroScales, Problem

BRICK = 64
"""Rows, and columns, of a brick."""

CODE_BYTES = BRICK * BRICK // 2
SCALE_BYTES = BRICK * BRICK // MICRO_BLOCK
LOWERING = 126
"""Codes put into a bfloat16's bits read 2^126 too small."""

HIGHEST_FOLDED = 254 - LOWERING
"""The largest scale byte that can carry that power and stay a finite bfloat16."""

CODE_AXES = (0, 1, 5, 2, 4, 9, 6, 7, 8, 3, 10)
SCALE_AXES = (0, 1, 5, 2, 4, 6, 3)
"""The order in bricks of a weight's axes, which are split as `_lay_codes` and `_lay_scales` say."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bricks:
    """One weight [E, N, K], `rows` and `columns`: `codes` uint8 [E, N / 64, K / 64, 2048], `scales` [E, N / 64, K / 64, 128].

    A brick's codes go by warp (16 rows), row of 8, thread of a quad (2 columns), and steps of 32 and of 16 columns, then four
    bytes hold a thread's 8 codes of a step; its scales by warp, row, 32 columns and half of 16 rows. With `is_folded` scales
    carry 2^126 as well.
    """

    codes: Tensor
    scales: Tensor
    rows: int
    columns: int
    is_folded: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaidOut(Problem):
    """A problem whose 4-bit weights lie in bricks, too."""

    gate_up_bricks: Bricks
    down_bricks: Bricks


def lay_out(problem: Problem) -> LaidOut:
    """The problem with its weights in bricks, gate and up rows alternating. NotApplicableError for other than 4-bit weights."""
    if isinstance(problem, LaidOut):
        return problem
    if not isinstance(problem.scales, MicroScales):
        raise NotApplicableError("bricks are for layers with 4-bit weights")
    pairs, scales = problem.gate_up, problem.scales.gate_up
    if not problem.activation.interleaved:
        pairs, scales = alternate(pairs), alternate(scales)
    return LaidOut(
        **problem.list_fields(),
        gate_up_bricks=make_bricks(pairs, scales),
        down_bricks=make_bricks(problem.down, problem.scales.down),
    )


def alternate(rows: Tensor) -> Tensor:
    """[E, 2I, .] with all gates first as gate, up, gate, up."""
    experts, count, width = rows.shape
    return rows.view(experts, 2, count // 2, width).transpose(1, 2).reshape(experts, count, width)


def make_bricks(pairs: Tensor, scales: Tensor) -> Bricks:
    """Bricks of one weight: `pairs` uint8 [E, N, K / 2] of e2m1 codes and `scales` uint8 [E, N, K / 32], as in MicroScales."""
    is_folded = bool(scales.max() <= HIGHEST_FOLDED)
    scales = scales + LOWERING if is_folded else scales
    experts, rows, bytes_ = pairs.shape
    codes = pairs.new_empty(experts, -(-rows // BRICK), -(-bytes_ // (BRICK // 2)), CODE_BYTES)
    # One expert at a time: a code takes four bytes on the way.
    for place, expert in enumerate(pairs.split(1)):
        codes[place] = _lay_codes(expert)[0]
    return Bricks(codes=codes, scales=_lay_scales(scales), rows=rows, columns=2 * bytes_, is_folded=is_folded)


def take_apart(bricks: Bricks) -> tuple[Tensor, Tensor]:
    """The pairs and scales that `make_bricks` had, byte for byte. Nothing waits for the device: a graph may capture it."""
    experts, rows, columns = bricks.codes.shape[0], bricks.rows, bricks.columns
    pairs = bricks.codes.new_empty(experts, rows, columns // 2)
    for place, expert in enumerate(bricks.codes.split(1)):
        pairs[place] = _take_codes(expert)[0, :rows, : columns // 2]
    scales = _take_scales(bricks.scales)[:, :rows, : columns // MICRO_BLOCK]
    return pairs, scales - LOWERING if bricks.is_folded else scales.contiguous()


def pose(
    hidden: Tensor,
    gate_up: Bricks,
    down: Bricks,
    *,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    topk_weights: Tensor,
    topk_ids: Tensor,
    activation: Activation,
) -> LaidOut:
    """A layer of which there are bricks alone: what stands for packed weights and scales has their shapes, not their order."""
    experts = gate_up.codes.shape[0]

    def stand_in(bytes_: Tensor, bricks: Bricks, per_byte: int) -> Tensor:
        shape = (experts, bricks.rows, bricks.columns // per_byte)
        return bytes_.flatten()[: math.prod(shape)].view(shape)

    return LaidOut(
        hidden=hidden, gate_up=stand_in(gate_up.codes, gate_up, 2), gate_up_bias=gate_up_bias,
        down=stand_in(down.codes, down, 2), down_bias=down_bias,
        topk_weights=topk_weights, topk_ids=topk_ids, activation=activation, routed_scaling=1.0, weight_on_input=False,
        out=torch.empty_like(hidden), gate_up_bricks=gate_up, down_bricks=down,
        scales=MicroScales(
            gate_up=stand_in(gate_up.scales, gate_up, MICRO_BLOCK), down=stand_in(down.scales, down, MICRO_BLOCK)
        ),
    )  # fmt: skip


def _lay_codes(pairs: Tensor) -> Tensor:
    experts, rows, bytes_ = pairs.shape
    pairs = pad(pairs, (0, -bytes_ % (BRICK // 2), 0, -rows % BRICK))
    panels, bricks = pairs.shape[1] // BRICK, pairs.shape[2] // (BRICK // 2)
    codes = torch.stack((pairs & 15, pairs >> 4), dim=-1)  # the two of a byte are one pair of columns
    # Rows: warp, half, row of 8. Columns: brick, 32 of them, 16 of them, half of those, thread of a quad, pair.
    codes = codes.view(experts, panels, 4, 2, 8, bricks, 2, 2, 2, 4, 2)
    threads = codes.permute(CODE_AXES)
    words = _weave(threads.reshape(experts, panels, bricks, BRICK * BRICK // 8, 4, 2).int())
    return words.view(torch.uint8).view(experts, panels, bricks, CODE_BYTES)


def _take_codes(codes: Tensor) -> Tensor:
    """Pairs [E, N, K / 2] of codes in bricks, N and K whole bricks."""
    experts, panels, bricks, _ = codes.shape
    threads = _unweave(codes.view(torch.int32)).view(experts, panels, bricks, 4, 8, 4, 2, 2, 2, 2, 2)
    low, high = threads.permute(_invert(CODE_AXES)).unbind(-1)
    return (low | (high << 4)).reshape(experts, panels * BRICK, bricks * (BRICK // 2))


def _invert(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(axes.index, range(len(axes))))


def _weave(codes: Tensor) -> Tensor:
    """Words [..] of four pairs of codes [.., 4, 2], which a mask and a few shifts make two bfloat16 each, 2^126 too small.

    A code's sign belongs at bit 15 of its half and its other three bits at 6 to 8. Pairs 0 to 2 lie 0, 3 and 6 bits lower; what
    they leave free, bits 10, 11, 13 and 14, holds the last pair: the low bit, the sign, and the two high bits.
    """
    sign, low = codes >> 3, codes & 7
    plain = (sign << 15) | (low << 6)
    last = (sign << 11) | ((low >> 1) << 13) | ((low & 1) << 10)
    halves = plain[..., 0, :] | (plain[..., 1, :] >> 3) | (plain[..., 2, :] >> 6) | last[..., 3, :]
    return halves[..., 0] | (halves[..., 1] << 16)


def _unweave(words: Tensor) -> Tensor:
    """Codes uint8 [.., 4, 2] of the words [..] that `_weave` makes of them."""
    halves = torch.stack((words, words >> 16), dim=-1)
    plain = [((halves >> (12 - 3 * place)) & 8) | ((halves >> (6 - 3 * place)) & 7) for place in range(3)]
    last = ((halves >> 8) & 8) | ((halves >> 12) & 6) | ((halves >> 10) & 1)
    return torch.stack((*plain, last), dim=-2).to(torch.uint8)


def _lay_scales(scales: Tensor) -> Tensor:
    experts, rows, blocks = scales.shape
    per_brick = BRICK // MICRO_BLOCK
    scales = pad(scales, (0, -blocks % per_brick, 0, -rows % BRICK))
    panels, bricks = scales.shape[1] // BRICK, scales.shape[2] // per_brick
    split = scales.view(experts, panels, 4, 2, 8, bricks, per_brick)
    return split.permute(SCALE_AXES).reshape(experts, panels, bricks, SCALE_BYTES)


def _take_scales(scales: Tensor) -> Tensor:
    """Scales [E, N, K / 32] of scales in bricks, N and K whole bricks."""
    experts, panels, bricks, _ = scales.shape
    split = scales.view(experts, panels, bricks, 4, 8, BRICK // MICRO_BLOCK, 2).permute(_invert(SCALE_AXES))
    return split.reshape(experts, panels * BRICK, bricks * (BRICK // MICRO_BLOCK))


def _assemble_pair(place: int, bits: tuple[str, ...], *, is_folded: bool) -> str:
    """Output `place`: the bits of two codes, times 2^126 unless the power has it, times the power."""
    widened = "" if is_folded else "fma.rn.bf16x2 bits, bits, wide, none;"
    steps = "\n".join(bits)
    power = 5 + place % 2  # a pair lies in one row, and the powers of both rows are at hand
    return f"{steps}\n{widened}\nfma.rn.bf16x2 ${place}, bits, ${power}, none;"


def _assemble(*, is_folded: bool) -> str:
    """One word to eight bfloat16; 0x80008000 is a pair of -0, which a sum leaves alone."""
    pairs = (
        ("and.b32 bits, $4, 0x81C081C0;",),
        ("shl.b32 bits, $4, 3;", "and.b32 bits, bits, 0x81C081C0;"),
        ("shl.b32 bits, $4, 6;", "and.b32 bits, bits, 0x81C081C0;"),
        (
            "shl.b32 bits, $4, 4;",
            "and.b32 bits, bits, 0x80008000;",
            "shr.b32 more, $4, 6;",
            "lop3.b32 bits, more, 0x01800180, bits, 0xEA;",  # (more & mask) | bits
            "shr.b32 more, $4, 4;",
            "lop3.b32 bits, more, 0x00400040, bits, 0xEA;",
        ),
    )
    head = ".reg .b32 bits, more, wide, none;\nmov.b32 wide, 0x7E807E80;\nmov.b32 none, 0x80008000;"
    body = "\n".join(_assemble_pair(place, bits, is_folded=is_folded) for place, bits in enumerate(pairs))
    return f"{{\n{head}\n{body}\n}}"


FOLDED_ASSEMBLY = tl.constexpr(_assemble(is_folded=True))
PLAIN_ASSEMBLY = tl.constexpr(_assemble(is_folded=False))


def find_disorder(ttgir: str) -> Iterator[str]:
    """Assembly over four bytes at a time whose bytes are no neighbours in the registers: Triton promises no order."""
    layouts = dict(re.findall(r"^(#\w+) = #ttg\.linear<\{register = \[(.*?)\], lane", ttgir, re.MULTILINE))
    found = re.findall(r"elementwise_inline_asm .*packed_element = 4.* : tensor<[x\d]+xi8, (#\w+)>", ttgir)
    if not found:
        yield "no assembly over four bytes"
    for name in found:
        first = re.findall(r"\d+(?=\])", layouts.get(name, ""))[:2]
        if first != ["1", "2"]:
            yield f"bytes of a word lie apart in {name}"


_ORDERED: set[str] = set()
"""Kernels whose order was looked at, by Triton's name for what it compiled."""


def require_order(compiled: Any) -> None:
    """NotApplicableError for a kernel of woven bytes whose compiler put them apart: its answer is wrong."""
    if compiled.hash in _ORDERED:
        return
    if problems := list(find_disorder(compiled.asm["ttgir"])):
        raise NotApplicableError(f"bricks: {problems[0]}: Triton {triton.__version__} orders registers otherwise")
    _ORDERED.add(compiled.hash)


@triton.jit
def pair_of(bits: tl.tensor, FOLDED: tl.constexpr) -> tl.tensor:
    """Float32 values [.., 2] of the two codes that lie in each word as two bfloat16."""
    both = tl.join(bits << 16, bits & -65536).to(tl.float32, bitcast=True)
    return both if FOLDED else both * 8.507059173023462e37  # 2^126


@triton.jit
def unwoven(words: tl.tensor, FOLDED: tl.constexpr) -> tl.tensor:
    """Float32 values [.., 2, 2, 2], by half of 16 columns, half of 16 rows and pair, of words [..]."""
    first, second, third = words & -0x7E3F7E40, (words << 3) & -0x7E3F7E40, (words << 6) & -0x7E3F7E40
    last = ((words << 4) & -0x7FFF8000) | ((words >> 6) & 0x01800180) | ((words >> 4) & 0x00400040)
    upper = tl.join(pair_of(first, FOLDED), pair_of(third, FOLDED))
    lower = tl.join(pair_of(second, FOLDED), pair_of(last, FOLDED))
    return tl.permute(tl.join(upper, lower), (0, 1, 2, 4, 5, 3))


@triton.jit
def operand_of(
    codes: tl.tensor,
    scales: tl.tensor,
    FOLDED: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    PANELS: tl.constexpr,
    BRICKS: tl.constexpr,
) -> tl.tensor:
    """Values [64 PANELS, 64 BRICKS] of `codes` [BRICKS, PANELS, 2048 bytes or 512 words] and `scales` [BRICKS, PANELS, 512].

    With IN_PAIRS bytes become bfloat16 by assembly, otherwise words become float32.
    """
    if IN_PAIRS:
        power = (scales.to(tl.int16) << 7).to(tl.bfloat16, bitcast=True)
        power = tl.reshape(power, [BRICKS, PANELS, 4, 8, 4, 2, 1, 2, 1])
        power = tl.reshape(tl.broadcast_to(power, [BRICKS, PANELS, 4, 8, 4, 2, 2, 2, 2]), [BRICKS, PANELS, 2048])
        # The assembly mixes the four bytes of a word. They are neighbours in the registers, because they are in the operand.
        near, far = tl.inline_asm_elementwise(
            FOLDED_ASSEMBLY if FOLDED else PLAIN_ASSEMBLY, "=r,=r,=r,=r,r,r,r", [codes, power],
            dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
        )  # fmt: skip
        # Brick, panel, warp, row, quad, 32 columns, 16 columns, half of rows, pair, half of columns.
        values = tl.reshape(tl.join(near, far), [BRICKS, PANELS, 4, 8, 4, 2, 2, 2, 2, 2])
        ordered = tl.permute(values, (1, 2, 7, 3, 0, 5, 6, 9, 4, 8))
    else:
        power = (scales.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        values = tl.reshape(unwoven(codes, FOLDED), [BRICKS, PANELS, 4, 8, 4, 2, 2, 2, 2, 2])
        values *= tl.reshape(power, [BRICKS, PANELS, 4, 8, 4, 2, 1, 1, 2, 1])
        ordered = tl.permute(values, (1, 2, 8, 3, 0, 5, 6, 7, 4, 9))
    return tl.reshape(ordered, [64 * PANELS, 64 * BRICKS])


@triton.jit
def brick_product(
    rows: tl.tensor,
    row: tl.tensor,
    is_row: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    panel: tl.tensor,
    K: tl.tensor,
    N: tl.tensor,
    EVEN_K: tl.constexpr,
    FOLDED: tl.constexpr,
    IN_PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> tl.tensor:
    """Rows of `rows` [., K] times BLOCK_N rows of an expert's weight of N rows in bricks, from `panel` on: [ROWS, BLOCK_N]."""
    PANELS: tl.constexpr = BLOCK_N // 64
    BRICKS: tl.constexpr = BLOCK_K // 64
    deep = tl.cdiv(K, 64)
    ks = tl.arange(0, BLOCK_K)
    step = tl.arange(0, BRICKS)
    # A panel past the end, of the last tile, reads the last one again, and its rows are not stored.
    panels = tl.minimum(panel + tl.arange(0, PANELS), tl.cdiv(N, 64) - 1)
    brick = (panels.to(tl.int64) * deep)[None, :] + step[:, None]
    word = tl.arange(0, 512)
    a_tile = rows + row.to(tl.int64)[:, None] * K + ks[None, :]
    if IN_PAIRS:
        b_tile = codes + brick[:, :, None] * 2048 + tl.arange(0, 2048)[None, None, :]
    else:
        b_tile = codes.to(tl.pointer_type(tl.int32)) + brick[:, :, None] * 512 + word[None, None, :]
    # The four threads of a quad share the scales of their rows.
    s_tile = scales + brick[:, :, None] * 128 + (word // 16 * 4 + word % 4)[None, None, :]
    total = tl.zeros([BLOCK_N, ROWS], dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_tile, mask=is_row[:, None], other=0.0)
            packed = tl.load(b_tile)
            scale = tl.load(s_tile)
        else:
            is_there = (start // 64 + step < deep)[:, None, None]
            a = tl.load(a_tile, mask=is_row[:, None] & (start + ks[None, :] < K), other=0.0)
            packed = tl.load(b_tile, mask=is_there, other=0)
            scale = tl.load(s_tile, mask=is_there, other=0)
        b = operand_of(packed, scale, FOLDED, IN_PAIRS, PANELS, BRICKS).to(a.dtype)
        total = tl.dot(b, a.T, total, input_precision="ieee")
        a_tile += BLOCK_K
        b_tile += BRICKS * (2048 if IN_PAIRS else 512)
        s_tile += BRICKS * 128
    return total.T
