"""The oracle against a second, naive formulation: one token, one slot, one number at a time."""

import math
from dataclasses import replace

import pytest
import torch

from perfgate_moe.errors import MoeInputError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer.problem import SILU, SWIGLU, SWIGLU_CHUNKED
from perfgate_moe.layer.reference import activate, oracle, round_rows, route, unpack_pairs


def by_hand(problem, token):
    """The answer's row of one token in Python floats."""
    total = [0.0] * problem.hidden_size
    x = problem.hidden[token].tolist()
    for slot in range(problem.top_k):
        expert = int(problem.topk_ids[token, slot])
        if expert >= 0:
            weight = float(problem.topk_weights[token, slot]) * problem.routed_scaling
            for row, value in enumerate(expert_by_hand(problem, expert, x)):
                total[row] += weight * value
    return total


def expert_by_hand(problem, expert, x):
    inner_size = problem.intermediate_size
    rows = affine(problem.gate_up[expert].tolist(), x, problem.gate_up_bias[expert].tolist())
    pairs = [
        (rows[2 * i], rows[2 * i + 1]) if problem.activation.interleaved else (rows[i], rows[inner_size + i])
        for i in range(inner_size)
    ]
    inner = [gated(gate, up, problem.activation) for gate, up in pairs]
    return affine(problem.down[expert].tolist(), inner, problem.down_bias[expert].tolist())


def affine(matrix, vector, bias):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) + c for row, c in zip(matrix, bias, strict=True)]


def gated(gate, up, activation):
    if activation.limit is not None:
        gate, up = min(gate, activation.limit), max(min(up, activation.limit), -activation.limit)
    return gate / (1 + math.exp(-activation.alpha * gate)) * (up + activation.shift)


@pytest.mark.parametrize("activation", ["swiglu", "swiglu-chunked", "silu"])
@pytest.mark.parametrize("mask", ["none", "ep"])
def test_oracle__equals_the_sum_by_hand(activation, mask):
    problem = build(LayerCase(E=4, k=2, H=6, I=5, M=3, activation=activation, mask=mask, scaling=2.5))

    answer = oracle(problem)

    expected = torch.tensor([by_hand(problem, token) for token in range(3)], dtype=torch.float64)
    assert torch.allclose(answer, expected, rtol=1e-12, atol=1e-12)


def test_oracle__is_zero_for_tokens_without_a_local_expert():
    problem = build(LayerCase(mask="padded", M=16))

    answer = oracle(problem)

    assert answer[12:].count_nonzero() == 0
    assert bool((answer[:12].abs().sum(dim=1) > 0).all())


def test_oracle__weighs_the_input_before_the_activation():
    case = LayerCase(activation="silu", bias="off", on_input=1, k=1)
    problem = build(case)
    scaled = build(LayerCase(activation="silu", bias="off", k=1))
    scaled.hidden.mul_(problem.topk_weights)
    scaled.topk_weights.fill_(1.0)

    assert torch.allclose(oracle(problem), oracle(scaled), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "gate", "up", "expected"),
    [
        (SILU, 2.0, 3.0, 2.0 / (1 + math.exp(-2.0)) * 3.0),
        (SWIGLU_CHUNKED, 100.0, -100.0, 7.0 / (1 + math.exp(-1.702 * 7)) * -6.0),
        (SWIGLU, -100.0, 100.0, 0.0),
        (SWIGLU, 1.0, 0.0, 1.0 / (1 + math.exp(-1.702))),
    ],
)
def test_activate__clamps_and_shifts(activation, gate, up, expected):
    rows = torch.tensor([[gate, up]], dtype=torch.float64)

    assert activate(rows, activation).item() == pytest.approx(expected, abs=1e-12)


def test_route__renormalised_equals_softmax_over_the_kept_logits():
    logits = torch.randn(50, 16, generator=torch.Generator().manual_seed(1))

    weights, ids = route(logits, 4, renormalize=True)

    assert torch.allclose(weights, torch.softmax(logits.gather(1, ids.long()), dim=1), atol=1e-6)
    assert ids.dtype == torch.int32


def test_route__without_renormalising_leaves_probabilities():
    logits = torch.randn(50, 16, generator=torch.Generator().manual_seed(2))

    weights, ids = route(logits, 4, renormalize=False)

    assert torch.equal(weights, torch.softmax(logits, dim=1).gather(1, ids.long()))
    assert bool((weights.diff(dim=1) <= 0).all())


def test_build__same_case_gives_the_same_bits():
    first, second = build(LayerCase(seed=3)), build(LayerCase(seed=3))
    other = build(LayerCase(seed=4))

    assert torch.equal(first.gate_up, second.gate_up)
    assert torch.equal(first.topk_ids, second.topk_ids)
    assert not torch.equal(first.gate_up, other.gate_up)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_build__exact_data_survives_rounding_to_the_dtype(dtype):
    answer = oracle(build(LayerCase(activation="silu", data="exact", dtype=dtype)))

    assert torch.equal(answer, answer.to(getattr(torch, dtype)).double())
    assert answer.count_nonzero() > answer.numel() / 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("E=8,z=1", "unknown field 'z'"),
        ("E=eight", "E='eight' is not int"),
        ("dtype=int4", "choose one of float32"),
        ("E=2,k=3", "k <= E"),
        ("data=exact", "activation=silu"),
    ],
)
def test_parse__names_the_broken_field(text, message):
    with pytest.raises(MoeInputError, match=message):
        LayerCase.parse(text)


