"""The verdict on whole sessions: each outcome, each stage, and what a baseline changes."""

from __future__ import annotations

from dataclasses import replace
from math import expm1, log
from statistics import median

import pytest

from perfgate.check import judge, needs_more
from perfgate.core import Arm, Fingerprint, Outcome, Role
from perfgate.evidence import DriverProblem
from perfgate.scenario.load import Load
from perfgate.scenario.schema import Gate, Warmup
from perfgate.storage.rounding import format_verdict
from perfgate.verdict.noise import Response
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.series import read_blocks, read_series
from perfgate.verdict.validity.pairing import measure_window_variance
from tests.fakes.sessions import FACTS, change_window, make_baseline, make_scenario, make_session, record

SCENARIO = make_scenario()
BASELINE = make_baseline(SCENARIO)
NOISY = make_scenario(warmup=Warmup(steady_ratio=0.25))


def _find(verdict, metric):
    return next(judgement for judgement in verdict.judgements if judgement.metric == metric)


@pytest.mark.parametrize(
    ("worse", "outcome"),
    [(0.0, Outcome.PASS), (0.03, Outcome.REGRESSION), (-0.05, Outcome.IMPROVED), (0.0178, Outcome.INCONCLUSIVE)],
)
def test_judge__outcomes(worse, outcome):
    verdict = judge(make_session(SCENARIO, blocks=2, worse=worse), SCENARIO, BASELINE)

    assert (verdict.outcome, verdict.blocks, verdict.windows) == (outcome, 2, 12)


def test_judge__says_what_changed_in_the_readers_terms():
    verdict = judge(make_session(SCENARIO, blocks=2, worse=0.05), SCENARIO, BASELINE)

    throughput, latency = _find(verdict, "output_tok_per_s"), _find(verdict, "median_itl_ms")
    assert throughput.change < 0 < latency.change
    assert throughput.candidate / throughput.base - 1 == pytest.approx(throughput.change)
    assert throughput.low < throughput.change < throughput.high < 0
    assert throughput.worse == pytest.approx(-log(1 + throughput.change))
    assert throughput.band == pytest.approx(BASELINE.metrics["output_tok_per_s"].band)


def test_judge__headlines_come_first():
    scenario = make_scenario(gates={"mean_e2e_ms": Gate(), "median_itl_ms": Gate()})

    verdict = judge(make_session(scenario), scenario, None)

    assert [one.metric for one in verdict.judgements] == ["output_tok_per_s", "p99_itl_ms", "median_itl_ms", "mean_e2e_ms"]
    assert [one.gating for one in verdict.judgements] == [False, False, True, True]
    assert "does not gate it" in verdict.judgements[0].notes[0]


def test_judge__without_a_baseline_says_so_and_uses_the_plain_t():
    verdict = judge(make_session(SCENARIO, worse=0.05), SCENARIO, None)

    assert verdict.uncalibrated
    assert verdict.policy["aa_blocks"] == 0
    assert "own noise alone" in verdict.warnings[0]
    assert verdict.policy["baseline"] == "none"


@pytest.mark.parametrize(("sessions", "is_uncalibrated"), [(9, True), (10, False)])
def test_judge__is_uncalibrated_below_twenty_blocks(sessions, is_uncalibrated):
    baseline = make_baseline(SCENARIO, sessions=sessions)

    assert judge(make_session(SCENARIO), SCENARIO, baseline).uncalibrated is is_uncalibrated


def test_judge__writes_down_what_was_fixed():
    policy = judge(make_session(SCENARIO, scenarios_in_pr=2), SCENARIO, BASELINE).policy

    assert policy == {
        "rule": "2026-11.12",
        "stage": 2,
        "alpha": 0.01,
        "alpha_look": 0.01 / 4 / 2,
        "looks": "2, 3, 4, 6",
        "scenarios_in_pr": 2,
        "confidence": 0.95,
        "confidence_look": pytest.approx(1 - 0.05 / 4),
        "windows_per_start": 3,
        "max_prior_df": 9,
        "usual_offset_log": 0.005,
        "usual_ratio": 2.0,
        "aa_blocks": 24,
        "baseline": "unsaved",
    }


def test_judge__in_flight_counts_whole_blocks_only():
    session = make_session(SCENARIO, blocks=2)
    cut = replace(session, windows=session.windows[:-1], is_complete=False)

    verdict = judge(cut, SCENARIO, BASELINE)

    assert (verdict.outcome, verdict.blocks) == (Outcome.INCONCLUSIVE, 1)
    assert "1 block more to the next look" in verdict.reasons[0]
    assert any("still running" in warning for warning in verdict.warnings)


