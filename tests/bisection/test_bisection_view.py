"""What is said of a search, without one: merges, long sets, skipped commits, what is uncertain."""

from __future__ import annotations

from math import log1p
from pathlib import Path

import orjson
import pytest

from perfgate.bisection.record import Record
from perfgate.bisection.repository import Commit, Line
from perfgate.bisection.search import CommitReading, Measured, Search, SearchRules, plan_next
from perfgate.bisection.view import Found, describe, tell
from perfgate.github.asked.answers import read_search
from perfgate.report.table import lay_out
from perfgate.stats.looks import LookPlan

RULES = SearchRules(plan=LookPlan(alpha=0.01, looks=(2, 3, 4, 6)), budget=8.0)


def make(place, *differences, higher=False):
    reading = CommitReading(
        differences=differences, margin_log=log1p(0.03), prior_variance=0.003**2, prior_df=6.0, higher=higher, gating=True
    )
    return Measured(place=place, minutes=2.0 * len(differences), metrics={"output_tok_per_s": reading})


def find(tmp_path, *measured, places=20, **changes):
    """A search of `places` commits, each a merge, that ends with what was measured."""
    minutes = sum(one.minutes for one in measured)
    search = Search(places=places, rules=RULES, measured=measured, minutes=minutes, **changes)
    commits = tuple(Commit(sha=f"{place:040x}", subject=f"subject {place}", is_merge=True) for place in range(1, places + 1))
    line = Line(good=Commit(sha="a" * 40, subject="good"), commits=commits)
    answer = plan_next(search)
    return Found(repo=Path("some where"), line=line, search=search, answer=answer, record=Record(tmp_path))


def test_tell__a_culprit_that_is_a_merge(tmp_path):
    found = find(tmp_path, make(2, 0.03, 0.03, higher=True), make(1, 0.0, higher=True), make(1, 0.001, higher=True), places=2)
    told = "\n".join(tell(found, lay_out))
    name = f"{2:040x}"

    assert f"culprit: {name} subject 2" in told
    assert f"git -C 'some where' show {name}" in told
    assert f"it is a merge: `perfgate bisect $(git merge-base {name[:12]}^1 {name[:12]}^2) {name[:12]}^2`" in told
    assert "-3.0 %" in told
    assert told.splitlines()[-1] == "8.0 of 8 GPU-minutes: 3 measurements, 4 blocks, 0 builds"


def test_tell__one_of_something_is_no_plural(tmp_path):
    told = list(tell(find(tmp_path, make(20, 0.0, 0.0), build_minutes=(1.0,)), lay_out))

    assert told[-1].endswith(": 1 measurement, 2 blocks, 1 build")


def test_tell__a_long_credible_set(tmp_path):
    found = find(tmp_path, make(20, 0.03, 0.03, 0.03), make(2, 0.0))
    told = "\n".join(tell(found, lay_out))

    assert told.startswith("OUT_OF_BUDGET: not found within the budget\n")
    assert "95 % credible: " in told
    assert f"{4:040x}"[:12] in told
    assert " and " in next(line for line in told.splitlines() if "credible" in line)


def test_tell__commits_that_were_gone_around(tmp_path):
    found = find(tmp_path, make(3, 0.03, 0.03), make(3, 0.03, 0.03), skipped={1: "no\x1b[31m build", 2: "none"}, places=3)
    told = "\n".join(tell(found, lay_out))

    assert told.startswith("NARROWED: the commit that made it slower is one of several that cannot be told apart\n")
    assert f"skipped {f'{1:040x}'[:12]}: no [31m build" in told


@pytest.mark.parametrize(
    ("measured", "places", "changes"),
    [
        ((make(2, 0.03, 0.03, higher=True), make(1, 0.0, higher=True), make(1, 0.001, higher=True)), 2, {}),
        ((make(20, 0.03, 0.03, 0.03), make(2, 0.0)), 20, {}),
        ((make(3, 0.03, 0.03), make(3, 0.03, 0.03)), 3, {"skipped": {1: "no build", 2: "none"}}),
        ((), 20, {"skipped": {0: "no build"}}),
        ((make(20, 0.0, 0.0), make(20, 0.0, 0.0), make(20, 0.0, 0.0)), 20, {}),
    ],
    ids=["found", "out of budget", "narrowed", "unmeasurable", "no difference"],
)
def test_describe__is_read_by_the_side_that_answers(tmp_path, measured, places, changes):
    """What a job of a pull request writes is what another reads, whatever came of the search."""
    facts = describe(find(tmp_path, *measured, places=places, **changes))
    path = tmp_path / "handoff-search.json"
    path.write_bytes(orjson.dumps(facts))
    read = read_search(path)

    assert (read.outcome, read.culprit, list(read.credible)) == (facts["outcome"], facts["culprit"], facts["credible"])
    assert [row.change for row in read.commits] == [row["change"] for row in facts["commits"]]


def test_describe__nothing_measured(tmp_path):
    facts = describe(find(tmp_path, skipped={0: "no build"}))

    assert (facts["outcome"], facts["culprit"], facts["metric"], facts["minutes"]) == ("UNMEASURABLE", None, None, 0)
    assert len(facts["commits"]) == 21


@pytest.mark.parametrize("differences", [(0.1, -0.06, 0.1, -0.06), (0.03, 0.03, 0.03, 0.03)])
def test_describe__the_interval_holds_the_change(tmp_path, differences):
    facts = describe(find(tmp_path, make(20, *differences)))
    row = facts["commits"][20]

    assert row["low"] < row["change"] < row["high"]
