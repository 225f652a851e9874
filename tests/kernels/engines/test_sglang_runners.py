"""What SGLang's other runners are handed, without SGLang: weights in its sizes, made once, and the problem's own routing."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="the kernel suite needs torch: install the extra cpu-engine or gpu")

import torch

from perfgate_moe.engines import sglang_runners as runners
from perfgate_moe.engines.sglang_runners import DEEP_GEMM, FLASHINFER, MARLIN
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build

FOUR_BITS = "E=3,k=2,H=160,I=96,M=5,dtype=bfloat16,quant=mxfp4"
EIGHT_BITS = "E=3,k=2,H=128,I=128,M=5,dtype=bfloat16,activation=silu,bias=off,scaling=2.5,quant=fp8"


class Dispatch(NamedTuple):
    hidden_states: Any
    hidden_states_scale: Any
    topk_output: Any


class TopK(NamedTuple):
    topk_weights: Any
    topk_ids: Any
    router_logits: Any


@pytest.fixture
def asked(monkeypatch):
    """What stands for SGLang's names, and what they were asked."""
    seen = {"steps": [], "handed": []}

    class Standing:
        def __init__(self, backend, config):
            seen["backend"], seen["config"] = backend, config

        def run(self, handed, weights):
            seen["handed"].append((handed, weights))
            return SimpleNamespace(hidden_states=handed.hidden_states * 2)

    def step(name):
        return lambda layer: seen["steps"].append((name, {key: value.clone() for key, value in layer.named_parameters()}))

    class Method:
        """SGLang's method, of which one function is called, without an object of it."""

        def _process_weights_for_sm90_cutlass(self, layer):
            step("process")(layer)
            seen["sizes"] = (self._padded_hidden, self._padded_intermediate)
            for name in ("swiglu_alpha", "swiglu_beta", "swiglu_limit"):
                setattr(layer, name, torch.ones(layer.num_local_experts))

    @contextmanager
    def tuning():
        seen["steps"].append(("tuning", {}))
        yield
        seen["steps"].append(("tuned", {}))

    names = SimpleNamespace(
        runner=Standing, config=SimpleNamespace, backend=str, dispatch=Dispatch, topk=TopK,
        weights=SimpleNamespace, part=step("part"), prepare=step("prepare"),
        module=SimpleNamespace(), compiling=SimpleNamespace(_ENABLE_JIT_DEEPGEMM_PRECOMPILE=True), is_enabled=True,
        method=Method, tuning=tuning,
    )  # fmt: skip
    monkeypatch.setattr(runners, "_names", lambda _: names)
    seen["names"] = names
    return seen


def test_marlin__layer_of_sglangs_sizes_has_zeros_behind_the_weights(asked):
    problem = build(LayerCase.parse(FOUR_BITS))
    answer = runners.marlin(problem)
    (first, own), (second, _) = asked["steps"]

    assert (first, second, asked["backend"]) == ("part", "prepare", "marlin")
    assert {name: tuple(one.shape) for name, one in own.items()} == {
        "w13_weight": (3, 256, 128), "w13_weight_scale": (3, 256, 8), "w13_weight_bias": (3, 256),
        "w2_weight": (3, 256, 64), "w2_weight_scale": (3, 256, 4), "w2_weight_bias": (3, 256),
    }  # fmt: skip
    assert torch.equal(own["w13_weight"][:, :192, :80], problem.gate_up)
    assert torch.equal(own["w2_weight_scale"][:, :160, :3], problem.scales.down)
    assert torch.equal(own["w2_weight_bias"][:, :160], problem.down_bias)
    assert not own["w13_weight"][:, 192:].any()
    assert not own["w13_weight"][:, :, 80:].any()
    ((handed, weights),) = asked["handed"]
    assert handed.hidden_states.shape == (5, 256)
    assert not handed.hidden_states[:, 160:].any()
    assert torch.equal(answer, problem.hidden * 2)
    assert (handed.topk_output.topk_ids, handed.topk_output.topk_weights) == (problem.topk_ids, problem.topk_weights)
    assert weights.weight_bits == 4
    assert (asked["config"].gemm1_alpha, asked["config"].gemm1_clamp_limit) == (1.702, 7.0)


def test_marlin__a_layer_without_biases_has_zeros_as_sglang_makes_them(asked):
    runners.load(MARLIN, build(LayerCase.parse(f"{FOUR_BITS},bias=off")))
    own = asked["steps"][0][1]

    assert own["w13_weight_bias"].dtype == own["w2_weight_bias"].dtype == torch.bfloat16
    assert not own["w13_weight_bias"].any()