def test_judge__before_the_first_window():
    empty = replace(make_session(SCENARIO), windows=(), is_complete=False)

    assert judge(empty, SCENARIO, BASELINE).outcome is Outcome.INCONCLUSIVE
    assert needs_more(empty, SCENARIO, BASELINE)


def test_judge__after_the_last_look_says_what_could_have_been_seen():
    verdict = judge(make_session(NOISY, blocks=6, worse=0.02, noise=0.03), NOISY, None)

    judgement = _find(verdict, "output_tok_per_s")
    assert (verdict.outcome, verdict.blocks) == (Outcome.INCONCLUSIVE, 6)
    assert "after the last look, at 6 blocks" in verdict.reasons[0]
    # The note speaks of throughput lost, as the table does, and not of time gained.
    lost = 100 * (1 - 1 / (1 + judgement.smallest_effect))
    assert judgement.notes[0].endswith(f"this much evidence reliably finds no loss below {lost:.1f} % (9 times in 10)")


def test_judge__evidence_too_thin_to_size_a_loss():
    scenario = make_scenario(warmup=Warmup(steady_ratio=9.0))

    verdict = judge(make_session(scenario, blocks=2, noise=0.5), scenario, None)

    judgement = _find(verdict, "median_itl_ms")
    assert (judgement.outcome, judgement.smallest_effect) == (Outcome.INCONCLUSIVE, None)
    assert judgement.notes == (
        "Median ITL: this much evidence cannot size a loss yet",
        "Median ITL: blocks agree better than windows scatter, and no noise is stored: a wider interval",
    )


def test_judge__scatter_is_told_as_it_was_not_as_it_was_counted():
    """Twice the usual variance counts as none, so phi alone would tell less than there was."""
    verdict = judge(make_session(SCENARIO, blocks=2, noise=0.02), SCENARIO, BASELINE)

    policy = fix_policy(make_session(SCENARIO), SCENARIO, BASELINE)
    reading = read_series(make_session(SCENARIO, blocks=2, noise=0.02), policy)[0]
    scatter = (2.0 * reading.series.phi[1]) ** 0.5
    assert f"windows scattered {scatter:.1f} times" in _find(verdict, reading.metric).notes[-1]


def test_read_series__scatter_within_twice_the_usual_is_usual():
    policy = fix_policy(make_session(SCENARIO), SCENARIO, BASELINE)

    phis = [read_series(make_session(SCENARIO, blocks=2, noise=noise), policy)[0].series.phi for noise in (0.004, 0.02)]

    usual = policy.noise["output_tok_per_s"].spread
    blocks = read_blocks(make_session(SCENARIO, blocks=2, noise=0.02), policy)
    spreads = [measure_window_variance(arm, "output_tok_per_s") for block in blocks for arm in (block.base, block.candidate)]
    assert phis[0] == (1.0, 1.0)
    assert phis[1] == (pytest.approx(median(spreads[:2]) / usual / 2), pytest.approx(median(spreads) / usual / 2))


@pytest.mark.parametrize(
    ("blocks", "worse", "more"),
    [(1, 0.0, True), (2, 0.0, False), (2, 0.05, False), (2, 0.0178, True), (3, 0.0178, False)],
)
def test_needs_more__until_a_look_decides(blocks, worse, more):
    assert needs_more(make_session(SCENARIO, blocks=blocks, worse=worse), SCENARIO, BASELINE) is more


@pytest.mark.parametrize(("blocks", "more"), [(4, True), (5, True), (6, False)])
def test_needs_more__until_the_plan_is_spent(blocks, more):
    assert needs_more(make_session(NOISY, blocks=blocks, worse=0.02, noise=0.03), NOISY, None) is more


def test_needs_more__not_when_the_session_is_void():
    died = DriverProblem(message="the server died; read its log")

    assert not needs_more(make_session(SCENARIO, blocks=1, problems=(died,)), SCENARIO, BASELINE)


def _alone(**changes):
    return make_session(SCENARIO, blocks=1, arms=(Arm.CANDIDATE,), **changes)


def test_judge__a_candidate_alone_within_the_band_passes():
    verdict = judge(_alone(worse=-0.01), SCENARIO, BASELINE)

    assert (verdict.outcome, verdict.policy["stage"], verdict.windows) == (Outcome.PASS, 1, 3)
    assert not needs_more(_alone(worse=-0.01), SCENARIO, BASELINE)


def test_judge__a_slow_candidate_alone_is_sent_to_a_comparison():
    verdict = judge(_alone(worse=0.2), SCENARIO, BASELINE)

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "measure A/B blocks" in verdict.reasons[0]
    assert {judgement.outcome for judgement in verdict.judgements} == {Outcome.INCONCLUSIVE}
    assert not needs_more(_alone(worse=0.2), SCENARIO, BASELINE)


