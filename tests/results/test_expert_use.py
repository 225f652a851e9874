"""How a router uses its experts: formulas on plain values, and routers that do not look at the token."""

import random
from dataclasses import replace
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.stats.expert_use import (
    ExpertUse,
    FaultKind,
    Trace,
    Traced,
    Unknown,
    allow_difference,
    compare_with_base,
    count_effective,
    expect_distinct,
    find_faults,
    measure_rank_load,
    measure_use,
)

EXPERTS, TOP_K, LAYERS, PROMPT, LENGTH = 32, 4, 3, 16, 24


def draw(*parts):
    return random.Random(repr(parts))  # noqa: S311 - a seed is the point


def draw_texts(number, seed=1):
    source = draw(seed)
    return [tuple(source.randrange(1000) for _ in range(LENGTH)) for _ in range(number)]


def trace(choose, texts=None, *, again=4, tokens_a_step=16):
    """What `choose(layer, place, token, call)` makes of texts; `call` counts choices."""
    texts = texts or draw_texts(16)
    calls = iter(range(10**9))

    def run(tokens):
        chosen = [
            [tuple(choose(layer, place, token, next(calls))) for place, token in enumerate(tokens)] for layer in range(LAYERS)
        ]
        return Traced(tokens=tokens, chosen=np.array(chosen, dtype=np.uint16))

    first = tuple(run(text) for text in texts)
    second = tuple(run(text) for text in texts[:again])
    return Trace(experts=EXPERTS, top_k=TOP_K, prompt_len=PROMPT, tokens_a_step=tokens_a_step, texts=first, again=second)


def mixture(layer, _place, token, _call, salt=0):
    return draw(layer, token, salt).sample(range(EXPERTS), TOP_K)


def take_turns(start):
    return [(start * TOP_K + slot) % EXPERTS for slot in range(TOP_K)]


ROUTERS = {
    "the same four": lambda *_: (0, 1, 2, 3),
    "by layer": lambda layer, *_: take_turns(layer),
    "by place": lambda _layer, place, *_: take_turns(place),
    "by call": lambda _layer, _place, _token, call: take_turns(call),
    "drawn": lambda _layer, _place, _token, call: draw(call).sample(range(EXPERTS), TOP_K),
}


def kinds(use, base=None):
    return [fault.kind for fault in find_faults(use, base)]


def test_find_faults__mixture_of_experts_has_none():
    use = measure_use(trace(mixture))

    assert kinds(use) == []
    assert [layer.used for layer in use.layers] == [EXPERTS] * LAYERS
    assert all(layer.own_scatter_ratio == 0.0 for layer in use.layers)
    assert all(layer.dependence == pytest.approx(1 - TOP_K / EXPERTS, abs=0.05) for layer in use.layers)
    assert all(layer.differs_from_before_ratio == pytest.approx(1 - TOP_K / EXPERTS, abs=0.05) for layer in use.layers[1:])
    assert use.layers[0].differs_from_before_ratio is None


@pytest.mark.parametrize("name", ROUTERS)
def test_find_faults__router_that_looks_at_no_token_is_found(name):
    use = measure_use(trace(ROUTERS[name]))

    assert FaultKind.BLIND in kinds(use)


def test_find_faults__plain_dummy_weights_touch_four_experts():
    """The recorded H200 sessions: the same 4 of 32 experts in every layer."""
    use = measure_use(trace(ROUTERS["the same four"]))
    [few, blind] = find_faults(use)

    assert (few.kind, few.layers, few.worst.distinct_a_step) == (FaultKind.FEW, LAYERS, 4.0)
    assert few.worst.uniform_a_step == pytest.approx(28.2, abs=0.05)
    assert (blind.kind, blind.worst.dependence) == (FaultKind.BLIND, 0.0)
    assert few.worst.max_over_mean == EXPERTS / TOP_K
    assert [measure_rank_load(few.worst, ranks) for ranks in (1, 2, 8)] == [1.0, 2.0, 8.0]
    assert few.worst.effective == pytest.approx(TOP_K)


def test_find_faults__clone_of_the_layer_before_is_shown():
    use = measure_use(trace(lambda _layer, place, token, call: mixture(0, place, token, call)))

    assert [layer.differs_from_before_ratio for layer in use.layers] == [None, 0.0, 0.0]


