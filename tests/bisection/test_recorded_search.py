"""A search that ran on the engine of a CPU, replayed from its journal: the leak of a museum's exhibit among eight commits."""

from __future__ import annotations

import shutil

import pytest

from perfgate.bisection.record import JOURNAL_FILE, Record
from perfgate.bisection.search import Answer, Ending, SearchRules, plan_next
from perfgate.scenario.catalog import load_scenario
from perfgate.stats.looks import LookPlan
from tests.fakes.recorded import ROOT

JOURNAL = ROOT / "benchmarks" / "bisect" / "host-leak" / JOURNAL_FILE
LAST, CULPRIT = 7, 5
"""Places of `python -m benchmarks.museum.history host-leak FOLDER --commits 8 --culprit 5`; GOOD has none."""


def replay(tmp_path, metric):
    shutil.copyfile(JOURNAL, tmp_path / JOURNAL_FILE)
    scenario = load_scenario("cpu-moe-memory")
    rules = SearchRules(plan=LookPlan(alpha=scenario.alpha, looks=scenario.blocks.looks), budget=13.0, metric=metric)
    return Record(tmp_path).replay(LAST, rules)


@pytest.mark.parametrize("metric", ["server_memory_mib", ""])
def test_plan_next__names_the_commit_that_leaks(tmp_path, metric):
    search = replay(tmp_path, metric)
    answer = plan_next(search)

    assert isinstance(answer, Answer)
    assert (answer.ending, answer.found) == (Ending.FOUND, CULPRIT)
    assert search.minutes == pytest.approx(9.7, abs=0.05)
    assert sum(one.blocks for one in search.measured) == 4
    assert answer.belief is not None
    assert answer.belief.places[CULPRIT - 1] == pytest.approx(0.996, abs=0.001)
    # A start that discarded more windows had leaked more before the first that counts.
    assert any("scatter more than one loss" in warning for warning in answer.warnings)


def test_replay__growth_tells_the_commits_apart(tmp_path):
    found = {one.place: one.metrics["server_memory_growth"].differences for one in replay(tmp_path, "").measured}

    assert max(map(abs, found[4])) < 0.02
    assert min(*found[5], *found[LAST]) > 0.9
