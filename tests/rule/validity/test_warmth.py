"""A fresh server is warm for the driver when it is for the judge, and when its last window held nothing but serving."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.core import Arm, Role, Run, Window
from perfgate.scenario.schema import Blocks, Warmup
from perfgate.verdict.validity.pairing import WindowRules, explain_cold, group_windows, is_warm, may_discard
from perfgate.verdict.validity.structure import AdmissionLimits, check_starts
from tests.fakes.sessions import make_scenario

METRICS = ("output_tok_per_s", "mean_itl_ms")
values = st.dictionaries(st.sampled_from(METRICS), st.floats(0.1, 1e5), max_size=2)
COMPILED = {"kernels_compiled": 3.0}


def build_run(**found):
    return Run(
        source="test", values=found, workload={}, requested=1, completed=1, input_tokens=1, output_tokens=1, duration_s=1.0
    )


def build_windows(*found, role=Role.WARMUP, first=0):
    return [
        Window(run=build_run(**one), arm=Arm.BASE, block=1, start=1, index=index, role=role, begun_s=index, ended_s=index + 0.5)
        for index, one in enumerate(found, first)
    ]


def is_steady_for_judge(before, after, ratio, noise):
    """What the judge says of a start that warmed up with these two windows; its measured ones tell nothing of steadiness."""
    windows = [*build_windows(before, after), *build_windows({}, {}, role=Role.MEASURED, first=2)]
    scenario = make_scenario(blocks=Blocks(windows=2), warmup=Warmup(steady_ratio=ratio))
    limits = AdmissionLimits(scenario=scenario, gated=(), noise=noise)
    return not any("never steady" in problem for problem in check_starts(group_windows(windows), limits))


def is_steady_for_driver(before, after, ratio, noise):
    return is_warm([(build_run(**before), {}), (build_run(**after), {})], WindowRules(tolerance=ratio, noise=noise))


@given(values, values, st.floats(0.001, 5.0), st.dictionaries(st.sampled_from(METRICS), st.floats(0.0, 0.2), max_size=2))
def test_is_warm__the_judges_answer_for_any_two_windows(before, after, ratio, noise):
    assert is_steady_for_driver(before, after, ratio, noise) is is_steady_for_judge(before, after, ratio, noise)


@pytest.mark.parametrize(
    ("after", "ratio", "noise", "expected"),
    [
        # The linear ratio that the driver once took called the first two steady, and the judge did not.
        ({"output_tok_per_s": 97.05, "mean_itl_ms": 10.0}, 0.03, {}, False),
        ({"output_tok_per_s": 52.0, "mean_itl_ms": 14.9}, 0.5, {}, False),
        # These two it refused, and the judge did not.
        ({"output_tok_per_s": 100.0}, 0.03, {}, True),
        ({"output_tok_per_s": 100.0, "mean_itl_ms": 11.0}, 0.03, {"mean_itl_ms": 0.03}, True),
        ({"output_tok_per_s": 102.0, "mean_itl_ms": 10.0}, 0.03, {}, True),
        ({}, 0.03, {}, False),
    ],
)
def test_is_warm__by_the_scale_and_the_noise_of_the_judge(after, ratio, noise, expected):
    before = {"output_tok_per_s": 100.0, "mean_itl_ms": 10.0}

    assert is_steady_for_driver(before, after, ratio, noise) is expected
    assert is_steady_for_judge(before, after, ratio, noise) is expected


def build_start(arm, number, *speeds):
    """A start of two warm-up windows and two measured ones, at these speeds."""
    windows = build_windows(*({"output_tok_per_s": speed} for speed in speeds))
    roles = [Role.WARMUP, Role.WARMUP, Role.MEASURED, Role.MEASURED]
    begun = 10.0 * number
    return [
        replace(window, arm=arm, start=number, role=role, begun_s=begun + window.begun_s, ended_s=begun + window.ended_s)
        for window, role in zip(windows, roles, strict=True)
    ]


@pytest.mark.parametrize(
    ("speeds", "other", "expected"),
    [
        # Nine times as slow as the base, without CUDA graphs: its windows scatter by several percent, which hides nothing.
        ([218.0, 230.0, 243.5, 212.5], 2099.7, True),
        # The same scatter says too much of a loss of a third, or of none.
        ([1418.0, 1495.0, 1582.0, 1381.0], 2099.7, False),
        ([2180.0, 2300.0, 2435.0, 2125.0], 2099.7, False),
        # Far faster is as far.
        ([218.0, 230.0, 243.5, 212.5], 24.0, True),
        # Not within a twentieth of ln 9.1.
        ([218.0, 250.0, 290.0, 340.0], 2099.7, False),
    ],
)
def test_is_warm__as_close_as_what_lies_between_the_arms_asks(speeds, other, expected):
    rules = WindowRules(tolerance=0.03)
    limits = AdmissionLimits(scenario=make_scenario(blocks=Blocks(windows=2)), gated=())
    windows = [*build_start(Arm.BASE, 1, *[other] * 4), *build_start(Arm.CANDIDATE, 2, *speeds)]
    last = [build_run(output_tok_per_s=speed) for speed in speeds[:2]]

    assert is_warm([(run, {}) for run in last], rules.widen(last[-1], build_run(output_tok_per_s=other))) is expected
    assert (not list(check_starts(group_windows(windows), limits))) is expected


def test_check_starts__an_arm_is_held_against_what_was_measured_before_it():
    limits = AdmissionLimits(scenario=make_scenario(blocks=Blocks(windows=2)), gated=())
    slow, fast = (218.0, 230.0, 243.5, 212.5), [2099.7] * 4
    windows = [*build_start(Arm.CANDIDATE, 1, *slow), *build_start(Arm.BASE, 2, *fast)]

    assert [problem for problem in check_starts(group_windows(windows), limits) if "start 1: never steady" in problem]


def watch(*readings, speeds=None):
    runs = [build_run(output_tok_per_s=speed) for speed in speeds or [100.0] * len(readings)]
    return list(zip(runs, readings, strict=True))


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([{}], False),
        ([COMPILED, {}], True),
        ([{}, COMPILED], False),
        ([{}, {"graphs_captured": 1.0}], False),
        ([{}, {"requests_retracted": 1.0}], False),
        ([{}, {"kernels_compiled": 0.0, "graphs_captured": 0.0, "requests_retracted": 0.0}], True),
    ],
)
def test_is_warm__the_last_window_held_nothing_but_serving(readings, expected):
    assert is_warm(watch(*readings), WindowRules(tolerance=0.03)) is expected


def test_is_warm__retraction_that_is_meant():
    rules = WindowRules(tolerance=0.03, allows_retraction=True)

    assert is_warm(watch({}, {"requests_retracted": 5.0}), rules)
    assert not is_warm(watch({}, {"requests_retracted": 5.0, **COMPILED}), rules)


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([], True),
        ([{}] * 3, True),
        ([{}] * 4, False),
        ([COMPILED] * 4, True),
        ([COMPILED, {}, {}, COMPILED, {}], True),
        ([COMPILED, {}, {}, COMPILED, {}, {}], False),
        ([COMPILED] * 7, True),
        ([COMPILED] * 8, False),
    ],
)
def test_may_discard__what_compiled_counts_half(readings, expected):
    assert may_discard(watch(*readings), WindowRules(tolerance=0.03), 4) is expected


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        (
            [COMPILED, {}, {"kernels_compiled": 1.0}],
            "never only served: the last of 3 warm-up windows compiled 1 kernel (window",
        ),
        (
            [COMPILED, {}, {"kernels_compiled": 1.0}],
            "(window by window: compiled 3 kernels; nothing; compiled 1 kernel); raise",
        ),
        ([{"graphs_captured": 2.0, **COMPILED}] * 3, "windows compiled 3 kernels and captured 2 graphs (window"),
        ([{}, {}, {"requests_retracted": 4.0}], "retracted 4 requests (window by window: nothing; nothing; retracted"),
        ([{}, {}, {"requests_retracted": 4.0}], "; give the server a larger token pool"),
        (
            [COMPILED, {}, {}],
            "never got steady: when it had done its other work (window by window: compiled 3 kernels; nothing",
        ),
        ([{}, {}, {}], "never got steady: of 3 warm-up windows no two in a row agreed within 3 % (slowness against its first"),
    ],
)
def test_explain_cold__names_what_kept_the_server_busy(readings, words):
    windows = watch(*readings, speeds=[100.0, 50.0, 25.0])
    told = explain_cold(windows, WindowRules(tolerance=0.03))

    assert words in told
    assert "\n" not in told


def test_check_starts__a_window_before_these_were_watched_counts_as_before():
    windows = [*build_windows({"output_tok_per_s": 1.0}, {"output_tok_per_s": 1.0})]
    windows += build_windows({"output_tok_per_s": 1.0}, {"output_tok_per_s": 1.0}, role=Role.MEASURED, first=2)
    scenario = make_scenario(blocks=Blocks(windows=2))
    [start] = group_windows(replace(window, telemetry={"power_w": 400.0}) for window in windows)

    assert list(check_starts([start], AdmissionLimits(scenario=scenario, gated=()))) == []
    assert start.is_same_work(WindowRules(tolerance=0.03))
