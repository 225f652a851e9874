"""The one order of outcomes, and what several of them say together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.core import Outcome, combine_outcomes
from perfgate.stats.looks import LookPlan, Series, decide

WORST_FIRST = ["REGRESSION", "INVALID", "INCONCLUSIVE", "PASS", "IMPROVED"]


def test_outcome__the_worst_comes_first():
    assert sorted(Outcome, key=lambda outcome: outcome.order) == WORST_FIRST
    assert sorted(outcome.order for outcome in Outcome) == list(range(len(Outcome)))


def test_outcome__each_has_an_icon_and_a_sentence_and_passes_alone_exit_with_zero():
    assert all(outcome.icon and outcome.sentence for outcome in Outcome)
    assert {outcome for outcome in Outcome if outcome.exit_code == 0} == {Outcome.PASS, Outcome.IMPROVED}


@pytest.mark.parametrize(
    ("outcomes", "together"),
    [
        ([], "INCONCLUSIVE"),
        (["PASS"], "PASS"),
        (["PASS", "IMPROVED"], "IMPROVED"),
        (["IMPROVED", "INCONCLUSIVE"], "INCONCLUSIVE"),
        (["INCONCLUSIVE", "INVALID", "PASS"], "INVALID"),
        (["PASS", "INVALID", "REGRESSION"], "REGRESSION"),
    ],
)
def test_combine_outcomes__the_worst_speaks_and_a_gain_where_all_pass(outcomes, together):
    assert combine_outcomes(map(Outcome, outcomes)) == together


@given(st.lists(st.sampled_from(Outcome), min_size=1))
def test_combine_outcomes__never_softens_what_is_not_a_pass(outcomes):
    combined = combine_outcomes(outcomes)

    assert combined in outcomes
    assert combined.exit_code == min(outcomes, key=lambda outcome: outcome.order).exit_code


def test_combine_outcomes__is_what_the_judge_says_of_a_gain_beside_a_pass():
    """A metric that gained and one that stayed: the judge, a comparison and a machine's scenarios all call that a gain."""
    gained = Series(differences=(-0.5, -0.501, -0.499, -0.5), margin_log=0.1)
    stayed = Series(differences=(0.001, -0.001, 0.0, 0.0005), margin_log=0.1)

    decision = decide([gained, stayed], LookPlan(alpha=0.01, looks=(4,)))

    assert [finding.outcome for finding in decision.findings] == [Outcome.IMPROVED, Outcome.PASS]
    assert decision.outcome is combine_outcomes([Outcome.IMPROVED, Outcome.PASS]) is Outcome.IMPROVED
