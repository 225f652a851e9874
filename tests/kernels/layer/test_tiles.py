"""Choosing a plan: tuned where the device and shape are known, a default by rows per expert elsewhere."""

from dataclasses import replace

import pytest
import torch

from perfgate_moe.errors import MoeInputError, NotApplicableError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer import tables, tiles
from perfgate_moe.layer.fp8 import require_walk
from perfgate_moe.layer.tables import Tuned, choose, is_tuned, read_table, shape_key, sorted_plan, store, stored_plans
from perfgate_moe.layer.tables import tuned as tuned_plan
from perfgate_moe.layer.tiles import (
    DECODE,
    FP8_LARGE,
    FP8_SMALL,
    LARGE,
    LARGE_NARROW,
    MEDIUM,
    QUANTISED_PLANS,
    SMALL,
    TilePlan,
    Tiles,
    Variant,
    default_plan,
    plan_from,
    plan_to,
)


@pytest.fixture
def tuned(monkeypatch):
    """A table that knows LayerCase's default shape at 16 and 64 tokens."""
    table = {"E=8,k=4,H=64,I=96,swiglu": {16: Tuned(plan=SMALL, gain=None), 64: Tuned(plan=MEDIUM, gain=1.1)}}
    monkeypatch.setattr(tables, "stored", lambda device: table if device == "cpu" else {})


@pytest.mark.parametrize(("tokens", "expected"), [(1, SMALL), (30, SMALL), (40, SMALL), (41, MEDIUM), (5000, MEDIUM)])
@pytest.mark.usefixtures("tuned")
def test_choose__takes_the_nearest_tuned_number_of_tokens(tokens, expected):
    assert choose(build(LayerCase(M=tokens, dtype="bfloat16"))) == expected


@pytest.mark.usefixtures("tuned")
def test_choose__unknown_shape_or_float32_falls_back_to_the_default():
    other = build(LayerCase(M=16, H=65, dtype="bfloat16"))
    wide = build(LayerCase(M=16))

    assert choose(other) == default_plan(other)
    assert choose(wide) == default_plan(wide)


@pytest.mark.parametrize(
    ("down", "intermediate_size", "is_direct"),
    [
        ({"walk": 7}, 257, False),
        ({"walk": 7, "rounds": True}, 256, False),
        ({"walk": 7, "n": 256}, 256, False),
        ({"walk": 7, "m": 16}, 256, True),
    ],
)
def test_require_walk__of_sorted_codes_that_a_program_can_keep(down, intermediate_size, is_direct):
    tiles = replace(FP8_LARGE.down, **down)
    plan = replace(FP8_LARGE, gate_up=replace(tiles, walk=1), down=tiles, is_direct=is_direct)

    with pytest.raises(NotApplicableError, match="only sorted codes of at most 256 columns are walked over"):
        require_walk(plan, intermediate_size)
    require_walk(replace(FP8_LARGE, down=replace(FP8_LARGE.down, walk=7)), 256)


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("quant", ["fp8", "mxfp4"])
def test_tuned__a_plan_of_16_bit_weights_is_none_for_quantised_ones(quant):
    assert tuned_plan(build(LayerCase(M=16, dtype="bfloat16", quant=quant))) is None


@pytest.mark.parametrize("quant", ["fp8", "mxfp4"])
def test_tuned__quantised_plans_stand_under_their_format(monkeypatch, quant):
    case = LayerCase(M=20, dtype="bfloat16", quant=quant)
    table = {f"E=8,k=4,H=64,I=96,swiglu,{quant}": {16: Tuned(plan=QUANTISED_PLANS[quant][1], gain=1.2)}}
    monkeypatch.setattr(tables, "stored", lambda _: table)

    assert choose(build(case)) == QUANTISED_PLANS[quant][1]
    assert tuned_plan(build(replace(case, quant="none"))) is None


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (LayerCase(dtype="bfloat16"), "E=8,k=4,H=64,I=96,swiglu"),
        (LayerCase(dtype="bfloat16", quant="fp8", activation="silu"), "E=8,k=4,H=64,I=96,silu,fp8"),
        (LayerCase(dtype="bfloat16", quant="mxfp4"), "E=8,k=4,H=64,I=96,swiglu,mxfp4"),
    ],
)
def test_shape_key__names_the_format_of_quantised_weights_only(case, expected):
    assert shape_key(build(case)) == expected


@pytest.mark.parametrize("quant", ["fp8", "mxfp4"])
@pytest.mark.parametrize(("tokens", "index"), [(1, 0), (2, 0), (3, 1), (32, 1), (33, 2)])
def test_default_plan__of_quantised_weights_follows_rows_per_expert(quant, tokens, index):
    problem = build(LayerCase(E=8, k=4, M=tokens, dtype="bfloat16", quant=quant))

    assert default_plan(problem) == QUANTISED_PLANS[quant][index]


