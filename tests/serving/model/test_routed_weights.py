"""The plug-in fills real tensors as its recipe says; SGLang itself is only in tests/e2e."""

from __future__ import annotations

import types

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from perfgate.errors import InputError
from perfgate.serving.model import routed_weights
from perfgate.serving.model.routed_recipe import (
    RECIPE_KEY,
    Sizes,
    assign_popularity,
    build_recipe,
    describe_marker,
    draw_key,
    write_recipe,
)
from perfgate.serving.model.routed_weights import FP4_VALUES, Place, UnknownParameterError, draw_bits, fill_model, initialize

HIDDEN, WIDTH, EXPERTS, TOP_K = 128, 96, 8, 2
CONFIG = {"hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_experts_per_tok": TOP_K}
RECIPE = build_recipe(
    Sizes(layers=4, hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, expert_width=WIDTH, attention_width=HIDDEN),
    imbalance=1.5,
    never_generated=(3,),
)
LAYER = "model.layers.0"


class Model:
    """What the plug-in reads of a server's model: its parameters by name, and its config."""

    def __init__(self, config=None, **parameters):
        self.parameters = {name.replace("__", "."): torch.nn.Parameter(data, False) for name, data in parameters.items()}
        self.config = types.SimpleNamespace(to_dict=lambda: config or {})

    def named_parameters(self):
        return self.parameters.items()


def fill(name, data, place=None, recipe=RECIPE, **more):
    """Fill a model of one parameter, and return it."""
    model = Model(**{name.replace(".", "__"): data, **more})
    fill_model(model, recipe, CONFIG, place or Place())
    return model.parameters[name].data


def hash_by_numpy(count, key):
    """The same integer hash, written a second time in unsigned arithmetic."""
    bits = np.arange(count, dtype=np.uint32) * np.uint32((key | 1) & 0xFFFFFFFF) + np.uint32(key >> 32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)
    return bits ^ (bits >> np.uint32(16))


@pytest.mark.parametrize("place", ["a", "b", "c"])
def test_draw_bits__equals_unsigned_arithmetic(place):
    key = draw_key(20, place)

    bits = draw_bits(10_001, key, "cpu").numpy().view(np.uint32)

    assert np.array_equal(bits, hash_by_numpy(10_001, key))


def test_fill_model__values_of_one_parameter_are_those_of_numpy():
    found = fill(f"{LAYER}.self_attn.qkv_proj.weight", torch.empty(32, HIDDEN)).numpy().ravel()

    raw = hash_by_numpy(32 * HIDDEN, draw_key(20, f"{LAYER}.self_attn.qkv_proj.weight", 0, 0))
    sums = raw.view(np.uint8).reshape(-1, 4).sum(1, dtype=np.int64) - 510
    spread = np.float32(RECIPE.spreads["attention_in"] / (4 * (256**2 - 1) / 12) ** 0.5)
    assert np.array_equal(found, sums.astype(np.float32) * spread)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fill_model__spread_is_the_recipes_and_values_look_normal(dtype):
    found = (
        fill(f"{LAYER}.self_attn.o_proj.weight", torch.empty(512, 512, dtype=dtype)).float() / RECIPE.spreads["attention_out"]
    )

    assert float(found.mean()) == pytest.approx(0, abs=0.01)
    assert float(found.std()) == pytest.approx(1, abs=0.01)
    # A normal distribution has 3; the sum of four uniform ones 2.7.
    assert float((found**4).mean()) == pytest.approx(2.7, abs=0.05)
    assert abs(float(np.corrcoef(found[:-1].ravel(), found[1:].ravel())[0, 1])) < 0.01


def test_fill_model__parameters_seeds_and_ranks_differ_and_replicas_do_not():
    name, other = f"{LAYER}.mlp.experts.w13_weight", "model.layers.1.mlp.experts.w13_weight"
    shape = (EXPERTS, 2 * WIDTH, HIDDEN)

    drawn = [
        fill(name, torch.empty(shape)),
        fill(other, torch.empty(shape)),
        fill(name, torch.empty(shape), Place(expert_rank=1)),
        fill(
            name,
            torch.empty(shape),
            recipe=build_recipe(
                Sizes(
                    layers=4,
                    hidden=HIDDEN,
                    experts=EXPERTS,
                    top_k=TOP_K,
                    expert_width=WIDTH,
                    attention_width=HIDDEN,
                ),
                seed=21,
                imbalance=1.5,
            ),
        ),
    ]

    for one in drawn[1:]:
        assert abs(float(np.corrcoef(drawn[0].ravel(), one.ravel())[0, 1])) < 0.02
    router = [fill(f"{LAYER}.mlp.gate.weight", torch.empty(EXPERTS, HIDDEN), Place(expert_rank=rank)) for rank in (0, 1)]
    assert torch.equal(*router)


def test_fill_model__a_large_parameter_is_drawn_in_parts_of_rows(monkeypatch):
    monkeypatch.setattr(routed_weights, "CHUNK", 1000)
    name = f"{LAYER}.mlp.experts.w2_weight"

    whole = fill(name, torch.empty(3, 40, 96))
    strided = fill(name, torch.empty(3, 40, 200)[:, :, :96])

    assert torch.equal(whole, strided)
    assert len(torch.unique(whole.view(-1, 96)[:, 0])) > 60


