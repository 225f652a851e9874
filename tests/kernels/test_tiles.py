"""Choosing a plan: tuned where the device and shape are known, a default by rows per expert elsewhere."""

from dataclasses import replace

import pytest

from perfgate.errors import InputError
from perfgate.kernels import tiles
from perfgate.kernels.cases import Case
from perfgate.kernels.data import build
from perfgate.kernels.tiles import (
    DECODE,
    LARGE,
    MEDIUM,
    SMALL,
    Plan,
    Tiles,
    Variant,
    choose,
    default_plan,
    plan_from,
    plan_to,
    stored_plans,
)


@pytest.fixture
def tuned(monkeypatch):
    """A table that knows Case's default shape at 16 and 64 tokens."""
    table = {"E=8,k=4,H=64,I=96,swiglu": {16: SMALL, 64: MEDIUM}}
    monkeypatch.setattr(tiles, "_table", lambda device: table if device == "cpu" else {})


@pytest.mark.parametrize(("tokens", "expected"), [(1, SMALL), (30, SMALL), (40, SMALL), (41, MEDIUM), (5000, MEDIUM)])
@pytest.mark.usefixtures("tuned")
def test_choose__takes_the_nearest_tuned_number_of_tokens(tokens, expected):
    assert choose(build(Case(M=tokens, dtype="bfloat16"))) == expected


@pytest.mark.usefixtures("tuned")
def test_choose__unknown_shape_or_float32_falls_back_to_the_default():
    other = build(Case(M=16, H=65, dtype="bfloat16"))
    wide = build(Case(M=16))

    assert choose(other) == default_plan(other)
    assert choose(wide) == default_plan(wide)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case(E=8, k=4, M=1, dtype="bfloat16"), DECODE),
        (Case(E=8, k=4, M=4, dtype="bfloat16"), SMALL),
        (Case(E=8, k=4, M=64, dtype="bfloat16"), MEDIUM),
        (Case(E=8, k=4, M=512, dtype="bfloat16"), LARGE),
    ],
)
def test_default_plan__follows_rows_per_expert(case, expected):
    assert default_plan(build(case)) == expected


def test_default_plan__halves_tiles_for_float32():
    plan = default_plan(build(Case(M=512)))

    assert (plan.gate_up.n, plan.gate_up.k, plan.gate_up.tma) == (64, 32, False)


def test_plan__survives_json():
    plan = Plan(
        variant=Variant.ATOMIC32, gate_up=Tiles(m=64, n=128, k=64, tma=True), down=Tiles(m=64, n=64, k=64), is_direct=True
    )

    assert plan_from(plan_to(plan)) == plan


def test_plan__refuses_products_with_different_row_tiles():
    with pytest.raises(InputError, match="m must agree"):
        replace(SMALL, down=replace(SMALL.down, m=64))


def test_stored_plans__every_shipped_table_is_readable_and_deterministic():
    plans = stored_plans()

    assert plans
    assert all(plan.variant is not Variant.ATOMIC32 for plan in plans)
