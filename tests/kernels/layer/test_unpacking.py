"""The assembly that unpacks 4-bit codes, carried out instruction by instruction: Triton's interpreter cannot run it."""

import re

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

import torch

from perfgate_moe.layer.mxfp4 import PAIRS_TO_BFLOAT16
from perfgate_moe.layer.reference import E2M1, E8M0_BIAS

WORD = 0xFFFFFFFF


def prmt(a, b, selector):
    """Bytes of two words, as four digits of the selector name them."""
    source = (b << 32) | a
    return sum(((source >> 8 * ((selector >> 4 * place) & 7)) & 0xFF) << 8 * place for place in range(4))


def halves(word):
    """Two bfloat16 as floats, the low half first."""
    return torch.tensor([word & 0xFFFF, word >> 16], dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double()


def fma_bf16x2(a, b, c):
    bits = (halves(a) * halves(b) + halves(c)).to(torch.bfloat16).view(torch.int16).to(torch.int32) & 0xFFFF
    return int(bits[0]) | int(bits[1]) << 16


OPERATIONS = {
    "mov.b32": lambda a: a,
    "prmt.b32": prmt,
    "shl.b32": lambda a, by: (a << by) & WORD,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
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


@pytest.mark.parametrize("scale", [1, 100, E8M0_BIAS, 128, 129, 250])
@pytest.mark.parametrize("first", range(0, 256, 4))
def test_pairs_to_bfloat16__every_byte_at_every_place(first, scale):
    own = [first, first + 1, first + 2, first + 3]
    other = scale + 1
    word = sum(byte << 8 * place for place, byte in enumerate(own))

    found = execute(PAIRS_TO_BFLOAT16.value, [word, power_bits(scale), power_bits(other)])

    values = [halves(found[f"${place}"]) for place in range(4)]
    low, high = torch.cat(values[:2]), torch.cat(values[2:])
    powers = torch.tensor([2.0 ** (each - E8M0_BIAS) for each in (scale, scale, other, other)], dtype=torch.float64)
    wanted_low, wanted_high = (torch.tensor([E2M1[code] for code in codes], dtype=torch.float64) * powers
                               for codes in ([b & 0xF for b in own], [b >> 4 for b in own]))  # fmt: skip
    assert torch.equal(low, wanted_low.to(torch.bfloat16).double())
    assert torch.equal(high, wanted_high.to(torch.bfloat16).double())
    assert torch.equal(low.signbit(), wanted_low.signbit())
