"""vLLM's plug-in fills its models as SGLang's are; vLLM itself is not installed here, so its loader is made up."""

import sys
import types

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from perfgate.serving.model import vllm_weights
from perfgate.serving.model.routed_recipe import MARKER, Sizes, build_recipe, write_recipe
from perfgate.serving.model.routed_weights import Place, UnknownParameterError, fill_model
from perfgate.serving.model.vllm_weights import register, rename

HIDDEN, WIDTH, EXPERTS, TOP_K = 64, 64, 8, 2
SIZES = Sizes(layers=2, hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K, expert_width=WIDTH, attention_width=HIDDEN)
RECIPE = build_recipe(SIZES, imbalance=1.5)
CONFIG = {"hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_experts_per_tok": TOP_K}
# By vLLM 0.26.0's names; each with the published one and its form, bytes where MXFP4 is packed.
PARAMETERS = {
    "model.embedding.weight": ("model.embed_tokens.weight", torch.empty(96, HIDDEN)),
    "model.layers.0.attn.qkv_proj.weight": ("model.layers.0.self_attn.qkv_proj.weight", torch.empty(HIDDEN, HIDDEN)),
    "model.layers.0.attn.o_proj.bias": ("model.layers.0.self_attn.o_proj.bias", torch.empty(HIDDEN)),
    "model.layers.0.attn.sinks": ("model.layers.0.self_attn.sinks", torch.empty(4)),
    "model.layers.0.mlp.router.weight": ("model.layers.0.mlp.router.weight", torch.empty(EXPERTS, HIDDEN)),
    "model.layers.0.mlp.experts.routed_experts.w13_weight": (
        "model.layers.0.mlp.experts.w13_weight",
        torch.empty(EXPERTS, 2 * WIDTH, HIDDEN // 2, dtype=torch.uint8),
    ),
    "model.layers.0.mlp.experts.routed_experts.w13_weight_scale": (
        "model.layers.0.mlp.experts.w13_weight_scale",
        torch.empty(EXPERTS, 2 * WIDTH, HIDDEN // 32, dtype=torch.uint8),
    ),
    "model.layers.0.mlp.experts.routed_experts.w13_bias": (
        "model.layers.0.mlp.experts.w13_weight_bias",
        torch.empty(EXPERTS, 2 * WIDTH),
    ),
    "model.layers.0.mlp.experts.routed_experts.w2_bias": (
        "model.layers.0.mlp.experts.w2_weight_bias",
        torch.empty(EXPERTS, HIDDEN),
    ),
    "model.layers.0.input_layernorm.weight": ("model.layers.0.input_layernorm.weight", torch.empty(HIDDEN)),
    "lm_head.weight": ("lm_head.weight", torch.empty(96, HIDDEN)),
}


class Model:
    """What the plug-in reads of a model."""

    def __init__(self, config, names):
        self.config = types.SimpleNamespace(to_dict=lambda: config)
        self.parameters = {name: torch.nn.Parameter(data.clone(), requires_grad=False) for name, data in names.items()}

    def named_parameters(self):
        return self.parameters.items()


@pytest.fixture
def loader(monkeypatch):
    """vLLM's loader with the plug-in in it, and whom vLLM drew weights for by itself."""
    drawn = []

    class DummyModelLoader:
        def load_weights(self, model, model_config):
            drawn.append((model, model_config))

    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.model_loader"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.ModuleType("vllm.model_executor.model_loader.dummy_loader")
    module.DummyModelLoader = DummyModelLoader
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ranks = types.ModuleType("vllm.distributed")
    ranks.get_tensor_model_parallel_world_size = lambda: 1
    ranks.get_pp_group = lambda: types.SimpleNamespace(world_size=1)
    monkeypatch.setitem(sys.modules, ranks.__name__, ranks)
    register()
    return types.SimpleNamespace(load=DummyModelLoader().load_weights, drawn=drawn, ranks=ranks)


@pytest.mark.parametrize(("theirs", "published"), [(name, published) for name, (published, _) in PARAMETERS.items()])
def test_rename__gives_the_published_name(theirs, published):
    assert rename(theirs) == published


def test_register__fills_as_the_other_engine_does(loader, capsys):
    config = CONFIG | write_recipe(RECIPE)
    model = Model(config, {name: data for name, (_, data) in PARAMETERS.items()})
    other = Model(config, dict(PARAMETERS.values()))
    fill_model(other, RECIPE, config, Place())

    loader.load(model, "a config")

    assert loader.drawn == []
    assert MARKER in capsys.readouterr().out
    for name, (published, _) in PARAMETERS.items():
        assert torch.equal(model.parameters[name], other.parameters[published]), name
    assert model.parameters["model.layers.0.mlp.experts.routed_experts.w13_weight"].unique().numel() > 100


def test_register__leaves_a_model_without_a_recipe_to_vllm(loader):
    model = Model(CONFIG, {"lm_head.weight": torch.empty(96, HIDDEN)})

    loader.load(model, "a config")

    assert loader.drawn == [(model, "a config")]


def test_register__refuses_a_model_on_two_gpus(loader):
    loader.ranks.get_tensor_model_parallel_world_size = lambda: 2

    with pytest.raises(UnknownParameterError, match="perfgate draws weights for vLLM on one GPU, and this server has 2"):
        loader.load(Model(CONFIG | write_recipe(RECIPE), {"lm_head.weight": torch.empty(96, HIDDEN)}), "a config")


def test_names__each_is_of_a_parameter():
    assert all(any(theirs in name for name in PARAMETERS) for theirs, _ in vllm_weights.NAMES)
