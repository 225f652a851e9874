"""What no evidence can ever do, tried on many sessions."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.check import judge
from perfgate.core import Arm, Outcome, Role
from perfgate.metrics import METRICS
from perfgate.scenario.schema import Warmup
from perfgate.storage.rounding import format_verdict
from tests.fakes.sessions import LEVELS, change_window, make_baseline, make_scenario, make_session, scale_candidate

SCENARIO = make_scenario(warmup=Warmup(steady_ratio=0.25))
BASELINE = make_baseline(SCENARIO)
RANK = [Outcome.IMPROVED, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.REGRESSION]

baselines = st.sampled_from([None, BASELINE])
sessions = st.builds(
    lambda **kinds: make_session(SCENARIO, **kinds),
    blocks=st.integers(1, 6),
    worse=st.floats(-0.06, 0.06),
    noise=st.floats(0.0005, 0.02),
    seed=st.integers(0, 10**6),
)


def _slow(factors):
    """Factors at least 1 as changes for the worse of each metric."""
    return {
        name: factor if METRICS[name].better == "lower" else 1 / factor for name, factor in zip(LEVELS, factors, strict=True)
    }


@given(sessions, baselines, st.randoms())
@settings(max_examples=40)
def test_judge__the_order_of_windows_in_a_file_means_nothing(session, baseline, shuffler):
    windows = list(session.windows)
    shuffler.shuffle(windows)

    verdicts = [judge(one, SCENARIO, baseline) for one in (session, replace(session, windows=tuple(windows)))]

    assert format_verdict(verdicts[0]) == format_verdict(verdicts[1])


@given(sessions, baselines, st.lists(st.floats(1, 1.3), min_size=len(LEVELS), max_size=len(LEVELS)))
@settings(max_examples=100)
def test_judge__a_slower_candidate_is_never_better_off(session, baseline, factors):
    before = judge(session, SCENARIO, baseline)

    after = judge(scale_candidate(session, _slow(factors)), SCENARIO, baseline)

    assert RANK.index(after.outcome) >= RANK.index(before.outcome)


@given(sessions, st.lists(st.floats(1, 1.3), min_size=len(LEVELS), max_size=len(LEVELS)), st.floats(-0.05, 0.05))
@settings(max_examples=40)
def test_judge__a_slower_candidate_alone_is_never_better_off(session, factors, worse):
    windows = tuple(window for window in session.windows if window.block == 1 and window.arm is Arm.CANDIDATE)
    fingerprints = {Arm.CANDIDATE: session.fingerprints[Arm.CANDIDATE]}
    for has_base in (True, False):
        alone = replace(session, windows=windows, fingerprints=fingerprints, has_base=has_base)
        alone = scale_candidate(alone, _slow([1 + max(worse, 0)] * len(LEVELS)))

        before = judge(alone, SCENARIO, BASELINE)
        after = judge(scale_candidate(alone, _slow(factors)), SCENARIO, BASELINE)

        assert RANK.index(after.outcome) >= RANK.index(before.outcome)


@given(sessions, st.lists(st.floats(0.001, 1000), min_size=len(LEVELS), max_size=len(LEVELS)))
@settings(max_examples=40)
def test_judge__units_mean_nothing(session, scales):
    factors = dict(zip(LEVELS, scales, strict=True))
    windows = tuple(
        replace(one, run=replace(one.run, values={name: value * factors[name] for name, value in one.run.values.items()}))
        for one in session.windows
    )

    before = judge(session, SCENARIO, BASELINE)
    after = judge(replace(session, windows=windows), SCENARIO, BASELINE)

    assert (after.outcome, after.blocks, after.reasons) == (before.outcome, before.blocks, before.reasons)
    for one, two in zip(before.judgements, after.judgements, strict=True):
        assert two.worse == pytest.approx(one.worse, abs=1e-9)
        assert two.outcome is one.outcome


@given(sessions, baselines, st.integers(1, 3))
@settings(max_examples=40)
def test_judge__what_was_measured_after_a_decision_changes_nothing(session, baseline, more):
    before = judge(session, SCENARIO, baseline)
    if before.outcome is Outcome.INCONCLUSIVE:
        return
    longer = _append_blocks(session, make_session(SCENARIO, blocks=more, worse=0.2, seed=99))

    after = judge(longer, SCENARIO, baseline)

    assert (after.outcome, after.blocks, after.judgements) == (before.outcome, before.blocks, before.judgements)


@given(sessions, baselines, st.integers(1, 3))
@settings(max_examples=60)
def test_judge__more_of_the_same_evidence_never_turns_pass_into_regression(session, baseline, times):
    before = judge(session, SCENARIO, baseline)
    longer = session
    for _ in range(times):
        longer = _append_blocks(longer, session)

    after = judge(longer, SCENARIO, baseline)

    if before.outcome in {Outcome.PASS, Outcome.IMPROVED}:
        assert after.outcome is before.outcome
    if before.outcome is Outcome.REGRESSION:
        assert after.outcome is Outcome.REGRESSION


def _append_blocks(session, more):
    """Add the blocks of `more` after those of `session`, measured later; each duration differs by a hair, or it were a copy."""
    last = max(session.windows, key=lambda window: window.ended_s)
    starts = max(window.start for window in session.windows)
    added = tuple(
        replace(
            window,
            block=window.block + last.block,
            start=window.start + starts,
            begun_s=window.begun_s + last.ended_s + 1,
            ended_s=window.ended_s + last.ended_s + 1,
            run=replace(window.run, duration_s=window.run.duration_s * (1 + 1e-9 * last.block)),
        )
        for window in more.windows
    )
    return replace(session, windows=(*session.windows, *added))


@given(sessions, baselines, st.data())
@settings(max_examples=80)
def test_judge__broken_evidence_is_void(session, baseline, data):
    position = data.draw(st.integers(0, len(session.windows) - 1))
    window = session.windows[position]
    metric = data.draw(st.sampled_from(sorted(SCENARIO.gates)))
    breaks = {
        "value": lambda: change_window(
            session, position, values={**window.run.values, metric: data.draw(st.sampled_from([nan, inf, -inf, 0.0, -1.0]))}
        ),
        "absent": lambda: change_window(session, position, values={k: v for k, v in window.run.values.items() if k != metric}),
        "missing": lambda: replace(
            session, windows=tuple(one for one in session.windows if one is not window or one.role is Role.WARMUP)
        ),
        "duplicate": lambda: replace(session, windows=(*session.windows, window)),
        "clock": lambda: change_window(session, position, begun_s=window.ended_s, ended_s=window.begun_s),
        "failed": lambda: change_window(session, position, completed=window.run.completed - 1),
    }
    kind = data.draw(st.sampled_from(sorted(breaks)))
    broken = breaks[kind]()
    if broken == session:
        return

    assert judge(broken, SCENARIO, baseline).outcome is Outcome.INVALID


@given(st.sampled_from([Outcome.PASS, Outcome.REGRESSION]))
def test_judge__identical_arms_pass_and_a_constant_loss_fails_without_any_noise(wanted):
    """Where nothing varies at all, the sign alone decides; no division by zero, no NaN."""
    session = make_session(SCENARIO, blocks=2, noise=0.0, worse=0.0 if wanted is Outcome.PASS else 0.1)
    spread = tuple(
        replace(one, run=replace(one.run, duration_s=one.run.duration_s + 0.001 * number))
        for number, one in enumerate(session.windows)
    )

    verdict = judge(replace(session, windows=spread), SCENARIO, None)

    assert verdict.outcome is wanted
