"""In which kinds of layer the time of a step was spent."""

from __future__ import annotations

import pytest

from perfgate.readers.traces import sum_layers
from perfgate.results.profiling.profiles import read_attribution
from tests.fakes.recorded import PROFILED, SPINNING

STEP = (
    *("embedding", "RMSNormKernel", "nvjet_qkv", "fused_rope_kernel", "store_kvcache", "_fwd_grouped_kernel_stage1", "nvjet_o"),
    *("FusedAddRMSNormKernel", "tinygemm_kernel", "_router_triton_kernel", "fused_moe_kernel", "swiglu", "fused_moe_kernel"),
    *("spin", "FusedAddRMSNormKernel", "nvjet_head", "ArgMax"),
)
"""A step of one layer, as an H200 ran it: 1 us each."""


def test_sum_layers__what_no_name_tells_is_told_by_what_runs_around_it():
    found = sum_layers([[(name, 1.0) for name in STEP]])

    assert found == {"MoE": 6.0, "attention": 5.0, "norms": 3.0, "dense products": 1.0, "the rest": 2.0}


@pytest.mark.parametrize(
    ("names", "layer"),
    [
        (("fused_moe_kernel", "copy", "ncclDevKernel_AllReduce"), "MoE"),
        (("fused_moe_kernel", "copy", "fused_rope_kernel"), "the rest"),
        (("RMSNormKernel", "cutlass_gemm", "RMSNormKernel"), "dense products"),
        (("RMSNormKernel", "copy"), "the rest"),
        (("copy",), "the rest"),
    ],
)
def test_sum_layers__a_norm_or_a_message_ends_a_layer(names, layer):
    (other,) = (name for name in names if name in ("copy", "cutlass_gemm"))
    found = sum_layers([[(name, 10.0 if name == other else 0.0) for name in names]])

    assert found[layer] == 10.0


def test_sum_layers__streams_are_apart():
    found = sum_layers([[("fused_moe_kernel", 5.0)], [("copy", 1.0)], [("fused_moe_kernel", 5.0), ("copy", 2.0)]])

    assert found == {"MoE": 10.0, "the rest": 3.0}


def test_read_attribution__a_spin_in_each_moe_layer_is_found_there():
    """The kernel that spins has a name of no layer, and 24 calls a step."""
    found = read_attribution(SPINNING)
    worst = found.layers[0]

    assert worst.layer == "MoE"
    assert worst.difference_us == pytest.approx(found.candidate_us - found.base_us, rel=0.02)
    for arm in ("base_us", "candidate_us"):
        assert sum(getattr(one, arm) for one in found.layers) == pytest.approx(getattr(found, arm))


def test_read_attribution__the_fused_sum_differs_in_the_moe_layers_first():
    found = read_attribution(PROFILED)

    assert [one.layer for one in found.layers][:2] == ["MoE", "attention"]
    assert found.layers[0].difference_us > 8 * abs(found.layers[1].difference_us)