def test_flashinfer__weights_are_sglangs_and_tiles_are_chosen_for_many_tokens_first(asked, monkeypatch):
    monkeypatch.setattr(runners, "TUNED_TOKENS", 7)
    problem = build(LayerCase.parse(FOUR_BITS))
    answer = runners.flashinfer(problem)
    (_, own), *tuned = asked["steps"]

    assert torch.equal(own["w13_weight"], problem.gate_up)
    assert torch.equal(own["w2_weight_scale"], problem.scales.down)
    assert asked["sizes"] == (256, 128)
    assert [name for name, _ in tuned] == ["tuning", "tuned"]
    (many, _), (handed, weights) = asked["handed"]
    assert many.hidden_states.shape == (7, 160)
    assert many.topk_output.topk_ids.tolist()[:2] == [[0, 1], [2, 0]]
    # The runner pads hidden states itself, and cuts its answer.
    assert (handed.hidden_states.shape, weights.padded_hidden) == ((5, 160), 256)
    assert torch.equal(answer, problem.hidden * 2)
    assert (asked["backend"], asked["names"].module.is_allocation_symmetric()) == ("flashinfer_mxfp4", False)


def test_layer__weights_are_laid_out_once_where_that_was_asked_before(asked):
    loaded = runners.load(MARLIN, build(LayerCase.parse(FOUR_BITS)))
    for seed in range(2):
        hidden = torch.full_like(loaded.hidden, seed)
        assert torch.equal(runners.layer(MARLIN, replace(loaded, hidden=hidden)), hidden * 2)

    assert len(asked["steps"]) == 2
    assert len(asked["handed"]) == 2


def test_deep_gemm__weights_are_read_as_they_are_and_hidden_states_by_a_tensor_of_its_own(asked):
    problem = build(LayerCase.parse(EIGHT_BITS))
    runners.deep_gemm(problem)
    ((handed, weights),) = asked["handed"]

    assert weights.w13_weight is problem.gate_up
    assert weights.w2_scale is problem.scales.down
    assert weights.block_shape == [128, 128]
    # SGLang frees what it was handed, by the tensor.
    handed.hidden_states.set_(torch.empty(0, dtype=torch.bfloat16))
    assert problem.hidden.shape == (5, 128)
    assert (asked["backend"], asked["config"].routed_scaling_factor, asked["config"].gemm1_alpha) == ("deep_gemm", 2.5, None)
    assert asked["names"].module.get_tp_group() is None
    assert asked["names"].compiling._ENABLE_JIT_DEEPGEMM_PRECOMPILE is False


def test_load__deep_gemm_that_sglang_does_not_find_is_told(asked):
    asked["names"].is_enabled = False
    with pytest.raises(NotApplicableError, match="needs sgl-deep-gemm"):
        runners.load(DEEP_GEMM, build(LayerCase.parse(EIGHT_BITS)))


@pytest.mark.parametrize(
    ("name", "case", "message"),
    [
        (MARLIN, EIGHT_BITS, "asked for 4-bit weights"),
        (MARLIN, FOUR_BITS.replace("bfloat16", "float16"), "asked for bfloat16"),
        (MARLIN, f"{FOUR_BITS},activation=silu", "gpt-oss' activation"),
        (MARLIN, f"{FOUR_BITS},scaling=2.5", "unscaled"),
        (MARLIN, f"{FOUR_BITS},mask=ep", "all experts at hand"),
        (FLASHINFER, EIGHT_BITS, "sglang-flashinfer-mxfp4 is asked for 4-bit weights"),
        (DEEP_GEMM, FOUR_BITS, "asked for 8-bit weights"),
        (DEEP_GEMM, EIGHT_BITS.replace("silu", "swiglu"), "SiLU without biases"),
        (DEEP_GEMM, EIGHT_BITS.replace("bias=off", "bias=on"), "SiLU without biases"),
        (DEEP_GEMM, EIGHT_BITS.replace("I=128", "I=96"), "whole groups of 128"),
    ],
)
@pytest.mark.usefixtures("asked")
def test_load__what_a_runner_does_not_cover_is_told(name, case, message):
    with pytest.raises(NotApplicableError, match=message):
        runners.load(name, build(LayerCase.parse(case)))


def test_is_installed__asks_for_the_runners_packages_and_a_gpu(monkeypatch):
    present = {"sglang", "tvm_ffi"}
    monkeypatch.setattr(runners, "find_spec", lambda name: name if name in present else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    assert runners.RUNNERS[MARLIN].is_installed()
    assert not runners.RUNNERS[DEEP_GEMM].is_installed()
    present |= {"flashinfer"}
    assert not runners.RUNNERS[FLASHINFER].is_installed()
    present |= {"flashinfer_jit_cache"}
    assert runners.RUNNERS[FLASHINFER].is_installed()
