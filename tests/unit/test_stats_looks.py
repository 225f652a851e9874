"""The rule on plain numbers: each outcome, the order of looks, and what can never happen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfgate.core import Outcome
from perfgate.stats.looks import Plan, Series, decide
from perfgate.stats.moderated import Prior

PLAN = Plan(alpha=0.01, looks=(2, 3, 4, 6))
PRIOR = Prior(variance=0.008**2, df=6)
RANK = [Outcome.IMPROVED, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.REGRESSION]


def _series(*differences: float, **changes) -> Series:
    return Series(**{"differences": differences, "margin": 0.03, "prior": PRIOR, **changes})


def test_plan__spends_its_error_over_looks_and_scenarios():
    assert replace(PLAN, scenarios=5).alpha_look == pytest.approx(0.01 / 4 / 5)


@pytest.mark.parametrize(
    ("differences", "outcome", "look"),
    [
        ((0.001, -0.002), Outcome.PASS, 2),
        ((0.040, 0.038), Outcome.REGRESSION, 2),
        ((-0.040, -0.038), Outcome.IMPROVED, 2),
        ((0.016, 0.018), Outcome.INCONCLUSIVE, 2),
        ((0.016, 0.018, 0.001, 0.000), Outcome.PASS, 3),
        ((0.016, 0.018, 0.020, 0.019, 0.017, 0.018), Outcome.REGRESSION, 3),
        ((0.05, -0.01, 0.05, -0.01, 0.05, -0.01), Outcome.INCONCLUSIVE, 6),
        ((0.040,), Outcome.INCONCLUSIVE, 0),
    ],
)
def test_decide__outcomes(differences, outcome, look):
    decision = decide([_series(*differences)], PLAN)

    assert (decision.outcome, decision.look) == (outcome, look)


def test_decide__no_series_is_no_pass():
    assert decide([], PLAN).outcome is Outcome.INCONCLUSIVE


def test_decide__only_silent_series_is_no_pass():
    assert decide([_series(0.0, 0.0, gating=False)], PLAN).outcome is Outcome.INCONCLUSIVE


def test_decide__a_silent_series_shows_its_loss_and_fails_nothing():
    decision = decide([_series(0.0, 0.0), _series(0.06, 0.06, gating=False)], PLAN)

    assert decision.outcome is Outcome.PASS
    assert [finding.outcome for finding in decision.findings] == [Outcome.PASS, Outcome.REGRESSION]


def test_decide__one_loss_among_gains_fails():
    assert decide([_series(-0.1, -0.1), _series(0.06, 0.06)], PLAN).outcome is Outcome.REGRESSION


def test_decide__many_metrics_need_more_proof_each():
    borderline = _series(0.0163, 0.0163, prior=Prior(variance=0.006**2, df=6))

    assert decide([borderline], PLAN).outcome is Outcome.REGRESSION
    assert decide([borderline, *[_series(0.0, 0.0)] * 9], PLAN).outcome is Outcome.INCONCLUSIVE


def test_decide__a_noisier_session_weakens_the_stored_noise():
    assert decide([_series(0.030, 0.030)], PLAN).outcome is Outcome.REGRESSION
    assert decide([_series(0.030, 0.030, phi=(9.0, 9.0))], PLAN).outcome is Outcome.INCONCLUSIVE


def test_decide__a_gain_that_the_first_look_did_not_see_is_a_pass():
    hidden = _series(-0.03, -0.03, -0.03, prior=Prior(variance=0.01**2, df=6))
    doubtful = _series(0.016, 0.018, -0.01)

    decision = decide([hidden, doubtful], PLAN)

    assert (decision.outcome, decision.look) == (Outcome.PASS, 3)


def test_decide__the_smallest_effect_shrinks_with_blocks():
    noisy = _series(0.04, -0.01, 0.04, -0.01, 0.04, -0.01)
    few, many = (decide([replace(noisy, differences=noisy.differences[:count])], PLAN) for count in (2, 6))

    assert many.findings[0].smallest < few.findings[0].smallest


def test_decide__the_smallest_effect_is_found_nine_times_in_ten():
    """Noise of known size: the effect promised is the one that the last look finds with the promised power."""
    quiet = decide([_series(0.0, 0.0, prior=Prior(variance=0.004**2, df=1e6))], Plan(alpha=0.01, looks=(2,)))

    # z(.99) + z(.9) standard errors of 0.004 / sqrt(2); the test, not Delta / 2, is what binds at a small margin.
    tight = decide([_series(0.0, 0.0, margin=0.001, prior=Prior(variance=0.004**2, df=1e6))], Plan(alpha=0.01, looks=(2,)))
    assert tight.findings[0].smallest == pytest.approx((2.3263 + 1.2816) * 0.004 / 2**0.5, rel=1e-3)
    assert quiet.findings[0].smallest == pytest.approx(0.015 + 1.2816 * 0.004 / 2**0.5, rel=1e-3)


effects = st.floats(-0.1, 0.1, allow_subnormal=False)
priors = st.one_of(st.just(Prior()), st.builds(Prior, variance=st.floats(1e-8, 1e-3), df=st.integers(1, 6)))


@st.composite
def families(draw) -> list[Series]:
    blocks = draw(st.integers(1, 7))
    count = draw(st.integers(1, 4))
    values = st.lists(effects, min_size=blocks, max_size=blocks).map(tuple)
    return [
        Series(
            differences=draw(values),
            margin=draw(st.sampled_from([0.03, 0.1])),
            prior=draw(priors),
            gating=index == 0 or draw(st.booleans()),
        )
        for index in range(count)
    ]


@given(families(), st.lists(st.floats(0, 0.2), min_size=4, max_size=4))
def test_decide__slower_is_never_better(family, amounts):
    slower = [
        replace(one, differences=tuple(value + amount for value in one.differences))
        for one, amount in zip(family, amounts, strict=False)
    ]

    assert RANK.index(decide(slower, PLAN).outcome) >= RANK.index(decide(family, PLAN).outcome)


@given(families(), st.floats(0.05, 0.3), st.data())
def test_decide__a_regression_does_not_pass_when_any_block_gets_slower(family, loss, data):
    family = [replace(one, differences=tuple(loss + value / 20 for value in one.differences)) for one in family]
    before = decide(family, PLAN)
    assume(before.outcome is Outcome.REGRESSION)
    seen = [replace(one, differences=one.differences[: before.look]) for one in family]
    index = data.draw(st.integers(0, len(seen) - 1))
    block = data.draw(st.integers(0, before.look - 1))
    amount = data.draw(st.floats(0, 0.5))
    changed = list(seen[index].differences)
    changed[block] += amount
    seen[index] = replace(seen[index], differences=tuple(changed))

    after = decide(seen, Plan(alpha=PLAN.alpha, looks=(before.look,), scenarios=4))

    assert after.outcome in {Outcome.REGRESSION, Outcome.INCONCLUSIVE}


@given(families(), st.lists(effects, min_size=1, max_size=4))
def test_decide__what_comes_after_a_decision_changes_nothing(family, later):
    before = decide(family, PLAN)
    assume(before.outcome is not Outcome.INCONCLUSIVE)

    longer = [replace(one, differences=(*one.differences, *later)) for one in family]

    assert decide(longer, PLAN) == before


@given(effects, priors, st.integers(2, 12))
def test_decide__more_identical_evidence_never_swaps_pass_and_regression(effect, prior, blocks):
    few, many = (
        decide([Series(differences=(effect,) * count, margin=0.03, prior=prior)], Plan(alpha=0.01, looks=(count,)))
        for count in (2, blocks)
    )

    assert {few.outcome, many.outcome} != {Outcome.PASS, Outcome.REGRESSION}
    assert {few.outcome, many.outcome} != {Outcome.IMPROVED, Outcome.REGRESSION}
