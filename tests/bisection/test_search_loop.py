"""What a search writes into its journal of the time that it took, on a machine that holds several GPUs for it."""

from __future__ import annotations

from itertools import count
from math import log1p

import pytest

from perfgate.bisection.checkouts import CheckoutStore
from perfgate.bisection.guard import Guard
from perfgate.bisection.loop import SearchLoop
from perfgate.bisection.record import Record
from perfgate.bisection.repository import read_line
from perfgate.bisection.search import CommitReading, SearchRules
from perfgate.bisection.trial import TrialResult
from perfgate.cli.measuring.searching import plan_served
from perfgate.errors import InputError
from perfgate.scenario.catalog import load_scenario
from perfgate.serving.progress import PlainProgress
from perfgate.stats.looks import LookPlan
from perfgate.storage.journal import read_lines
from perfgate.verdict.power import Cost, SampleSize
from tests.fakes.repositories import grow, make_repository

READING = CommitReading(
    differences=(0.0, 0.0), margin_log=log1p(0.03), prior_variance=0.003**2, prior_df=6.0, higher=False, gating=True
)


class SessionOfThreeMinutes:
    """Measures without a server; what it reports is the machine time of a session of one and a half minutes on two GPUs."""

    def measure(self, _):
        return TrialResult(metrics={"mean_itl_ms": READING}, minutes=3.0)


def test_run__minutes_are_those_of_each_gpu(tmp_path):
    repo = make_repository(tmp_path / "repo")
    grow(repo, 1, lambda number: {"number": str(number)})
    (tmp_path / "out").mkdir()
    loop = SearchLoop(
        line=read_line(repo, "main~1", "main"),
        rules=SearchRules(plan=LookPlan(alpha=0.01, looks=(2, 3)), budget=60.0, gpus=2),
        record=Record(tmp_path / "out"),
        checkouts=CheckoutStore(repo=repo, folder=tmp_path / "out", guard=Guard(reaper=None)),
        bench=SessionOfThreeMinutes(),
        progress=PlainProgress(),
        # Two minutes between any two looks at it.
        read_clock=map(float, count(0, 120)).__next__,
    )
    search, _ = loop.run()
    lines = [(line["event"], line["minutes"]) for line in read_lines(tmp_path / "out" / "journal.jsonl")]

    # Two GPUs for two minutes: four for each build, and of a measurement three that its session tells and one beside it.
    assert lines == [("built", 4.0), ("built", 4.0), ("measured", 3.0), ("prepared", 1.0)]
    assert search.minutes == 12.0


@pytest.mark.parametrize(
    ("name", "args", "gpus"),
    [
        ("cpu-moe", (), 1),
        ("gpt-oss-20b-shape-mxfp4-closed-c16", (), 1),
        ("gpt-oss-20b-shape-mxfp4-tp2-closed-c16", (), 2),
        ("gpt-oss-20b-shape-mxfp4-closed-c16", ("--tp-size", "4"), 4),
    ],
)
def test_plan_served__as_many_gpus_as_a_server_takes(name, args, gpus, monkeypatch):
    monkeypatch.setattr("perfgate.serving.watch.telemetry.lacks_gpu", lambda: False)
    options = {"scenario": name, "metric": "", "python": "python3", "args": args, "env": (), "package": "", "budget": 60.0}
    rules = plan_served({**options, "confidence": 0.95}).rules

    by_the_clock = Cost().minutes(SampleSize(blocks=1, windows=load_scenario(name).blocks.windows))

    assert (rules.gpus, rules.block_minutes) == (gpus, by_the_clock * gpus)


def test_plan_served__without_a_gpu_nothing_is_built(monkeypatch):
    monkeypatch.setattr("perfgate.serving.watch.telemetry.lacks_gpu", lambda: True)

    with pytest.raises(InputError, match=r"^gpu: scenario gpt-oss-20b-shape-mxfp4-closed-c16 needs 1 GPU "):
        plan_served({"scenario": "gpt-oss-20b-shape-mxfp4-closed-c16", "metric": ""})
