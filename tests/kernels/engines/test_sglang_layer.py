"""Parameters of SGLang's MoE layer by version: of which version a function is, and what is strange about one of none."""

import pytest

from perfgate_moe.engines.sglang_layer import ADDED, FIRST, LAYER, SEQUENCE, TAKEN, find_since, list_strange


@pytest.mark.parametrize(
    ("function", "more", "since"),
    [
        (LAYER, "", FIRST),
        (LAYER, "a1_q", "0.5.17"),
        (LAYER, "a1_q fuse_swiglu_interleaved", "0.5.18"),
        (SEQUENCE, "a1_q fuse_swiglu_interleaved up_moe_use_tma", "0.5.18"),
        (LAYER, "a1_q fuse_swiglu_interleaved defer_sum no_combine_keep_router_weight", "0.5.23"),
        (SEQUENCE, "a1_q fuse_swiglu_interleaved", None),
        (LAYER, "fuse_swiglu_interleaved", None),
        (LAYER, "a1_q next_q", None),
    ],
)
def test_find_since__by_the_parameters_that_it_takes(function, more, since):
    assert find_since(function, TAKEN[function] | set(more.split())) == since


def test_find_since__one_parameter_less():
    assert find_since(LAYER, TAKEN[LAYER] - {"inplace"}) is None


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        (TAKEN[LAYER] | {"next_q", "a1_q", "kwargs"}, "takes the unknown kwargs, next_q"),
        (TAKEN[LAYER] - {"inplace"} | {"is_inplace"}, "takes the unknown is_inplace and no inplace"),
        (TAKEN[LAYER] | {"defer_sum"}, "takes known parameters in a combination that no version read has"),
    ],
)
def test_list_strange__names_what_came_and_went(taken, words):
    assert list_strange(LAYER, taken) == words


def test_added__in_the_order_of_versions():
    versions = [tuple(map(int, each.since.split("."))) for each in ADDED]

    assert versions == sorted(versions)