def test_find_faults__one_token_a_step_is_held_to_the_token_alone():
    """A step of one token touches top-k experts whatever the router does."""
    use = measure_use(trace(ROUTERS["the same four"], tokens_a_step=1))

    assert use.layers[0].distinct_a_step == use.layers[0].uniform_a_step == TOP_K
    assert kinds(use) == [FaultKind.BLIND]


def test_find_faults__texts_that_are_all_alike_prove_nothing():
    texts = [tuple(range(LENGTH))] * 16

    assert FaultKind.BLIND in kinds(measure_use(trace(mixture, texts)))


def compare(choose, base_choose=mixture):
    base, candidate = trace(base_choose), trace(choose)
    return kinds(compare_with_base(measure_use(candidate), candidate, base), measure_use(base))


def test_find_faults__arms_that_route_alike():
    assert compare(mixture) == []


@pytest.mark.parametrize(("share", "found"), [(0.05, []), (0.3, [FaultKind.APART])])
def test_find_faults__arms_may_differ_by_a_rounding(share, found):
    def near(layer, place, token, call):
        is_flipped = draw("flip", layer, token).random() < share
        return mixture(layer, place, token, call, salt=1) if is_flipped else mixture(layer, place, token, call)

    assert compare(near) == found


def test_find_faults__candidate_with_another_router():
    assert compare(lambda *place: mixture(*place, salt=1)) == [FaultKind.APART]


def test_find_faults__arms_of_different_shape():
    base = trace(mixture)
    candidate = replace(base, experts=64)

    assert kinds(compare_with_base(measure_use(candidate), candidate, base), measure_use(base)) == [FaultKind.SHAPE]


def test_find_faults__unknown_use_has_none():
    unknown = ExpertUse(unknown=Unknown.ENGINE)
    base = trace(mixture)

    assert kinds(unknown) == []
    assert kinds(compare_with_base(measure_use(base), base, base), unknown) == []


def test_allow_difference__follows_the_bases_own_scatter():
    layer = measure_use(trace(mixture)).layers[0]

    assert allow_difference(layer) == 0.25
    assert allow_difference(replace(layer, own_scatter_ratio=0.1)) == pytest.approx(0.3)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=64).filter(any))
def test_count_effective__lies_between_one_and_the_experts_used(loads):
    found = count_effective(loads)

    assert 1 - 1e-9 <= found <= sum(load > 0 for load in loads) + 1e-9


@given(st.integers(1, 256), st.integers(1, 500))
def test_count_effective__equal_loads_count_all(experts, load):
    assert count_effective([load] * experts + [0]) == pytest.approx(experts)


def test_count_effective__by_hand():
    assert count_effective([2, 1, 1]) == pytest.approx(exp(1.0397207708399179))
    assert count_effective([]) == 0.0


@given(st.integers(1, 128), st.integers(1, 64), st.data())
def test_expect_distinct__grows_from_top_k_to_the_experts(experts, tokens, data):
    top_k = data.draw(st.integers(1, experts))
    found = expect_distinct(experts, top_k, tokens)

    assert expect_distinct(experts, top_k, 1) == pytest.approx(top_k)
    assert top_k - 1e-9 <= found <= min(experts, top_k * tokens) + 1e-9
    assert found <= expect_distinct(experts, top_k, tokens + 1) + 1e-9


@given(st.permutations(range(EXPERTS)))
def test_measure_use__names_of_experts_do_not_matter(names):
    plain = trace(mixture, draw_texts(8), again=2, tokens_a_step=8)

    def rename(text):
        return replace(text, chosen=np.array(names, dtype=np.uint16)[text.chosen])

    renamed = replace(plain, texts=tuple(map(rename, plain.texts)), again=tuple(map(rename, plain.again)))
    one, other = measure_use(plain), measure_use(renamed)

    assert [layer.distinct_a_step for layer in one.layers] == [layer.distinct_a_step for layer in other.layers]
    assert [layer.effective for layer in one.layers] == pytest.approx([layer.effective for layer in other.layers])
    assert kinds(one) == kinds(other)
