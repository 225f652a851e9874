"""What SGLang's layer of 4-bit weights is handed, without SGLang: scores that choose the experts, weights laid out once."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the kernel suite needs torch: install the extra cpu-engine or gpu")

import torch

from perfgate_moe.engines import sglang_mxfp4_peer as peer
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build

CASE = "E=8,k=4,H=64,I=64,M=5,dtype=bfloat16,quant=mxfp4"


@pytest.fixture
def asked(monkeypatch):
    """What stands for SGLang's names, and what they were asked."""
    seen = {"laid out": 0}

    def topk(scores, top_k, *, apply_softmax):
        seen["apply_softmax"] = apply_softmax
        vals, indx = scores.topk(top_k)
        metadata = SimpleNamespace(col_sorted_indx=torch.arange(indx.numel()), row_sorted_indx=indx.flatten(), col_sum=None)
        seen["chosen"] = (vals, indx)
        return SimpleNamespace(vals=vals, mask_metadata=metadata)

    def swizzle(pairs, scales, warps):
        seen["laid out"] += 1
        return ("weight", pairs), "flex", ("scale", scales, warps)

    def experts(hidden, **words):
        seen["words"] = words
        return hidden

    names = SimpleNamespace(
        topk=topk, swizzle=swizzle, experts=experts, precision=dict, flex=dict,
        rows=lambda *_: SimpleNamespace(slice_sizes=None),
        routing=lambda *words: words, gather=lambda *words: words, scatter=lambda *words: words,
    )  # fmt: skip
    monkeypatch.setattr(peer, "_names", lambda: names)
    return seen


def test_layer__scores_choose_the_problems_experts_with_its_router_weights(asked):
    problem = build(LayerCase.parse(CASE))
    peer.layer(problem)
    vals, indx = asked["chosen"]

    assert asked["apply_softmax"] is False
    wanted, order = problem.topk_weights.sort(descending=True)
    torch.testing.assert_close(vals, wanted)
    assert indx.tolist() == problem.topk_ids.gather(1, order).tolist()


def test_layer__products_get_weights_scales_and_biases_in_float32(asked):
    problem = build(LayerCase.parse(CASE))
    peer.layer(problem)
    words = asked["words"]

    assert words["w1"][1] is problem.gate_up
    assert words["w2_pcg"]["weight_scale"] == ("scale", problem.scales.down, peer.WARPS)
    assert words["b1"].dtype == torch.float32
    assert (words["gemm1_alpha"], words["gemm1_clamp_limit"]) == (1.702, 7.0)


def test_layer__weights_are_laid_out_and_tokens_routed_once_where_that_was_asked_before(asked):
    loaded = peer.route_ahead(peer.load(build(LayerCase.parse(CASE))))
    asked.pop("chosen")
    for _ in range(2):
        peer.layer(peer.score_ahead(loaded))

    assert asked["laid out"] == 2
    assert "chosen" not in asked


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("E=8,k=4,H=64,I=64,M=5,dtype=bfloat16", "4-bit weights and bfloat16"),
        ("E=8,k=4,H=64,I=64,M=5,dtype=float16,quant=mxfp4", "4-bit weights and bfloat16"),
        (f"{CASE},activation=silu", "gpt-oss' activation"),
        (f"{CASE},scaling=2.5", "unscaled"),
        ("E=8,k=4,H=64,I=96,M=5,dtype=bfloat16,quant=mxfp4", "no multiple of 64"),
        (f"{CASE},mask=ep", "all experts at hand"),
    ],
)
@pytest.mark.usefixtures("asked")
def test_load__what_the_runner_does_not_cover_is_told(case, message):
    with pytest.raises(NotApplicableError, match=message):
        peer.load(build(LayerCase.parse(case)))