@pytest.mark.parametrize("quant", ["fp8", "mxfp4"])
def test_sorted_plan__of_few_tokens_has_tiles_of_the_format(quant):
    assert sorted_plan(build(LayerCase(M=1, dtype="bfloat16", quant=quant)), Variant.SLOTS) == QUANTISED_PLANS[quant][1]


def test_stored_plans__are_of_one_format(monkeypatch):
    table = {"E=8,swiglu": {1: Tuned(plan=SMALL, gain=None)}, "E=8,swiglu,fp8": {1: Tuned(plan=FP8_SMALL, gain=None)}}
    monkeypatch.setattr(tables, "stored", lambda _: table)

    assert [stored_plans(), stored_plans("fp8"), stored_plans("mxfp4")] == [(SMALL,), (FP8_SMALL,), ()]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (LayerCase(E=8, k=4, M=1, dtype="bfloat16"), DECODE),
        (LayerCase(E=8, k=4, M=4, dtype="bfloat16"), SMALL),
        (LayerCase(E=8, k=4, M=64, dtype="bfloat16"), MEDIUM),
        (LayerCase(E=8, k=4, M=512, dtype="bfloat16"), LARGE),
    ],
)
def test_default_plan__follows_rows_per_expert(case, expected):
    assert default_plan(build(case)) == expected


def test_default_plan__is_smaller_off_hopper(monkeypatch):
    problem = build(LayerCase(M=1024, dtype="bfloat16"))

    monkeypatch.setattr(tiles, "has_warpgroups", lambda device: device.type != "cpu")

    assert default_plan(problem) == LARGE_NARROW


def test_is_late__knows_what_hopper_brought_and_has_alone(monkeypatch):
    capabilities = {0: (8, 0), 1: (9, 0), 2: (10, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capabilities[device.index])

    assert [tiles.is_late(torch.device(f"cuda:{index}")) for index in capabilities] == [False, True, True]
    assert [tiles.has_warpgroups(torch.device(f"cuda:{index}")) for index in capabilities] == [False, True, False]
    assert tiles.is_late(torch.device("cpu"))
    assert tiles.has_warpgroups(torch.device("cpu"))


def test_default_plan__halves_tiles_for_float32():
    plan = default_plan(build(LayerCase(M=512)))

    assert (plan.gate_up.n, plan.gate_up.k, plan.gate_up.tma) == (64, 32, False)


def test_plan__survives_json():
    plan = TilePlan(
        variant=Variant.ATOMIC32, gate_up=Tiles(m=64, n=128, k=64, tma=True), down=Tiles(m=64, n=64, k=64), is_direct=True
    )

    assert plan_from(plan_to(plan)) == plan


def test_plan__refuses_products_with_different_row_tiles():
    with pytest.raises(MoeInputError, match="m must agree"):
        replace(SMALL, down=replace(SMALL.down, m=64))


def test_stored_plans__every_shipped_table_is_readable_and_deterministic():
    plans = stored_plans()

    assert plans
    assert all(plan.variant is not Variant.ATOMIC32 for plan in plans)


RESULT = {"plan": plan_to(SMALL), "tokens": 16, "samples_us": {"ours-slots": [1.0]}, "upstream_over_ours": [1.1, 1.05, 1.2]}
VERSIONS = {"torch": "2.11.0"}


def test_store__keeps_the_other_cells_and_reads_back(tmp_path, monkeypatch):
    path = tmp_path / "tables" / "Some_GPU.json"
    monkeypatch.setattr(tables, "table_path", lambda device: path if device == "Some GPU" else tmp_path / "none")

    store(path, "E=8", RESULT | {"tokens": 64, "plan": plan_to(MEDIUM)}, VERSIONS)
    store(path, "E=8", RESULT, VERSIONS)

    assert tables.stored.__wrapped__("Some GPU") == {
        "E=8": {16: Tuned(plan=SMALL, gain=1.05), 64: Tuned(plan=MEDIUM, gain=1.05)}
    }
    assert list(read_table(path)["plans"]["E=8"]) == ["16", "64"]
    assert [entry.name for entry in path.parent.iterdir()] == ["Some_GPU.json"]


@pytest.mark.parametrize(
    ("shape", "tokens", "versions", "expected"),
    [
        ("E=8", 16, VERSIONS, True),
        ("E=8", 17, VERSIONS, False),
        ("E=9", 16, VERSIONS, False),
        ("E=8", 16, {"torch": "3"}, False),
    ],
)
def test_is_tuned__by_shape_tokens_and_versions(tmp_path, shape, tokens, versions, expected):
    store(tmp_path / "t.json", "E=8", RESULT, VERSIONS)

    assert is_tuned(read_table(tmp_path / "t.json"), shape, tokens, versions) is expected


@pytest.mark.parametrize("content", ["{", "[]", '{"plans": 3}'])
def test_read_table__refuses_what_is_no_table(tmp_path, content):
    (tmp_path / "t.json").write_text(content)

    with pytest.raises(MoeInputError, match=r"t\.json: no "):
        read_table(tmp_path / "t.json")
