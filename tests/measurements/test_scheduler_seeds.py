"""What the seeds of `perfgate scheduler` showed is what was predicted, and a wrong answer would be told as one."""

import json
import re

import pytest

from benchmarks.scheduler.run import KINDS, RESULTS, SEEDS, compare_seed, read_runs, summarize
from perfgate.scheduler.judge import RULES
from tests.documents.tracked import ROOT

PAGE = ROOT / "docs" / "how-to" / "scheduler.md"
KEY = "scheduler.decode_step.host_reads"


def make_line(seed, kind, **changes):
    keys = [key for key in RULES if key.endswith("instructions") is (kind == "instructions")]
    return {"seed": seed, "kind": kind, "cpu_s": 1.0, "windows": {key: [100.0, 100.0] for key in keys} | changes}


def test_results__each_comparison_is_as_predicted():
    found = json.loads(RESULTS.read_text(encoding="utf-8"))["comparisons"]

    assert {one["seed"] for one in found} == SEEDS.keys()
    assert all(one["kinds"] == ["events", "instructions"] for one in found)
    assert [one for one in found if not one["as_predicted"]] == []
    assert all(one["predicted"] == SEEDS[one["seed"]].key for one in found)


def test_results__are_what_the_stored_runs_say():
    assert json.loads(RESULTS.read_text(encoding="utf-8")) == summarize(read_runs())


def test_page__counts_of_each_seed_are_those_of_the_results():
    found = json.loads(RESULTS.read_text(encoding="utf-8"))["comparisons"]
    of_seed = {seed: [bool(one["lost"]) for one in found if one["seed"] == seed] for seed in SEEDS}

    rows = re.findall(r"(?m)^\| [^|]+ \| (\d+) \| (\d+) \|", PAGE.read_text(encoding="utf-8"))

    assert rows == [(str(len(losses)), str(sum(losses))) for losses in of_seed.values()]


def test_page__pairs_of_unchanged_copies_beside_another_process():
    unchanged = [line for line in read_runs() if line["seed"] == "nothing"]
    loads = [[line["load"] for line in unchanged if line["kind"] == kind] for kind in KINDS]
    pairs = zip(*(numbers[first::2] for numbers in loads for first in (0, 1)), strict=False)
    lowest = [min(pair) for pair in pairs]

    told = f"in {sum(load >= 2 for load in lowest)} of the {len(lowest)} pairs of unchanged copies the load was at least 2"

    assert told in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("reads", "is_right"), [([101.0, 101.0], True), ([100.0, 100.0], False), ([100.4, 100.4], False)])
def test_compare_seed__a_sync_is_found_where_each_step_has_it(reads, is_right):
    lines = [make_line(seed, kind) for seed in ("nothing", "sync") for kind in ("events", "instructions")]
    lines[2]["windows"][KEY] = reads

    (found,) = compare_seed(lines, "sync")

    assert found["kinds"] == ["events", "instructions"]
    assert found["as_predicted"] is is_right


def test_compare_seed__unchanged_copies_are_compared_in_pairs():
    lines = [make_line("nothing", kind) for kind in ("events", "instructions") for _ in range(5)]

    found = list(compare_seed(lines, "nothing"))

    assert [(one["as_predicted"], one["apart"]) for one in found] == [(True, 0.0), (True, 0.0)]


def test_summarize__a_pair_of_unchanged_copies_that_differ_is_a_false_alarm():
    lines = [make_line("nothing", kind) for kind in ("events", "instructions") for _ in range(4)]
    lines[7]["windows"]["scheduler.decode_step.instructions"] = [103.0, 103.0]

    told = summarize(lines)

    assert told["false_alarms"] == {"pairs": 2, "found": 1, "at_most": 0.9747}
    assert [one["apart"] for one in told["comparisons"]] == [0.0, 0.03]


def test_compare_seed__without_callgrind_only_events_are_compared():
    lines = [make_line("nothing", "events"), make_line("log", "events")]

    (found,) = compare_seed(lines, "log")

    assert (found["kinds"], found["lost"], found["as_predicted"]) == (["events"], {}, False)
