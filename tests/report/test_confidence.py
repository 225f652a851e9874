"""How sure a reader may be, in words: counted, or said not to be."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.error_rates.render import count_apart
from perfgate.core import Outcome
from perfgate.report.words.confidence import COUNTED, describe_exclusion, describe_rate
from perfgate.report.words.families import list_families
from tests.fakes.verdicts import make_verdict, p99, throughput

ROOT = Path(__file__).parents[2]


def test_counted__is_what_the_replays_of_recorded_sessions_count():
    """Verdicts that share no block, of which docs/evidence/error-rates.md tells, for replays overlap."""
    found = count_apart(json.loads((ROOT / "benchmarks/error_rates/results.json").read_text()))

    assert {"nvidia-h200-141gb": (found["alarms"], found["verdicts"])} == COUNTED


def test_describe_rate__is_counted_or_said_not_to_be():
    assert describe_rate("nvidia-h200-141gb") == "False alarms on such machines: 0 of 14, at most 19.3 %."
    assert describe_rate("nvidia-h100-80gb") == "False alarms: not counted on such machines."


def test_describe_exclusion__names_what_a_pass_excludes_over_its_looks():
    judgements = (throughput(-0.01, excluded=0.05), p99(0.02, excluded=0.12))
    families = list_families(judgements, is_closed_loop=True)
    passed = make_verdict(Outcome.PASS, judgements, policy={"looks": "2, 3, 4"})

    told = describe_exclusion(passed, families)

    assert told == (
        "P99 ITL +12.0 %, Output throughput -4.8 %: beyond these a loss is excluded, each with 95 % confidence over all 3 "
        "looks."
    )
    assert describe_exclusion(make_verdict(Outcome.INCONCLUSIVE, judgements), families) == ""