def test_judge__a_slow_candidate_without_any_base_fails_on_the_same_software_only():
    other = {Arm.CANDIDATE: Fingerprint(facts={**FACTS, "sglang": "0.6"})}

    assert judge(_alone(worse=0.2, has_base=False), SCENARIO, BASELINE).outcome is Outcome.REGRESSION
    assert judge(_alone(worse=0.2, has_base=False, fingerprints=other), SCENARIO, BASELINE).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("baseline", [None, make_baseline(SCENARIO, sessions=9)])
def test_judge__a_candidate_alone_with_too_little_past(baseline):
    verdict = judge(_alone(worse=-0.5), SCENARIO, baseline)

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "10 stored sessions" in verdict.reasons[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"workload_hash": "other"}, "another workload"),
        ({"windows": 5}, "another design"),
        ({"resident": "both"}, "another design"),
        (
            {"fingerprint": Fingerprint(facts={**FACTS, "gpu": "Older GPU"})},
            "other hardware (gpu: Test GPU here, Older GPU there)",
        ),
    ],
)
def test_judge__a_baseline_that_does_not_fit_is_not_used(changes, reason):
    verdict = judge(make_session(SCENARIO), SCENARIO, replace(BASELINE, **changes))

    assert any(reason in warning for warning in verdict.warnings)
    assert (verdict.policy["aa_blocks"], verdict.policy["baseline"], verdict.uncalibrated) == (0, "none", True)
    assert {judgement.band for judgement in verdict.judgements} == {None}


def judge_spread(mine, theirs):
    session = make_session(SCENARIO, fingerprints=dict.fromkeys(Arm, Fingerprint(facts={**FACTS, **mine})))
    return judge(session, SCENARIO, replace(BASELINE, fingerprint=Fingerprint(facts={**FACTS, **theirs})))


def test_judge__gpus_that_are_linked_otherwise_than_the_baselines_void_the_session():
    linked = {"gpus": "2", "link": "NV18"}
    verdict = judge_spread({"gpus": "2", "link": "PHB"}, linked)

    assert verdict.outcome is Outcome.INVALID
    [reason] = verdict.reasons
    assert reason.startswith("its GPUs are linked otherwise than those of the baseline (link: PHB here, NV18 there)")
    assert judge_spread(linked, linked).outcome is not Outcome.INVALID
    assert "(gpus: 4 here, 2 there)" in judge_spread({**linked, "gpus": "4"}, linked).reasons[0]


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ({"sglang": "0.4"}, "software changed since the baseline (sglang: 0.5.15 here, 0.4 there)"),
        ({"cores": "64"}, "the baseline is of another host (cores: absent here, 64 there)"),
    ],
)
def test_judge__other_software_or_another_host_makes_the_past_weigh_less(fact, words):
    verdict = judge(make_session(SCENARIO), SCENARIO, replace(BASELINE, fingerprint=Fingerprint(facts={**FACTS, **fact})))

    assert verdict.policy["max_prior_df"] == 4
    assert verdict.policy["aa_blocks"] > 0
    assert f"{words}: its noise weighs less" in verdict.warnings[0]


def test_judge__a_metric_that_the_baseline_lacks_is_judged_by_itself():
    metrics = {name: noise for name, noise in BASELINE.metrics.items() if name != "median_itl_ms"}

    verdict = judge(make_session(SCENARIO), SCENARIO, replace(BASELINE, metrics=metrics))

    assert "median_itl_ms is not in the baseline" in verdict.warnings[0]
    assert verdict.uncalibrated


@pytest.mark.parametrize(
    ("rows", "gates", "reason"),
    [
        ((), False, "192 requests per start are fewer than 300"),
        ((Response(injected_ratio=0.1, measured_ratio=0.09, low=0.05, high=0.13),), True, None),
        ((Response(injected_ratio=0.1, measured_ratio=0.02, low=0.01, high=0.03),), False, "no fitting response"),
        ((Response(injected_ratio=0.1, measured_ratio=0.09, low=-0.01, high=0.2),), False, "no fitting response"),
    ],
)
def test_judge__p99_of_few_requests_gates_only_if_calibration_saw_it_respond(rows, gates, reason):
    scenario = make_scenario(load=replace(SCENARIO.load, num_prompts=64))
    baseline = make_baseline(scenario, sessions=10)
    noise = replace(baseline.metrics["p99_itl_ms"], sensitivity=rows)

    verdict = judge(make_session(scenario), scenario, replace(baseline, metrics={**baseline.metrics, "p99_itl_ms": noise}))

    judgement = _find(verdict, "p99_itl_ms")
    assert judgement.gating is gates
    assert gates or reason in judgement.notes[0]


