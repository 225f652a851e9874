"""The assembly that unpacks 4-bit codes, carried out instruction by instruction: Triton's interpreter cannot run it."""

import re
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

import torch

from perfgate_moe.errors import NotApplicableError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer import bricks
from perfgate_moe.layer.bricks import (
    FOLDED_ASSEMBLY,
    HIGHEST_FOLDED,
    LOWERING,
    PLAIN_ASSEMBLY,
    find_disorder,
    lay_out,
    make_bricks,
    require_order,
    take_apart,
)
from perfgate_moe.layer.mxfp4 import is_in_pairs
from perfgate_moe.layer.reference import E2M1, E8M0_BIAS

WORD = 0xFFFFFFFF


def halves(word):
    """Two bfloat16 as floats, the low half first."""
    return torch.tensor([word & 0xFFFF, word >> 16], dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double()


def fma_bf16x2(a, b, c):
    bits = (halves(a) * halves(b) + halves(c)).to(torch.bfloat16).view(torch.int16).to(torch.int32) & 0xFFFF
    return int(bits[0]) | int(bits[1]) << 16


OPERATIONS = {
    "mov.b32": lambda a: a,
    "shl.b32": lambda a, by: (a << by) & WORD,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "shr.b32": lambda a, by: a >> by,
    "lop3.b32": lambda a, b, c, table: (a & b) | c if table == 0xEA else None,
    "fma.rn.bf16x2": fma_bf16x2,
}


def execute(text, inputs):
    """Registers after the instructions of a block; `inputs` fill $4 and on."""
    registers = {f"${4 + place}": value for place, value in enumerate(inputs)}
    for line in re.sub(r"[{}]", "", text).split(";"):
        name, _, rest = line.strip().partition(" ")
        if not name or name == ".reg":
            continue
        target, *sources = (word.strip() for word in rest.split(","))
        registers[target] = OPERATIONS[name](*(registers[s] if s in registers else int(s, 0) for s in sources))
    return registers


def power_bits(scale):
    """Two bfloat16 of an e8m0 byte, as the kernel makes them."""
    return (scale << 7) | (scale << 23)


def make_brick(codes, scales):
    """The words of a weight [64, 64] of codes, its scales, and whether these carry the codes' power."""
    pairs = (codes[:, ::2] | (codes[:, 1::2] << 4)).to(torch.uint8)
    bricks = make_bricks(pairs[None], scales[None])
    return bricks.codes.view(torch.int32).flatten().tolist(), bricks.scales.flatten().tolist(), bricks.is_folded


def find_place(word):
    """Row and column of a word's first code: by warp, row of 8, thread of a quad, and steps of 16 columns."""
    return 16 * (word // 128) + word // 16 % 8, 16 * (word % 4) + 2 * (word // 4 % 4)


@pytest.mark.parametrize("highest", [HIGHEST_FOLDED, HIGHEST_FOLDED + 1])
def test_make_bricks__a_thread_unpacks_its_part_of_the_operand(highest):
    """Registers of wgmma's first operand: a pair of columns in rows r and r + 8, then the same 8 columns on."""
    source = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 16, (64, 64), generator=source)
    scales = torch.randint(90, highest + 1, (64, 2), generator=source, dtype=torch.uint8)
    scales[0, 0] = highest
    weight = torch.tensor(E2M1, dtype=torch.float64)[codes] * 2.0 ** (scales.double() - E8M0_BIAS).repeat_interleave(32, 1)

    words, powers, is_folded = make_brick(codes, scales)

    assert is_folded == (highest == HIGHEST_FOLDED)
    assembly = (FOLDED_ASSEMBLY if is_folded else PLAIN_ASSEMBLY).value
    for place, word in enumerate(words):
        row, column = find_place(place)
        own = [power_bits(powers[place // 16 * 4 + column // 32 * 2 + half]) for half in (0, 1)]
        found = execute(assembly, [word & WORD, *own])
        for output, (down, right) in enumerate([(0, 0), (8, 0), (0, 8), (8, 8)]):
            wanted = weight[row + down, column + right : column + right + 2]
            assert torch.equal(halves(found[f"${output}"]), wanted), (place, output)


def test_make_bricks__pads_with_zeros():
    pairs = torch.full((2, 5, 16), 0x77, dtype=torch.uint8)

    bricks = make_bricks(pairs, torch.full((2, 5, 1), 120, dtype=torch.uint8))

    assert (bricks.codes.shape, bricks.scales.shape) == ((2, 1, 1, 2048), (2, 1, 1, 128))
    assert bricks.codes.view(torch.int32).count_nonzero() == 2 * 5 * 8  # a row of 32 columns is in 8 words
    assert set(bricks.scales.flatten().tolist()) == {0, 120 + LOWERING}


@pytest.mark.parametrize(
    ("shape", "highest"), [((2, 64, 64), HIGHEST_FOLDED), ((3, 70, 96), HIGHEST_FOLDED), ((2, 5, 32), HIGHEST_FOLDED + 1)]
)
def test_take_apart__gives_every_byte_back(shape, highest):
    experts, rows, columns = shape
    source = torch.Generator().manual_seed(5)
    pairs = torch.randint(0, 256, (experts, rows, columns // 2), generator=source, dtype=torch.uint8)
    scales = torch.randint(0, highest + 1, (experts, rows, columns // 32), generator=source, dtype=torch.uint8)
    scales[-1, -1, -1] = highest

    laid = make_bricks(pairs, scales)
    found = take_apart(laid)

    assert laid.is_folded == (highest == HIGHEST_FOLDED)
    assert [each.is_contiguous() for each in found] == [True, True]
    assert torch.equal(found[0], pairs)
    assert torch.equal(found[1], scales)


def test_take_apart__of_every_code_in_every_place():
    pairs = torch.arange(256, dtype=torch.uint8).repeat(2, 64, 1)[..., :128]
    pairs[1] += 128

    assert torch.equal(take_apart(make_bricks(pairs, torch.zeros(2, 64, 8, dtype=torch.uint8)))[0], pairs)


def test_lay_out__again_changes_nothing():
    laid = lay_out(build(LayerCase(M=2, dtype="bfloat16", quant="mxfp4")))

    assert lay_out(laid) is laid


def test_lay_out__refuses_other_weights():
    with pytest.raises(NotApplicableError, match="bricks are for layers with 4-bit weights"):
        lay_out(build(LayerCase(M=2, dtype="bfloat16")))


@pytest.mark.parametrize(("capability", "found"), [((9, 0), True), ((8, 0), False), ((10, 0), False)])
def test_is_in_pairs__on_hopper_alone(monkeypatch, capability, found):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    hidden = SimpleNamespace(dtype=torch.bfloat16, is_cuda=True, device=SimpleNamespace(type="cuda"))

    assert is_in_pairs(hidden) is found


LINEAR = "#linear = #ttg.linear<{register = [[0, 0, %s], [0, 0, %s], [1, 0, 0]], lane = [[0, 0, 4]]}>\n"
WOVEN = '%0:2 = tt.elementwise_inline_asm "{}" {packed_element = 4 : i32} %1, %2 : tensor<2x1x2048xi8, #linear>, tensor<2xbf16>'


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (LINEAR % (1, 2) + WOVEN, []),
        (LINEAR % (1, 8) + WOVEN, ["bytes of a word lie apart in #linear"]),
        (WOVEN, ["bytes of a word lie apart in #linear"]),
        (LINEAR % (1, 2), ["no assembly over four bytes"]),
    ],
)
def test_find_disorder__of_words_whose_bytes_lie_apart(text, problems):
    assert list(find_disorder(text)) == problems


def test_require_order__of_a_kernel_once(monkeypatch):
    monkeypatch.setattr(bricks, "_ORDERED", set())
    apart, right = ({"ttgir": LINEAR % places + WOVEN} for places in ((1, 8), (1, 2)))

    for _ in range(2):
        with pytest.raises(NotApplicableError, match=r"bricks: bytes of a word lie apart in #linear: Triton .* orders"):
            require_order(SimpleNamespace(hash="apart", asm=apart))
    require_order(SimpleNamespace(hash="right", asm=right))
    require_order(SimpleNamespace(hash="right", asm={}))
