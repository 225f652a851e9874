"""How many blocks settle what is undecided: an offset of the session is no matter of blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfgate.core import Arm, Fingerprint, Outcome
from perfgate.evidence import Timing
from perfgate.github.adoption import write_workflows
from perfgate.report.words.advice import NIGHTLY, BisectionAdvice, advise, calibrate
from perfgate.report.words.families import list_families
from tests.fakes.recorded import ROOT
from tests.fakes.sessions import FACTS, make_scenario, make_session
from tests.fakes.verdicts import POLICY, make_verdict, median

SEARCH = BisectionAdvice(span=None, scenario=("unit",))


def sentence(judgement, *, changes=None, **policy):
    return advice(judgement, changes=changes, **policy).sentence


def advice(judgement, *, changes=None, **policy):
    verdict = make_verdict(Outcome.INCONCLUSIVE, [judgement], policy={**POLICY, **policy})
    families = list_families(verdict.judgements, is_closed_loop=True)
    session = replace(make_session(make_scenario()), **(changes or {}))
    return advise(verdict, session, families, is_profiled=False, search=SEARCH)


def undecided(change, half_width, **more):
    return median(change, half_width=half_width, margin=0.03, outcome=Outcome.INCONCLUSIVE, **more)


@pytest.mark.parametrize(
    ("offset", "told"),
    [
        (0.0, "--blocks 8"),
        (0.01, "--blocks 11"),
        (0.016, "only about 29 blocks settle it"),
        (0.018, "no number of blocks settles it"),
    ],
)
def test_advise__an_offset_takes_more_blocks_or_none_helps(offset, told):
    # Four times the blocks halve the error of an even result to where the interval ends before the margin, without an offset.
    assert told in sentence(undecided(0.0, 0.0592), usual_offset_log=offset)


@pytest.mark.parametrize(("facts", "told"), [({}, "(40 minutes)"), ({"gpus": "2", "link": "NV18"}, "(80 GPU-minutes)")])
def test_advise__more_blocks_take_machine_time_of_each_gpu(facts, told):
    timing = Timing(took_s=600.0, starting_s=180.0, warming_s=80.0, measuring_s=240.0)
    fingerprints = dict.fromkeys(Arm, Fingerprint(facts={**FACTS, **facts}))
    changes = {"timing": timing, "fingerprints": fingerprints}

    assert f"--blocks 8 {told}" in sentence(undecided(0.0, 0.0592), changes=changes, usual_offset_log=0.0)


def test_calibrate__names_a_workflow_that_can_be_started_by_hand():
    session = replace(make_session(make_scenario()), is_handed_over=True)
    verdict = replace(make_verdict(Outcome.PASS, [], policy=POLICY), uncalibrated=True)

    assert calibrate(verdict, session, make_scenario()).line == f"gh workflow run {NIGHTLY}"
    for text in (write_workflows("0" * 40)[NIGHTLY], (ROOT / ".github/workflows" / NIGHTLY).read_text(encoding="utf-8")):
        assert "\n  workflow_dispatch:\n" in text


def test_advise__where_nothing_settles_names_what_is_cheapest():
    told = sentence(undecided(0.0, 0.06), usual_offset_log=0.02)

    assert told.startswith(
        "Median ITL is undecided, and no number of blocks settles it. Cheapest: store more sessions of equal arms"
    )


def test_advise__a_loss_beyond_half_the_margin_needs_what_the_test_asks():
    told = sentence(undecided(0.02, 0.03, fails_from=0.04), usual_offset_log=0.0)

    assert "--blocks 8" in told


@pytest.mark.parametrize(
    ("is_handed_over", "expected"),
    [
        (False, "continue it: it was cut off; the same command with --resume adds more."),
        (True, "measure again, by the comment /perfgate run: it was cut off."),
    ],
)
def test_advise__a_session_that_was_cut_off(is_handed_over, expected):
    changes = {"is_complete": False, "is_handed_over": is_handed_over}

    assert sentence(undecided(0.0, 0.06), usual_offset_log=0.02, changes=changes) == expected


def test_advise__who_has_no_shell_on_the_machine_is_led_to_the_commands():
    told = sentence(undecided(0.0, 0.0592), usual_offset_log=0.0, changes={"is_handed_over": True})

    assert "with --blocks 8, as under Reproduce, enough if the change seen is true" in told


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "perfgate power --scenario unit"),
        ({"noise": "r/baselines"}, "perfgate power --scenario unit --baselines r/baselines"),
    ],
)
def test_advise__the_noise_that_counted_is_named_where_it_lies(changes, line):
    """Of the noise of several machines, as it ships, `perfgate power` takes none by itself."""
    (command,) = advice(undecided(0.0, 0.06), changes=changes).commands

    assert command.line == line
