"""How sure a reader may be, in words: counted, or said not to be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.error_rates.render import count_by_hardware, read_results
from perfgate.core import Arm, Fingerprint, Outcome
from perfgate.evidence import Timing
from perfgate.report.words.confidence import COUNTED, describe_evidence, describe_exclusion, describe_rate, measure_minutes
from perfgate.report.words.families import list_families
from tests.fakes.sessions import FACTS, make_scenario, make_session
from tests.fakes.verdicts import make_verdict, p99, throughput


def test_counted__is_what_the_replays_of_recorded_sessions_count():
    """Verdicts that share no block, of which docs/evidence/error-rates.md tells, for replays overlap."""
    found = count_by_hardware(read_results()["designs"])

    assert {kind: (one["alarms"], one["verdicts"]) for kind, one in found.items()} == COUNTED


@pytest.mark.parametrize(("judged", "told"), [(4, "4 blocks, "), (2, "2 of 4 blocks judged, "), (0, "0 blocks, ")])
def test_describe_evidence__tells_blocks_that_the_look_left_out(judged, told):
    session = make_session(make_scenario(), blocks=4)

    assert describe_evidence(make_verdict(Outcome.INCONCLUSIVE, (), blocks=judged), session).startswith(told)


def test_describe_rate__is_counted_or_said_not_to_be():
    assert describe_rate("nvidia-h200-141gb") == "False alarms on such machines: 0 of 59 equal builds, at most 5.0 %."
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


def test_describe_exclusion__a_gain_excludes_any_loss():
    judgements = (throughput(-0.01, excluded=0.05), p99(-0.2, excluded=-0.1))
    families = list_families(judgements, is_closed_loop=True)

    assert describe_exclusion(make_verdict(Outcome.PASS, judgements), families) == (
        "Output throughput -4.8 %: beyond these a loss is excluded; any loss of P99 ITL is excluded, each with 95 % "
        "confidence over all 3 looks."
    )


def test_measure_minutes__of_each_gpu_that_a_session_held():
    session = make_session(make_scenario(), timing=Timing(took_s=120.0, starting_s=0.0, warming_s=0.0, measuring_s=120.0))
    facts = {**FACTS, "gpus": "2", "link": "NV18"}

    assert measure_minutes(session) == "2.0 GPU-minutes"
    assert measure_minutes(replace(session, fingerprints={Arm.BASE: Fingerprint(facts=facts)})) == "4.0 GPU-minutes on 2 GPUs"
