"""The rule on plain numbers: each outcome, the order of looks, and what can never happen."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfgate.core import Outcome
from perfgate.stats.looks import LookPlan, Series, decide, find_levels, judge_metric, reject
from perfgate.stats.moderated import Estimate, Prior, find_quantile, guard_variance

PLAN = LookPlan(alpha=0.01, looks=(2, 3, 4, 6))
PRIOR = Prior(variance=0.008**2, df=6)
RANK = [Outcome.IMPROVED, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.REGRESSION]


def _series(*differences: float, **changes) -> Series:
    return Series(**{"differences": differences, "margin_log": 0.03, "prior": PRIOR, **changes})


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
    undecided = _series(0.016, 0.018, -0.01)

    decision = decide([hidden, undecided], PLAN)

    assert (decision.outcome, decision.look) == (Outcome.PASS, 3)
    assert [finding.outcome for finding in decision.findings] == [Outcome.PASS, Outcome.PASS]


def test_decide__the_smallest_effect_shrinks_with_blocks():
    noisy = _series(0.04, -0.01, 0.04, -0.01, 0.04, -0.01)
    few, many = (decide([replace(noisy, differences=noisy.differences[:count])], PLAN) for count in (2, 6))

    assert many.findings[0].smallest < few.findings[0].smallest


def test_decide__the_smallest_effect_is_found_nine_times_in_ten():
    """Noise of known size: the effect promised is the one that the last look finds with the promised power."""
    quiet = decide([_series(0.0, 0.0, prior=Prior(variance=0.004**2, df=1e6))], LookPlan(alpha=0.01, looks=(2,)))

    # z(.99) + z(.9) standard errors of 0.004 / sqrt(2); the test, not Delta / 2, is what binds at a small margin.
    tight = decide(
        [_series(0.0, 0.0, margin_log=0.001, prior=Prior(variance=0.004**2, df=1e6))], LookPlan(alpha=0.01, looks=(2,))
    )
    assert tight.findings[0].smallest == pytest.approx((2.3263 + 1.2816) * 0.004 / 2**0.5, rel=1e-3)
    assert quiet.findings[0].smallest == pytest.approx(0.015 + 1.2816 * 0.004 / 2**0.5, rel=1e-3)


def test_decide__the_smallest_effect_of_many_metrics_is_found_at_the_strictest_level():
    quiet = _series(0.0, 0.0, margin_log=0.001, prior=Prior(variance=0.004**2, df=1e6))

    decision = decide([quiet, quiet], LookPlan(alpha=0.01, looks=(2,)))

    # z(.995) + z(.9) standard errors: Holm's first step for two metrics.
    assert decision.findings[0].smallest == pytest.approx((2.5758 + 1.2816) * 0.004 / 2**0.5, rel=1e-3)
    assert decision.findings[0].estimate == quiet.estimate(2)


def test_decide__a_silent_series_meets_the_strictest_level():
    """Between alpha / 2 and alpha: enough where one metric gates or none does, too little beside two that do."""
    calm, shown = _series(0.0, 0.0), _series(0.0175, 0.0175, gating=False)
    plan = LookPlan(alpha=0.01, looks=(2,))
    assert plan.alpha / 2 < shown.estimate(2).p_worse < plan.alpha

    outcomes = [decide([*[calm] * count, shown], plan).findings[-1].outcome for count in (0, 1, 2)]

    assert outcomes == [Outcome.REGRESSION, Outcome.REGRESSION, Outcome.INCONCLUSIVE]


def test_decide__a_silent_series_exactly_on_its_level_is_rejected():
    shown = _series(0.06, 0.05, gating=False)
    (finding,) = decide([shown], LookPlan(alpha=shown.estimate(2).p_worse, looks=(2,))).findings

    assert finding.outcome is Outcome.REGRESSION


def test_decide__before_the_first_look_nothing_is_found():
    for series in ([], [_series(0.04)]):
        decision = decide(series, replace(PLAN, looks=(1,) if not series else (2,)))

        assert (decision.look, decision.findings) == (0, ())


def test_series__each_block_has_its_own_inflation():
    series = _series(0.03, 0.03, phi=(1.0, 9.0))

    assert series.estimate(1).standard_error == _series(0.03).estimate(1).standard_error
    # Equal differences: the stored variance alone is left, times nine over two blocks, with six of seven degrees of freedom.
    assert series.estimate(2).standard_error == pytest.approx((6 * 9 * 0.008**2 / 7 / 2) ** 0.5)


@pytest.mark.parametrize(
    ("mean", "is_worse", "is_better", "outcome"),
    [
        (0.0150, True, False, Outcome.PASS),
        (0.0151, True, False, Outcome.REGRESSION),
        (0.0151, False, False, Outcome.INCONCLUSIVE),
        (-0.0120, False, True, Outcome.PASS),
        (-0.0150, False, True, Outcome.PASS),
        (-0.0151, False, True, Outcome.IMPROVED),
        (-0.0151, False, False, Outcome.PASS),
    ],
)
def test_judge_metric__half_the_margin_divides(mean, is_worse, is_better, outcome):
    found = Estimate(mean=mean, standard_error=0.0, df=5)

    assert judge_metric(found, 0.03, is_worse=is_worse, is_better=is_better) is outcome


def test_judge_metric__a_bound_on_the_margin_does_not_pass():
    """PASS means less than Delta."""
    found = Estimate(mean=0.0, standard_error=1.0, df=5)

    outcomes = [
        judge_metric(found, find_quantile(0.95, 5) * wider, is_worse=False, is_better=False) for wider in (1.0, 1.0 + 1e-12)
    ]

    assert outcomes == [Outcome.INCONCLUSIVE, Outcome.PASS]


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
            margin_log=draw(st.sampled_from([0.03, 0.1])),
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

    after = decide(seen, LookPlan(alpha=PLAN.alpha, looks=(before.look,), scenarios=4))

    assert after.outcome in {Outcome.REGRESSION, Outcome.INCONCLUSIVE}


@given(families(), st.lists(effects, min_size=1, max_size=4))
def test_decide__what_comes_after_a_decision_changes_nothing(family, later):
    before = decide(family, PLAN)
    assume(before.outcome is not Outcome.INCONCLUSIVE)

    longer = [replace(one, differences=(*one.differences, *later)) for one in family]

    assert decide(longer, PLAN) == before


@given(effects, priors, st.integers(2, 12))
def test_decide__more_identical_evidence_never_swaps_pass_and_regression(effect, prior, blocks):
    # On the line itself the mean of nine equal numbers is not each of them: rounding alone decides.
    assume(not isclose(abs(effect), 0.03 / 2))
    few, many = (
        decide([Series(differences=(effect,) * count, margin_log=0.03, prior=prior)], LookPlan(alpha=0.01, looks=(count,)))
        for count in (2, blocks)
    )

    assert {few.outcome, many.outcome} != {Outcome.PASS, Outcome.REGRESSION}
    assert {few.outcome, many.outcome} != {Outcome.IMPROVED, Outcome.REGRESSION}


@given(families())
def test_decide__swapped_arms_mirror_the_answer(family):
    """A loss of one arm is a gain of the other, where the first look decides both."""
    seen = [replace(one, differences=one.differences[:2]) for one in family]
    turned = [replace(one, differences=tuple(-value for value in one.differences)) for one in seen]
    plan = LookPlan(alpha=0.01, looks=(2,))

    for before, after in zip(decide(seen, plan).findings, decide(turned, plan).findings, strict=True):
        assert after.estimate.mean == -before.estimate.mean
        if before.outcome is Outcome.IMPROVED:
            assert after.outcome is Outcome.REGRESSION
        if before.outcome is Outcome.REGRESSION:
            assert after.outcome in {Outcome.IMPROVED, Outcome.INCONCLUSIVE}


@given(families(), st.randoms())
def test_decide__the_order_of_metrics_means_nothing(family, shuffler):
    order = list(range(len(family)))
    shuffler.shuffle(order)

    before, after = decide(family, PLAN), decide([family[index] for index in order], PLAN)

    assert (after.outcome, after.look) == (before.outcome, before.look)
    assert list(after.findings) == ([before.findings[index] for index in order] if before.findings else [])


@given(families(), st.floats(0.25, 4))
def test_decide__the_unit_of_the_logarithm_means_nothing(family, scale):
    """Differences, margins and stored deviations in another unit: the same answer, up to a rounding at its very edge."""
    scaled = [
        replace(
            one,
            differences=tuple(scale * value for value in one.differences),
            margin_log=scale * one.margin_log,
            prior=Prior(variance=scale**2 * one.prior.variance, df=one.prior.df),
        )
        for one in family
    ]

    before, after = decide(family, PLAN), decide(scaled, PLAN)

    for one, other in zip(before.findings, after.findings, strict=False):
        edges = (abs(one.estimate.mean) - 0.015, abs(one.estimate.mean) - 0.05)
        assume(all(abs(edge) > 1e-9 for edge in edges) and one.estimate.standard_error > 1e-9)
        assert other.estimate.p_worse == pytest.approx(one.estimate.p_worse, rel=1e-6, abs=1e-12)
    assert (after.outcome, after.look) == (before.outcome, before.look)


@pytest.mark.parametrize("p_values", [(0.001,), (0.001, 0.004, 0.02), (0.02, 0.0049, 0.004), (0.003, 0.003, 0.0101, 0.9)])
def test_find_levels__are_where_a_rejection_begins(p_values):
    """The largest p-value that Holm rejects while the others stay: just above it a metric is not rejected."""
    levels = find_levels(p_values, 0.01)

    for index, level in enumerate(levels):
        others = list(p_values)
        others[index] = level
        assert reject(others, 0.01)[index]
        others[index] = level * 1.001
        assert not reject(others, 0.01)[index]


def test_look_plan__a_bound_that_holds_over_all_looks_is_stricter_at_each():
    plan = LookPlan(alpha=0.01, looks=(2, 3, 4, 6))

    assert plan.confidence_look == pytest.approx(0.9875)


@pytest.mark.parametrize(
    ("observed", "blocks", "usual", "expected"),
    [(0.0, 2, 1.0, 0.5), (0.0, 18, 1.0, 0.1), (0.5, 2, 1.0, 0.75), (2.0, 2, 1.0, 2.0), (0.3, 2, 0.0, 0.3)],
)
def test_guard_variance__pulls_up_only_and_fades(observed, blocks, usual, expected):
    assert guard_variance(observed, blocks, usual) == pytest.approx(expected)


# P99 ITL of mxfp4-mixed-c16-aa-20, equal arms on an H200: both blocks differ alike, their windows scatter by 8 %.
LUCKY = _series(0.0565, 0.0602, margin_log=0.095, prior=Prior(offset_variance=0.005**2, offset_df=4))


@pytest.mark.parametrize(("usual", "outcome"), [((), Outcome.REGRESSION), ((0.0023, 0.0023), Outcome.INCONCLUSIVE)])
def test_decide__blocks_that_agree_by_chance_where_nothing_is_stored(usual, outcome):
    plan = LookPlan(alpha=0.01, looks=(2, 4, 6))

    assert decide([replace(LUCKY, usual=usual)], plan).outcome is outcome


def test_estimate__stored_noise_needs_no_guard():
    stored = _series(0.0565, 0.0602)

    assert replace(stored, usual=(0.01, 0.01)).estimate(2) == stored.estimate(2)
