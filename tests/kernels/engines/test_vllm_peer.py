"""What vLLM's layer is handed, without vLLM: weights scaled, experts of other ranks, one cut for both products."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the kernel suite needs torch: install the extra cpu-engine or gpu")

import torch

from perfgate_moe.engines import vllm_peer
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer.reference import oracle
from perfgate_moe.timing.search import GROUPS, MANY_ROWS, search_alike


def test_fold_scaling__same_layer_with_router_weights_scaled():
    problem = build(LayerCase(M=3, scaling=2.5))

    folded = vllm_peer.fold_scaling(problem)

    assert folded.routed_scaling == 1.0
    torch.testing.assert_close(oracle(folded), oracle(problem), rtol=1e-4, atol=1e-6)
    assert vllm_peer.fold_scaling(folded) is folded


def test_experts__no_map_where_all_are_here():
    problem = build(LayerCase(E=4, k=2, M=3))

    asked = vllm_peer._experts(problem)

    assert asked["expert_map"] is None
    assert asked["topk_ids"] is problem.topk_ids
    assert asked["global_num_experts"] == 4


def test_experts__one_elsewhere_stands_for_all_of_other_ranks():
    problem = build(LayerCase(E=4, k=2, M=2))
    problem = replace(problem, topk_ids=torch.tensor([[1, -1], [-1, 3]], dtype=torch.int32))

    asked = vllm_peer._experts(problem)

    assert asked["topk_ids"].tolist() == [[1, 4], [4, 3]]
    assert asked["expert_map"].tolist() == [0, 1, 2, 3, -1]
    assert asked["global_num_experts"] == 5


def test_layer__eight_bits_want_whole_groups():
    problem = build(LayerCase(E=4, k=2, H=192, I=128, M=3, dtype="bfloat16", quant="fp8"))

    with pytest.raises(NotApplicableError, match="whole groups of 128 columns"):
        vllm_peer._run_on_gpu(problem, None)


def test_layer__a_build_for_gpus_has_no_layer_for_a_cpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", SimpleNamespace())
    problem = build(LayerCase(E=4, k=2, H=64, I=64, M=3, dtype="bfloat16"))

    with pytest.raises(NotApplicableError, match="ask for --device cuda"):
        vllm_peer._run_on_cpu(problem)


def test_search_alike__tries_each_cut_and_then_row_groups():
    seen = []

    def seconds(plan):
        seen.append(plan)
        return (plan.gate_up.n != 256, plan.gate_up.stages, plan.gate_up.group_m)

    best = search_alike(MANY_ROWS, seconds)

    assert all(plan.gate_up == plan.down for plan in seen)
    assert (best.gate_up.n, best.gate_up.group_m) == (256, min(GROUPS))
