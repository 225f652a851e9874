"""Comparing runs of two arms without a session."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.core import Arm, Outcome, Remark, RemarkKind, Run
from perfgate.errors import InputError, WorkloadMismatchError
from perfgate.metrics import METRICS
from perfgate.readers.bench_serving import read_runs
from perfgate.stats.moderated import Prior
from perfgate.verdict.runs.compare import ONE_BLOCK, ONE_START, compare_runs
from perfgate.verdict.runs.compare_metrics import Rule

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"
SEVERITY = [Outcome.IMPROVED, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.REGRESSION]
# Spreads of about half a percent, as warm runs show.
WOBBLES = {"base": (0.0, 0.006, -0.005, 0.003, -0.004, 0.001), "candidate": (0.002, -0.0045, 0.005, -0.0035, 0.0007, -0.001)}


def read(*names):
    return [run for name in names for run in read_runs(RUNS / f"{name}.txt")]


def make_run(source, factor=1.0, *, requests=400, rate="inf", drop=(), **changes):
    """A run that is `factor` times slower than a round one."""
    values = {
        "output_tok_per_s": 1000 / factor,
        "request_per_s": 10 / factor,
        "p99_itl_ms": 20 * factor,
        "median_itl_ms": 10 * factor,
        "mean_e2e_ms": 900 * factor,
    }
    facts = {
        "source": source,
        "values": {name: value for name, value in values.items() if name not in drop},
        "workload": {"request_rate": rate},
        "requested": requests,
        "completed": requests,
        "input_tokens": 100,
        "output_tokens": 1000,
        "duration_s": 40.0 * factor,
    }
    return Run(**facts | changes)


def make_arm(name, factor=1.0, runs=5, wobble=None, **changes):
    wobble = wobble or WOBBLES[name]
    return [make_run(f"{name}{index}.txt", factor * (1 + wobble[index]), **changes) for index in range(runs)]


def test_compare_runs__founding_runs_support_no_claim():
    comparison = compare_runs(
        read("fusion_off_1", "fusion_off_2", "fusion_off_3"), read("fusion_on_1", "fusion_on_2", "fusion_on_3"), Rule()
    )
    (group,) = comparison.groups

    assert comparison.outcome is Outcome.INCONCLUSIVE
    assert [cold.figures for cold in group.arms[Arm.BASE].cold] == ["1.48 requests/s against 3.22"]
    assert [cold.figures for cold in group.arms[Arm.CANDIDATE].cold] == ["2.29 requests/s against 3.23"]
    assert {judgement.outcome for judgement in group.judgements} == {Outcome.INCONCLUSIVE}
    assert group.reasons == ("not enough data: 2 warm runs per arm, at least 3 are needed",)
    assert group.further["output_tok_per_s"] == 5
    assert ONE_START in group.warnings


def test_compare_runs__founding_dense_runs_are_different_work():
    with pytest.raises(WorkloadMismatchError, match="request_rate 20 in base, inf in candidate"):
        compare_runs(read("dense_rate20"), read("dense_inf_1", "dense_inf_2"), Rule())


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [
        (1.0, Outcome.PASS),
        (1.005, Outcome.PASS),
        (1.05, Outcome.REGRESSION),
        (0.9, Outcome.IMPROVED),
    ],
)
def test_compare_runs__outcome(factor, outcome):
    rule = Rule(metrics=("output_tok_per_s", "median_itl_ms"))

    comparison = compare_runs(make_arm("base"), make_arm("candidate", factor), rule)

    assert comparison.outcome is outcome


def test_compare_runs__noise_beyond_the_margin():
    wild = [10 * wobble for wobble in WOBBLES["candidate"]]

    (group,) = compare_runs(make_arm("base"), make_arm("candidate", 1.01, wobble=wild), Rule()).groups

    assert group.outcome is Outcome.INCONCLUSIVE
    assert group.reasons == ()
    assert group.further["output_tok_per_s"] > 1


def test_compare_runs__change_has_the_sense_of_the_metric():
    (group,) = compare_runs(make_arm("base"), make_arm("candidate", 1.1), Rule()).groups
    found = {judgement.metric: judgement for judgement in group.judgements}

    assert found["output_tok_per_s"].change == pytest.approx(1 / 1.1 - 1, abs=1e-3)
    assert found["median_itl_ms"].change == pytest.approx(0.1, abs=1e-3)
    assert found["output_tok_per_s"].worse == pytest.approx(found["median_itl_ms"].worse)
    for judgement in group.judgements:
        assert judgement.low < judgement.change < judgement.high


@given(data=st.data())
def test_compare_runs__order_never_matters(data):
    base, candidate = make_arm("base", 1.0), make_arm("candidate", 1.02)
    base[0] = make_run("base0.txt", 2.0)
    straight = compare_runs(base, candidate, Rule())

    shuffled = compare_runs(data.draw(st.permutations(base)), data.draw(st.permutations(candidate)), Rule())

    assert shuffled == straight


@given(
    slower=st.floats(1.0, 1.2),
    factor=st.floats(0.8, 1.2),
    runs=st.integers(1, 6),
    wobble=st.lists(st.integers(-200, 200).map(lambda myriad: myriad / 10_000), min_size=6, max_size=6, unique=True),
)
def test_compare_runs__slower_candidate_is_never_judged_better(slower, factor, runs, wobble):
    def judge(candidate_factor):
        return compare_runs(
            make_arm("base", runs=runs), make_arm("candidate", candidate_factor, runs, wobble, duration_s=99.0), Rule()
        ).outcome

    assert SEVERITY.index(judge(factor * slower)) >= SEVERITY.index(judge(factor))


@given(scale=st.sampled_from([1e-3, 0.5, 60.0, 1e6]), factor=st.floats(0.9, 1.1))
def test_compare_runs__units_do_not_matter(scale, factor):
    def judge(unit):
        arms = [make_arm("base", unit), make_arm("candidate", unit * factor)]
        return compare_runs(*arms, Rule()).groups[0].judgements

    for here, there in zip(judge(1.0), judge(scale), strict=True):
        assert here.outcome is there.outcome
        assert here.change == pytest.approx(there.change, abs=1e-9)


def test_compare_runs__broken_run_voids_everything():
    broken = make_run("bad.txt", 1.01, problems=(Remark(kind=RemarkKind.CANCELLED),))

    comparison = compare_runs(make_arm("base"), [*make_arm("candidate"), broken], Rule())

    assert comparison.outcome is Outcome.INVALID
    assert comparison.reasons == ("candidate bad.txt: the run was cancelled or lost records; measure again",)
    assert comparison.groups == ()


def test_compare_runs__same_run_in_both_arms():
    with pytest.raises(InputError, match="the same run as"):
        compare_runs(make_arm("base"), make_arm("base"), Rule())


def test_compare_runs__different_output_is_different_work():
    comparison = compare_runs(make_arm("base"), make_arm("candidate", 1.001, output_tokens=900), Rule())

    assert comparison.outcome is Outcome.INVALID
    assert "1000 in base, 900 in candidate" in comparison.groups[0].reasons[0]


def test_compare_runs__single_runs_show_a_change_without_an_interval():
    (group,) = compare_runs(make_arm("base", runs=1), make_arm("candidate", 1.5, runs=1), Rule()).groups
    judgement = group.judgements[0]

    assert group.reasons[0] == "not enough data: 1 warm run per arm, at least 3 are needed"
    assert (judgement.low, judgement.high, judgement.smallest_effect) == (None, None, None)
    assert judgement.change == pytest.approx(1 / 1.5 - 1, abs=2e-3)
    assert group.further == {}


def test_compare_runs__slow_run_in_the_middle_stays():
    base = make_arm("base")
    base[2] = make_run("base2.txt", 2.0)

    (group,) = compare_runs(base, make_arm("candidate"), Rule()).groups

    assert len(group.arms[Arm.BASE].kept) == 5
    assert group.warnings[0].startswith("base2.txt (base) is slow at 5.00 requests/s against")


def find(group, metric):
    return next(judgement for judgement in group.judgements if judgement.metric == metric)


def test_compare_runs__short_tail_does_not_gate():
    (group,) = compare_runs(make_arm("base", requests=100), make_arm("candidate", 1.5, requests=100), Rule()).groups

    assert not find(group, "p99_itl_ms").gating
    assert find(group, "p99_itl_ms").outcome is Outcome.REGRESSION
    assert "100 requests per run" in find(group, "p99_itl_ms").notes[0]
    assert find(group, "median_itl_ms").gating


@pytest.mark.parametrize(("rate", "gates"), [("inf", True), (100.0, True), (12.0, False), ("trace", False)])
def test_compare_runs__throughput_that_echoes_the_client(rate, gates):
    (group,) = compare_runs(make_arm("base", rate=rate), make_arm("candidate", rate=rate), Rule()).groups

    assert find(group, "output_tok_per_s").gating is gates


def test_compare_runs__metric_of_one_arm_only_informs():
    (group,) = compare_runs(make_arm("base", drop=("p99_itl_ms",)), make_arm("candidate"), Rule()).groups
    judgement = find(group, "p99_itl_ms")

    assert (judgement.outcome, judgement.gating, judgement.change) == (Outcome.INVALID, False, None)
    assert group.outcome is Outcome.PASS


def test_compare_runs__metric_missing_in_one_run_is_no_pass():
    candidate = make_arm("candidate")
    candidate[1] = make_run("candidate1.txt", drop=("median_itl_ms",))

    comparison = compare_runs(make_arm("base"), candidate, Rule())

    assert comparison.outcome is Outcome.INVALID
    assert find(comparison.groups[0], "median_itl_ms").notes == ("absent in 1 of 10 runs, first candidate1.txt",)


def test_compare_runs__tails_made_in_different_ways():
    candidate = make_arm("candidate", estimators={"p99_itl_ms": "harrell-davis"})

    comparison = compare_runs(make_arm("base"), candidate, Rule())

    assert comparison.outcome is Outcome.INVALID
    assert (
        "by harrell-davis in candidate4.txt, by the load generator in base4.txt"
        in find(comparison.groups[0], "p99_itl_ms").notes[0]
    )


def test_compare_runs__metric_that_no_run_carries():
    with pytest.raises(InputError, match="--metric es5_itl_ms: no run of base carries it"):
        compare_runs(make_arm("base"), make_arm("candidate"), Rule(metrics=("es5_itl_ms",)))


def test_compare_runs__metric_that_only_informs_gates_when_named():
    rule = Rule(metrics=("request_per_s",))

    (group,) = compare_runs(make_arm("base"), make_arm("candidate", 1.1), rule).groups

    assert [(judgement.metric, judgement.gating) for judgement in group.judgements] == [("request_per_s", True)]
    assert group.outcome is Outcome.REGRESSION


def test_compare_runs__wider_margin():
    rule = Rule(margin_ratios=dict.fromkeys(METRICS, 0.25))

    assert compare_runs(make_arm("base"), make_arm("candidate", 1.05), rule).outcome is Outcome.PASS


def test_compare_runs__stored_noise_of_starts_widens_the_interval():
    priors = dict.fromkeys(METRICS, Prior(variance=0.03**2, df=6))
    arms = (make_arm("base"), make_arm("candidate", 1.05))

    comparison = compare_runs(*arms, Rule(priors=priors))
    (group,) = comparison.groups

    assert comparison.outcome is Outcome.INCONCLUSIVE
    assert compare_runs(*arms, Rule()).outcome is Outcome.REGRESSION
    assert ONE_BLOCK in group.warnings
    assert group.further["output_tok_per_s"] > 3


def test_compare_runs__nothing_may_gate():
    rule = Rule(metrics=("p99_itl_ms",))

    (group,) = compare_runs(make_arm("base", requests=100), make_arm("candidate", requests=100), rule).groups

    assert group.outcome is Outcome.INCONCLUSIVE
    assert group.reasons == ("no metric of these runs may gate; the notes say why",)


def test_compare_runs__notes_of_runs_are_passed_on():
    base = [*make_arm("base"), make_run("noted.txt", 1.0011, notes=(Remark(kind=RemarkKind.CUT_OFF, found=3),))]

    assert compare_runs(base, make_arm("candidate"), Rule()).warnings == (
        "noted.txt: 3 requests were cut off at its end and do not count",
    )


def test_compare_runs__every_workload_is_a_group():
    def both(name, factor):
        return [*make_arm(name, factor), *make_arm(name, factor * 3, rate=50.0)]

    comparison = compare_runs(both("base", 1.0), both("candidate", 1.1), Rule())

    assert [group.workload["request_rate"] for group in comparison.groups] == [50.0, "inf"]
    assert comparison.outcome is Outcome.REGRESSION


def test_compare_runs__a_class_of_requests_is_judged_only_where_it_is_named():
    def carry(runs):
        return [replace(run, values={**run.values, "p99_ttft_short_ms": 100.0}, completed=2000) for run in runs]

    base, candidate = carry(make_arm("base")), carry(make_arm("candidate"))
    usual, named = (compare_runs(base, candidate, rule).groups[0] for rule in (Rule(), Rule(metrics=("p99_ttft_short_ms",))))

    assert "p99_ttft_short_ms" not in {one.metric for one in usual.judgements}
    assert [one.metric for one in named.judgements] == ["p99_ttft_short_ms"]