def test_fill_model__router_rows_have_the_recipes_popularity():
    name = f"{LAYER}.mlp.router.weight"

    found = fill(name, torch.empty(EXPERTS, 4096))

    factors = found.std(dim=1) / RECIPE.spreads["router"]
    assert torch.allclose(factors, torch.tensor(assign_popularity(RECIPE, name)), rtol=0.05)


def test_fill_model__tokens_never_generated_have_no_logit():
    found = fill("lm_head.weight", torch.empty(64, HIDDEN))

    assert [row for row in range(64) if not found[row].any()] == [3]
    assert len(torch.unique((found.std(dim=1) * 10).round())) > 3


def test_fill_model__mxfp4_codes_and_scales_have_the_spread_and_leave_the_padding_zero():
    packed = torch.full((EXPERTS, 2 * WIDTH + 64, HIDDEN // 2), 255, dtype=torch.uint8)
    scales = torch.full((EXPERTS, 2 * WIDTH + 64, HIDDEN // 32), 255, dtype=torch.uint8)
    weight, scale = f"{LAYER}.mlp.experts.w13_weight", f"{LAYER}.mlp.experts.w13_weight_scale"
    model = Model(**{weight.replace(".", "__"): packed, scale.replace(".", "__"): scales})

    fill_model(model, RECIPE, CONFIG, Place())

    assert not packed[:, 2 * WIDTH :].any()
    assert not scales[:, 2 * WIDTH :].any()
    codes = np.stack((packed.numpy() & 15, packed.numpy() >> 4), -1)[:, : 2 * WIDTH].reshape(EXPERTS, 2 * WIDTH, HIDDEN)
    values = np.array([*FP4_VALUES, *(-value for value in FP4_VALUES)])[codes]
    values *= 2.0 ** (scales.numpy()[:, : 2 * WIDTH].repeat(32, -1).astype(float) - 127)
    assert values.std() == pytest.approx(RECIPE.spreads["gate_up"], rel=0.02)
    assert len(np.unique(codes)) > 13
    assert len(np.unique(scales.numpy()[:, : 2 * WIDTH])) == 2


@pytest.mark.parametrize(("column", "own"), [(0, 64), (1, 32)])
def test_fill_model__a_tensor_rank_fills_its_own_blocks_of_mxfp4_alone(column, own):
    """Three blocks of 32 among two ranks: the first holds two, and the engine pads both to 128."""
    packed = torch.full((EXPERTS, 2 * 128, 16), 255, dtype=torch.uint8)
    down = torch.full((EXPERTS, 32, 64), 255, dtype=torch.uint8)
    gate_up_name, down_name = f"{LAYER}.mlp.experts.w13_weight", f"{LAYER}.mlp.experts.w2_weight"
    model = Model(**{gate_up_name.replace(".", "__"): packed, down_name.replace(".", "__"): down})

    fill_model(model, RECIPE, {"hidden_size": 32, "intermediate_size": 96}, Place(column=column, columns=2))

    assert packed[:, : 2 * own].any(dim=-1).all()
    assert not packed[:, 2 * own :].any()
    assert down[:, :, : own // 2].any(dim=-1).all()
    assert not down[:, :, own // 2 :].any()


def test_fill_model__fp8_blocks_have_the_spread_and_different_scales():
    weight, scale = f"{LAYER}.mlp.experts.w2_weight", f"{LAYER}.mlp.experts.w2_weight_scale_inv"
    numbers, scales = torch.empty(EXPERTS, 512, 512).to(torch.float8_e4m3fn), torch.ones(EXPERTS, 4, 4)
    model = Model(**{weight.replace(".", "__"): numbers, scale.replace(".", "__"): scales})

    fill_model(model, RECIPE, CONFIG, Place())

    values = numbers.float().view(EXPERTS, 4, 128, 4, 128) * scales.view(EXPERTS, 4, 1, 4, 1)
    assert bool(torch.isfinite(values).all())
    # The mean square of 128 blocks of four scales scatters by a few percent.
    assert float(values.std()) == pytest.approx(RECIPE.spreads["down"], rel=0.12)
    assert len(torch.unique(scales)) == 4


def test_fill_model__a_parameter_that_no_recipe_knows_is_named():
    with pytest.raises(UnknownParameterError, match=r"no recipe for model\.layers\.0\.mixer\.conv"):
        fill(f"{LAYER}.mixer.conv", torch.empty(4))


def test_initialize__fills_a_routed_model_and_says_so(capsys):
    model = Model({**CONFIG, **write_recipe(RECIPE)}, model__norm__weight=torch.zeros(HIDDEN))
    calls = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routed_weights, "find_place", Place)
        initialize(calls.append, model)

    assert calls == []
    assert bool((model.parameters["model.norm.weight"] == 1).all())
    assert capsys.readouterr().out == f"{describe_marker(RECIPE)} 1 tensors\n"


def test_initialize__any_other_model_is_left_to_the_engine(capsys):
    model = Model({"hidden_size": 8}, model__norm__weight=torch.zeros(8))
    calls = []

    initialize(lambda *args, **kwargs: calls.append((args, kwargs)), model, 1, high=2)

    assert calls == [((model, 1), {"high": 2})]
    assert (bool(model.parameters["model.norm.weight"].any()), capsys.readouterr().out) == (False, "")


def test_initialize__a_recipe_of_another_version_stops_the_server():
    model = Model({**write_recipe(RECIPE), RECIPE_KEY: {"version": 99}}, model__norm__weight=torch.zeros(8))

    with pytest.raises(InputError, match="version is 99"):
        initialize(list.append, model)