TRACED = Load(num_prompts=64, max_concurrency=64, dataset="trace", dataset_path="t.jsonl", dataset_sha256="0" * 64)


@pytest.mark.parametrize(
    ("changes", "metric", "reason"),
    [
        ({"gates": {"median_itl_ms": Gate(), "output_tok_per_s": Gate(advisory=True)}}, "output_tok_per_s", "advisory"),
        ({"load": replace(SCENARIO.load, request_rate=20.0)}, "output_tok_per_s", "at 20 requests/s it echoes"),
        ({"load": TRACED}, "output_tok_per_s", "at a trace's times it echoes"),
        ({"gates": {"median_itl_ms": Gate(), "max_itl_ms": Gate()}}, "max_itl_ms", "never gates"),
    ],
)
def test_judge__a_metric_that_may_not_gate_fails_nothing(changes, metric, reason):
    scenario = make_scenario(**changes)

    verdict = judge(make_session(scenario, worse={metric: 0.5}), scenario, None)

    assert verdict.outcome is Outcome.PASS
    assert reason in _find(verdict, metric).notes[0]


def test_judge__a_rerun_replaces_the_stalled_window_and_is_reported():
    session = make_session(SCENARIO, blocks=2)
    position = next(i for i, one in enumerate(session.windows) if one.arm is Arm.CANDIDATE and one.role is Role.MEASURED)
    values = session.windows[position].run.values
    stalled = {name: value / 1.5 if name == "output_tok_per_s" else value * 1.5 for name, value in values.items()}
    session = change_window(session, position, values=stalled)
    last = session.windows[-1]
    start = session.windows[position].start
    rerun = replace(last, arm=Arm.CANDIDATE, block=1, start=start, index=9, role=Role.RERUN)
    end = next(one.ended_s for one in reversed(session.windows) if one.start == start)
    rerun = replace(
        rerun, run=replace(last.run, source="rerun", values=values, duration_s=0.5), begun_s=end + 0.1, ended_s=end + 0.9
    )

    verdict = judge(replace(session, windows=(*session.windows, rerun)), SCENARIO, BASELINE)

    assert verdict.outcome is Outcome.PASS
    assert "block 1, candidate: a window stalled and was measured again" in verdict.warnings


def test_judge__a_noisier_session_is_told_and_widens_the_interval():
    quiet, noisy = (make_session(SCENARIO, blocks=2, noise=noise) for noise in (0.004, 0.02))

    verdicts = [judge(session, SCENARIO, BASELINE) for session in (quiet, noisy)]

    widths = [one.judgements[0].high - one.judgements[0].low for one in verdicts]
    assert widths[1] > 3 * widths[0]
    assert any("times as much as stored ones" in note for note in verdicts[1].judgements[0].notes)


def test_judge__arms_with_different_software_are_told_apart():
    candidate = Fingerprint(facts={**FACTS, "torch": "3.0"})

    verdict = judge(
        make_session(SCENARIO, fingerprints={Arm.BASE: Fingerprint(facts=FACTS), Arm.CANDIDATE: candidate}), SCENARIO, None
    )

    assert "the arms differ in torch: absent in base, 3.0 in candidate" in verdict.warnings


def test_judge__p_values_and_bands_are_those_of_the_formulas():
    """One metric, by hand: H A/A blocks weigh nine degrees of freedom, two blocks one more."""
    session = make_session(SCENARIO, blocks=2, worse=0.05)
    judgement = _find(judge(session, SCENARIO, BASELINE), "median_itl_ms")
    noise = BASELINE.metrics["median_itl_ms"]

    middles = {}
    for window in session.windows:
        if window.role is Role.MEASURED:
            middles.setdefault((window.block, window.arm), []).append(log(window.run.values["median_itl_ms"]))
    d1, d2 = (sorted(middles[block, Arm.CANDIDATE])[1] - sorted(middles[block, Arm.BASE])[1] for block in (1, 2))
    assert judgement.worse == pytest.approx((d1 + d2) / 2)
    s2 = (d1 - d2) ** 2 / 2
    least = (((9 * noise.block_variance + s2) / 10) / 2) ** 0.5
    assert expm1(judgement.worse + 1.812461 * least) <= judgement.high + 1e-9


def test_format_verdict__rounds_and_sorts():
    text = format_verdict(judge(make_session(SCENARIO), SCENARIO, BASELINE)).decode()

    assert text.index('"blocks"') < text.index('"uncalibrated"') < text.index('"warnings"')
    assert '"margin": -0.0291262,' in text
    assert '"schema": 2,' in text
    assert "NaN" not in text


def test_record__is_what_the_baseline_was_built_from():
    assert {start.session for start in BASELINE.starts} == {record(make_session(SCENARIO), day).name for day in range(1, 13)}