def test_problem__refuses_biases_with_weights_on_input():
    with pytest.raises(MoeInputError, match="weight_on_input"):
        build(LayerCase(on_input=1))


@pytest.mark.parametrize("activation", ["swiglu", "silu"])
def test_oracle__quantised_layer_equals_the_sum_by_hand(activation):
    """One token and one expert, scales looked up element by element and activations rounded group by group."""
    problem = build(LayerCase(E=2, k=1, H=136, I=136, M=1, dtype="bfloat16", activation=activation, bias="off", quant="fp8"))
    expert, weight = int(problem.topk_ids[0, 0]), float(problem.topk_weights[0, 0])

    def rounded(row):
        found = []
        for start in range(0, len(row), 128):
            group = torch.tensor(row[start : start + 128], dtype=torch.float32)
            scale = group.abs().max() / 448
            found += ((group / scale).to(torch.float8_e4m3fn).double() * scale.double()).tolist()
        return found

    def product(row, codes, scales):
        values = codes[expert].double().tolist()
        return [
            sum(x * values[n][k] * float(scales[expert, n // 128, k // 128]) for k, x in enumerate(row))
            for n in range(len(values))
        ]

    both = torch.tensor([product(rounded(problem.hidden[0].tolist()), problem.gate_up, problem.scales.gate_up)])
    inner = activate(both.double(), problem.activation).to(torch.bfloat16)[0].tolist()
    expected = torch.tensor(product(rounded(inner), problem.down, problem.scales.down)).double() * weight

    assert torch.allclose(oracle(problem)[0], expected, rtol=1e-6, atol=1e-6)


def test_round_rows__keeps_codes_zeros_and_nan():
    rows = torch.zeros(3, 200)
    rows[0, :4] = torch.tensor([448.0, 26.0, -0.001953125, 240.0])
    rows[1, 130] = float("nan")

    found = round_rows(rows)

    assert torch.equal(found[0], rows[0])
    assert found[1, :128].eq(0).all()
    assert found[1, 128:].isnan().all()
    assert found[2].eq(0).all()


def test_oracle__4_bit_layer_equals_the_layer_of_its_numbers():
    """Weights read nibble by nibble in Python, then the plain layer."""
    problem = build(LayerCase(E=2, k=2, H=64, I=32, M=3, dtype="bfloat16", quant="mxfp4"))
    table = [0, 0.5, 1, 1.5, 2, 3, 4, 6]

    def read(pairs, scales):
        rows = []
        for row, scale in zip(pairs.tolist(), scales.tolist(), strict=True):
            codes = [half for byte in row for half in (byte % 16, byte // 16)]
            signs = [-1 if code >= 8 else 1 for code in codes]
            rows.append(
                [s * table[c % 8] * 2.0 ** (scale[i // 32] - 127) for i, (s, c) in enumerate(zip(signs, codes, strict=True))]
            )
        return rows

    weights = {
        name: torch.tensor([read(*both) for both in zip(getattr(problem, name), getattr(problem.scales, name), strict=True)])
        for name in ("gate_up", "down")
    }
    plain = replace(problem, scales=None, **{name: weight.to(torch.bfloat16) for name, weight in weights.items()})

    assert all(torch.equal(weight.to(torch.bfloat16).float(), weight) for weight in weights.values())
    assert torch.equal(oracle(problem), oracle(plain))


def test_build__4_bit_weights_use_every_code():
    problem = build(LayerCase(dtype="bfloat16", quant="mxfp4"))

    assert unpack_pairs(problem.down[0]).unique().tolist() == list(range(16))
    assert problem.scales.down.unique().numel() > 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dtype=bfloat16,quant=mxfp4,I=80", "multiples of 32"),
        ("quant=fp8", "16-bit tokens"),
        ("dtype=bfloat16,quant=fp8,activation=silu,data=exact", "drawn data"),
        ("dtype=bfloat16,quant=fp8,activation=silu,bias=off,on_input=1", "weights on the output"),
        ("dtype=bfloat16,quant=fp4", "choose one of none, fp8"),
    ],
)
def test_case__refuses_quantised_layers_that_are_not_defined(text, message):
    with pytest.raises(MoeInputError, match=message):
        LayerCase.parse(text)


def test_problem__refuses_scales_of_another_shape():
    problem = build(LayerCase(H=256, dtype="bfloat16", quant="fp8"))
    wrong = replace(problem.scales, down=problem.scales.down.mT.contiguous())

    with pytest.raises(MoeInputError, match=r"scales.down has shape"):
        replace(problem, scales=wrong)
