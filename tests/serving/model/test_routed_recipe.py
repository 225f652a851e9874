from __future__ import annotations

import pytest

from perfgate.errors import InputError
from perfgate.serving.model.routed_recipe import (
    RECIPE_KEY,
    VERSION,
    Sizes,
    assign_collapse,
    assign_popularity,
    build_recipe,
    choose_popularity,
    describe_marker,
    find_role,
    list_loads,
    list_word_factors,
    read_recipe,
    write_recipe,
)

GPT_OSS = Sizes(layers=24, hidden=2880, experts=32, top_k=4, expert_width=2880, attention_width=4096, is_clamped=True)


@pytest.mark.parametrize(("experts", "top_k", "imbalance"), [(32, 4, 2.0), (128, 8, 3.0), (256, 8, 1.0), (8, 2, 1.5)])
def test_choose_popularity__the_largest_load_is_the_wanted_one(experts, top_k, imbalance):
    factors = choose_popularity(experts, top_k, imbalance)

    loads = list_loads(factors, top_k)

    assert max(loads) == pytest.approx(imbalance, abs=0.01)
    assert sum(loads) == pytest.approx(experts, rel=1e-6)
    assert sum(factor**2 for factor in factors) / experts == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize(
    ("imbalance", "words"),
    [(0.5, "must be at least 1"), (5.0, "4 of 32 experts reach at most 3.58"), (float("nan"), "must be at least 1")],
)
def test_choose_popularity__what_no_router_can_have(imbalance, words):
    with pytest.raises(InputError, match=words):
        choose_popularity(32, 4, imbalance)


def test_assign_popularity__every_layer_and_seed_has_its_own_popular_experts():
    recipe, other = build_recipe(GPT_OSS), build_recipe(GPT_OSS, seed=21)
    names = [f"model.layers.{layer}.mlp.router.weight" for layer in range(24)]

    popular = [max(range(32), key=assign_popularity(recipe, name).__getitem__) for name in names]

    assert len(set(popular)) > 10
    assert sorted(assign_popularity(recipe, names[0])) == sorted(recipe.popularity)
    assert assign_popularity(other, names[0]) != assign_popularity(recipe, names[0])


def test_assign_collapse__top_k_experts_of_each_layer():
    recipe = build_recipe(GPT_OSS, collapsed=True)

    biases = [assign_collapse(recipe, f"model.layers.{layer}.mlp.router", 4) for layer in range(2)]

    assert [sum(value > 0 for value in bias) for bias in biases] == [4, 4]
    assert biases[0] != biases[1]


def test_list_word_factors__mean_square_is_one():
    factors = list_word_factors()

    assert len(factors) == 256
    assert sum(factor**2 for factor in factors) / 256 == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("model.norm.weight", "norm"),
        ("model.layers.0.input_layernorm.weight", "norm"),
        ("model.layers.0.self_attn.q_norm.weight", "qk_norm"),
        ("model.layers.0.self_attn.kv_a_layernorm.weight", "norm"),
        ("model.layers.0.self_attn.qkv_proj.weight", "attention_in"),
        ("model.layers.0.self_attn.qkv_proj.bias", "bias"),
        ("model.layers.0.self_attn.o_proj.weight", "attention_out"),
        ("model.layers.0.self_attn.o_proj.bias", "out_bias"),
        ("model.layers.0.self_attn.sinks", "sink"),
        ("model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight_scale_inv", "attention_in"),
        ("model.layers.0.self_attn.q_b_proj.weight", "query_up"),
        ("model.layers.0.self_attn.kv_b_proj.weight_scale_inv", "value_up"),
        ("model.layers.0.self_attn.attn_mqa.k_scale", "cache_scale"),
        ("model.layers.0.mlp.gate.weight", "router"),
        ("model.layers.0.mlp.router.bias", "router_bias"),
        ("model.layers.1.mlp.gate.e_score_correction_bias", "router_bias"),
        ("model.layers.0.mlp.experts.w13_weight", "gate_up"),
        ("model.layers.0.mlp.experts.w13_weight_scale", "gate_up"),
        ("model.layers.0.mlp.experts.w13_weight_bias", "bias"),
        ("model.layers.0.mlp.experts.w2_weight_scale_inv", "down"),
        ("model.layers.0.mlp.experts.w2_weight_bias", "out_bias"),
        ("model.layers.0.mlp.experts.3.up_proj.weight", "gate_up"),
        ("model.layers.0.mlp.experts.down_proj", "down"),
        ("model.layers.1.mlp.shared_experts.gate_up_proj.weight", "shared_gate_up"),
        ("model.layers.1.mlp.shared_experts.down_proj.weight", "shared_down"),
        ("model.layers.0.mlp.gate_up_proj.weight", "dense_gate_up"),
        ("model.layers.0.mlp.down_proj.weight", "dense_down"),
        ("model.layers.0.temporal.conv1d.weight", None),
    ],
)
def test_find_role__names_of_servers_and_checkpoints(name, role):
    assert find_role(name) == role


def test_read_recipe__reads_what_was_written():
    recipe = build_recipe(GPT_OSS, seed=3, imbalance=1.5, never_generated=(1, 2), collapsed=True)

    assert read_recipe(write_recipe(recipe), "config.json") == recipe
    assert describe_marker(recipe) == f"perfgate: routed weights v{VERSION} seed 3:"


@pytest.mark.parametrize("config", [{}, {"perfgate_weights": "random", RECIPE_KEY: {"version": 9}}])
def test_read_recipe__other_models_have_none(config):
    assert read_recipe(config, "config.json") is None


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"version": VERSION + 1}, f"version is {VERSION + 1}, this perfgate follows {VERSION}; make the model again"),
        (None, "perfgate_recipe.version is None"),
        ({"version": VERSION, "seed": 1}, "perfgate_recipe: cannot be read"),
    ],
)
def test_read_recipe__one_that_cannot_be_followed(recipe, words):
    with pytest.raises(InputError, match=words):
        read_recipe({"perfgate_weights": "routed", RECIPE_KEY: recipe}, "m/config.json")
