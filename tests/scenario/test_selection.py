"""perfgate/scenario/selection.py: which scenarios a change is measured under, why, and what is left out."""

import pytest

from perfgate.errors import InputError
from perfgate.scenario.catalog import list_pairs, list_scenarios
from perfgate.scenario.selection import SelectionRequest, choose_listed, name_scenario, read_table, select_scenarios

MODEL = "gpt-oss-20b-shape-mxfp4"
SCHEDULER = "python/sglang/srt/managers/scheduler.py"
TABLE = """
always = ["mixed-c16"]
always_cpu = ["cpu-moe"]
[[rules]]
part = "scheduler"
paths = ["*/managers/*"]
loads = ["c1", "mixed-c64"]
[[rules]]
part = "kernels"
paths = ["*/moe/*"]
loads = ["decode", "c1"]
also = "perfgate kernels prove"
[[prices]]
load = "mixed-c16"
block_s = 60.0
measured = ["gpt-oss-20b-shape-mxfp4"]
[[prices]]
load = "c1"
block_s = 60.0
[[prices]]
load = "mixed-c64"
block_s = 60.0
[[prices]]
load = "decode"
block_s = 300.0
[[prices]]
load = "cpu-moe"
block_s = 60.0
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(TABLE)
    return read_table(path)


def select(table, *changed, minutes=15.0, model=MODEL, **rest):
    return select_scenarios(table, SelectionRequest(changed=changed, minutes=minutes, model=model, **rest))


def name(selection):
    return [one.scenario.removeprefix(f"{MODEL}-") for one in selection.selected]


def test_read_table__what_ships_names_only_what_ships():
    table = read_table()
    loads = {pair.load for pair in list_pairs().values()}

    assert set(table.always) | {load for rule in table.rules for load in rule.loads} <= loads
    assert set(table.always_cpu) | {scenario for rule in table.rules for scenario in rule.cpu} <= set(list_scenarios())
    assert {price.load for price in table.prices} <= loads | set(list_scenarios())


def test_read_table__load_without_a_price(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(TABLE.replace('load = "decode"', 'load = "replay"'))

    with pytest.raises(InputError, match=r"plan\.toml: .*prices: has no block_s of decode; add it"):
        read_table(path)


def test_read_table__misspelt_key(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(TABLE.replace("loads =", "load =", 1))

    with pytest.raises(InputError, match=r"plan\.toml: rules\.0\.load"):
        read_table(path)


def test_select__always_what_gates_every_change(table):
    assert name(select(table, "README.md")) == ["mixed-c16"]
    assert select(table, "README.md").unknown == ("README.md",)
    assert name(select(table)) == ["mixed-c16"]


def test_select__each_touched_part_has_its_most_wanted_load_first(table):
    found = select(table, "a/managers/scheduler.py", "b/moe/topk.py", minutes=18.0)

    assert name(found) == ["mixed-c16", "c1", "decode", "mixed-c64"]
    assert [one.reason for one in found.selected][:2] == ["every change", "scheduler: a/managers/scheduler.py"]
    assert found.also == ("perfgate kernels prove",)
    assert found.total_minutes <= 18.0


def test_select__minutes_left_go_to_more_looks_in_order(table):
    found = select(table, "a/managers/scheduler.py", minutes=9.0)

    assert {one.scenario.removeprefix(f"{MODEL}-"): one.blocks for one in found.selected} == {
        "mixed-c16": 4,
        "c1": 2,
        "mixed-c64": 2,
    }
    assert found.total_minutes == 8.0


def test_select__says_what_is_left_out_and_why(table):
    found = select(table, "b/moe/topk.py", minutes=4.0)

    assert name(found) == ["mixed-c16", "c1"]
    left = {one.scenario.removeprefix(f"{MODEL}-"): (one.is_wanted, one.reason) for one in found.unselected}
    assert left == {
        "decode": (True, "its first look takes 10.0 minutes, which are not left (kernels: b/moe/topk.py)"),
        "mixed-c64": (False, "no touched path asks for it"),
    }


def test_select__person_adds_and_skips(table):
    found = select(table, "b/moe/topk.py", added=("mixed-c64",), skipped=("mixed-c16",), minutes=4.0)

    assert name(found) == ["mixed-c64", "c1"]
    assert found.selected[0].reason == "asked for by --add"
    assert "left out by --skip" in {one.reason for one in found.unselected}


def test_select__reckoned_minutes_are_marked(table):
    found = select(table, "a/managers/scheduler.py")

    assert [one.is_reckoned for one in found.selected] == [False, True, True]
    assert select(table, model="qwen3-30b-a3b-bf16").selected[0].is_reckoned


def test_select__too_few_minutes_for_what_is_always_measured(table):
    with pytest.raises(InputError, match=r"--minutes 1: mixed-c16 takes 2\.0 to its first look"):
        select(table, minutes=1.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"added": ("c7",)}, "c7: the table has no such load; choose from mixed-c16"),
        ({"added": ("mixed-c64",), "skipped": ("mixed-c64",)}, "--add mixed-c64: --skip leaves the same load out; give one"),
        ({"skipped": ("decod",)}, "decod: the table has no such load; did you mean decode"),
        ({"model": "gpt"}, "--model gpt: no such model ships"),
    ],
)
def test_select__unknown_name(table, changes, said):
    with pytest.raises(InputError, match=said):
        select(table, **changes)


def test_select__a_model_without_the_load_goes_without_it(table):
    found = select(table, "b/moe/topk.py", model="gpt-oss-20b-bf16")

    assert [one.scenario for one in found.selected] == ["gpt-oss-20b-bf16-mixed-c16", "gpt-oss-20b-bf16-c1"]


SPREAD = "gpt-oss-20b-shape-mxfp4-tp2"


def test_select__a_model_without_what_is_always_measured_has_its_first_load():
    found = select(read_table(), "README.md", model=SPREAD)

    assert [(one.scenario, one.reason) for one in found.selected] == [(f"{SPREAD}-closed-c16", "every change")]
    with pytest.raises(InputError, match=r"--minutes 1: closed-c16 takes 6\.0 to its first look"):
        select(read_table(), model=SPREAD, minutes=1.0)


def test_select__first_load_of_a_model_left_out():
    found = select(read_table(), "README.md", model=SPREAD, skipped=("closed-c16",))

    assert found.selected == ()
    assert [(one.scenario, one.reason) for one in found.unselected] == [(f"{SPREAD}-closed-c16", "left out by --skip")]


def test_select__table_without_a_price_of_any_load_of_the_model(table):
    assert select(table, "README.md", model=SPREAD).selected == ()


def test_choose_listed__a_model_without_what_is_always_measured():
    listed = (f"{MODEL}-mixed-c16", f"{SPREAD}-closed-c16")

    assert choose_listed(read_table(), listed, ("README.md",), 15.0) == listed


def test_select__scheduler_in_twenty_minutes_sees_one_user_and_many():
    found = select(read_table(), SCHEDULER, minutes=20.0)

    assert name(found) == ["mixed-c16", "c1", "mixed-c64"]
    assert found.total_minutes <= 20.0


def test_select__the_first_block_of_a_session_on_a_gpu_takes_longer(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(f"first_block_s = 30.0\n{TABLE}")
    first = select(read_table(path), "a/managers/scheduler.py", minutes=2.5)
    more = select(read_table(path), "README.md", minutes=4.5)
    cpu = select(read_table(path), "README.md", minutes=2.0, model="cpu")

    assert [(one.blocks, one.minutes) for one in (*first.selected, *more.selected, *cpu.selected)] == [
        (2, 2.5),
        (4, 4.5),
        (2, 2.0),
    ]
    with pytest.raises(InputError, match=r"--minutes 2\.4: mixed-c16 takes 2\.5 to its first look"):
        select(read_table(path), "README.md", minutes=2.4)


def test_select__cpu_names_its_scenarios_whole():
    found = select(read_table(), SCHEDULER, model="cpu")

    assert found.selected[0].scenario == "cpu-moe"
    assert name_scenario("cpu", "cpu-moe") == "cpu-moe"


LISTED = tuple(f"{MODEL}-{load}" for load in ("mixed-c64", "mixed-c16", "decode", "c1"))


@pytest.mark.parametrize(
    ("changed", "minutes", "chosen"),
    [
        ("README.md", 15.0, ["mixed-c64", "mixed-c16"]),
        ("a/managers/scheduler.py", 15.0, ["mixed-c64", "mixed-c16", "c1"]),
        ("b/moe/topk.py", 15.0, ["mixed-c64", "mixed-c16", "decode"]),
        ("b/moe/topk.py", 16.0, ["mixed-c64", "mixed-c16", "decode", "c1"]),
        ("b/moe/topk.py", 6.0, ["mixed-c64", "mixed-c16", "c1"]),
        ("b/moe/topk.py", 0.5, ["mixed-c64"]),
    ],
)
def test_choose_listed__the_first_then_what_is_wanted_most_within_the_minutes(table, changed, minutes, chosen):
    # A first look is two minutes, that of decode ten.
    found = choose_listed(table, LISTED, (changed,), minutes)

    assert [one.removeprefix(f"{MODEL}-") for one in found] == chosen


def test_choose_listed__what_no_rule_can_name_is_measured_always(table):
    listed = (LISTED[1], LISTED[2], "own-scenario", "cpu-moe")

    assert choose_listed(table, listed, ("README.md",), 15.0) == (LISTED[1], "own-scenario", "cpu-moe")
    assert choose_listed(table, listed, ("README.md",), 3.0) == (LISTED[1], "own-scenario")
