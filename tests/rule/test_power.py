"""Designs and what they find, from a baseline with noise that is known in advance."""

from __future__ import annotations

from dataclasses import replace
from math import expm1, log1p, pi

import numpy as np
import pytest

from perfgate.core import Arm, Fingerprint
from perfgate.errors import InputError
from perfgate.scenario.catalog import load_scenario
from perfgate.stats.power import find_power
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.noise import Anchor, NoiseModel, StoredStart
from perfgate.verdict.policy import MAX_PRIOR_DF
from perfgate.verdict.power import (
    Cost,
    SampleSize,
    Study,
    describe,
    draw_curves,
    find_all_cheapest,
    find_cheapest,
    predict_block_variance,
)

GATES = ("output_tok_per_s", "median_itl_ms", "mean_e2e_ms", "mean_ttft_ms")


def make_starts(blocks, *, is_aa=True):
    return tuple(
        StoredStart(
            session=f"s{block // 4}", block=block, arm=arm, epoch=1, is_aa=is_aa, at="2026-01-01", commit="c", environment="e"
        )
        for block in range(blocks)
        for arm in Arm
    )


def make_noise(metric, *, blocks=20, windows=3, window_sd=0.01, start_sd=0.005, seed=1, is_aa=True):
    rng = np.random.default_rng(seed)
    logs = rng.normal(0, start_sd, (2 * blocks, 1)) + rng.normal(0, window_sd, (2 * blocks, windows))
    return NoiseModel(
        metric=metric,
        starts=make_starts(blocks, is_aa=is_aa),
        values=tuple(tuple(row) for row in (100 * np.exp(logs)).tolist()),
        anchor=Anchor(log_mean=0.0, at="2026-01-01", release="v1"),
    )


def make_baseline(**given):
    scenario = load_scenario("cpu-moe")
    return Baseline(
        scenario=scenario.name,
        workload_hash=scenario.workload_hash,
        fingerprint=Fingerprint(facts={"hardware": "testbed"}),
        windows=3,
        resident="both",
        metrics={name: make_noise(name, seed=index, **given) for index, name in enumerate(GATES)},
    )


@pytest.fixture
def study():
    return Study(baseline=make_baseline(), scenario=load_scenario("cpu-moe"), cost=Cost(start_s=30.0, window_s=10.0, warmups=2))


def test_minutes__two_arms_pay_start_warmup_and_windows():
    cost = Cost(start_s=30.0, window_s=10.0, warmups=2)

    # 3 blocks x 2 arms x (30 + (2 + 4) x 10 x 0.5) s = 360 s
    assert cost.minutes(SampleSize(blocks=3, windows=4, request_ratio=0.5)) == pytest.approx(6.0)


def test_gating__leaves_out_what_the_scenario_calls_advisory(study):
    assert study.metrics == ("output_tok_per_s", "median_itl_ms", "mean_ttft_ms", "mean_e2e_ms")
    assert study.gating == ("output_tok_per_s", "median_itl_ms", "mean_e2e_ms")


def test_trial__shares_alpha_between_looks_and_gates(study):
    trial = study.trial("median_itl_ms", SampleSize(blocks=3, windows=3))

    assert trial.alpha == pytest.approx(0.01 / 4 / 3)
    assert trial.floor == pytest.approx(log1p(0.25) / 2)
    assert trial.prior_df == MAX_PRIOR_DF


def test_predict_block_variance__of_the_stored_design_is_the_stored_variance():
    noise = make_noise("median_itl_ms")

    assert predict_block_variance(noise, SampleSize(blocks=3, windows=3)) == pytest.approx(noise.block_variance)


def test_predict_block_variance__windows_average_out_and_starts_do_not():
    noise = make_noise("median_itl_ms", blocks=400)
    start, window = noise.components.start.variance, noise.components.window.variance
    many = predict_block_variance(noise, SampleSize(blocks=3, windows=9))
    expected = noise.block_variance * (start + window * pi / 18) / (start + window * 0.4487)

    assert many == pytest.approx(expected)
    assert predict_block_variance(noise, SampleSize(blocks=3, windows=3, request_ratio=4.0)) < noise.block_variance


def test_predict_block_variance__without_spread_stays_as_stored():
    noise = replace(make_noise("median_itl_ms"), values=((100.0,) * 3,) * 40)

    assert predict_block_variance(noise, SampleSize(blocks=3, windows=9)) == 0.0


def test_draw_curves__one_reach_per_look_that_keeps_its_promise(study):
    curve = next(one for one in draw_curves(study) if one.metric == "median_itl_ms")

    assert [reach.blocks for reach in curve.reaches] == [2, 3, 4, 6]
    assert [reach.minutes for reach in curve.reaches] == pytest.approx([16 / 3, 8.0, 32 / 3, 16.0])
    found = find_power(study.trial("median_itl_ms", SampleSize(blocks=3, windows=3)), log1p(curve.reaches[1].smallest_effect))
    assert found == pytest.approx(0.9, abs=1e-4)


def test_draw_curves__no_aa_block_stored(study):
    empty = replace(study, baseline=make_baseline(is_aa=False))

    with pytest.raises(InputError, match="no A/A blocks"):
        draw_curves(empty)


def test_find_cheapest__nothing_cheaper_in_the_list_reaches_the_power(study):
    effect = expm1(log1p(0.25) * 0.6)
    best = find_cheapest(study, effect, ["median_itl_ms"])

    assert best.design is not None
    assert best.power >= 0.9
    assert best.minutes == pytest.approx(study.cost.minutes(best.design))
    smaller = [replace(best.design, blocks=best.design.blocks - 1)] if best.design.blocks > 2 else []
    assert all(find_power(study.trial("median_itl_ms", one), log1p(effect)) < 0.9 for one in smaller)


def test_find_cheapest__below_half_the_margin_no_design_helps(study):
    found = find_cheapest(study, 0.05, ["median_itl_ms"])

    assert (found.design, found.minutes, found.power) == (None, None, None)


def test_find_all_cheapest__ends_with_one_design_for_all_gates(study):
    cheapest = find_all_cheapest(study, 0.3)

    assert [found.metrics for found in cheapest[:-1]] == [(name,) for name in study.metrics]
    assert cheapest[-1].metrics == study.gating
    assert cheapest[-1].minutes >= max(one.minutes for one in cheapest[:-1] if one.metrics[0] in study.gating)


def test_describe__is_plain_and_complete(study):
    described = describe(study, draw_curves(study), find_all_cheapest(study, 0.3), 0.3)

    assert described["hardware"] == "testbed"
    assert [row["metric"] for row in described["metrics"]] == list(study.metrics)
    assert len(described["designs"]) == len(study.metrics) + 1
