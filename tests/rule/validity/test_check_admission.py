"""Evidence that must not be believed, each case with the words that say what to do."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from perfgate.check import judge
from perfgate.core import Arm, Fingerprint, Outcome, Remark, RemarkKind, Role
from perfgate.evidence import DriverProblem
from perfgate.scenario.schema import Gate
from tests.fakes.sessions import FACTS, LEVELS, change_window, make_scenario, make_session

SCENARIO = make_scenario()
SESSION = make_session(SCENARIO, blocks=2)
# The first measured window of each arm in block 1: two warm-ups and three measured windows per start.
BASE, CANDIDATE = 2, 7


def _void(session, scenario=SCENARIO) -> str:
    """The reasons of an INVALID verdict; anything else fails the test."""
    verdict = judge(session, scenario, None)

    assert verdict.outcome is Outcome.INVALID
    assert {judgement.change for judgement in verdict.judgements} == {None}
    return "\n".join(verdict.reasons)


def _values(**changes):
    return {"values": {**SESSION.windows[CANDIDATE].run.values, **changes}}


def test_judge__the_session_that_the_others_are_made_from_is_sound():
    assert judge(SESSION, SCENARIO, None).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"completed": 399}, "399 of 400 requests completed; read the server's log"),
        ({"requested": 300, "completed": 300}, "was asked for 300 requests, the scenario for 400"),
        ({"problems": (Remark(kind=RemarkKind.FAILED, found=3, due=400, detail="x"),)}, "3 of 400 requests failed"),
        (_values(median_itl_ms=nan), "median_itl_ms is nan"),
        (_values(median_itl_ms=inf), "median_itl_ms is inf"),
        (_values(median_itl_ms=0.0), "median_itl_ms is 0, which no server can deliver"),
        (_values(median_itl_ms=-1.0), "median_itl_ms is -1"),
        ({"values": {"output_tok_per_s": 1000.0, "p99_itl_ms": 30.0}}, "median_itl_ms is missing although it gates"),
        ({"output_tokens": 12799}, "base has 12800 output tokens, candidate 12799"),
        ({"input_tokens": 1}, "base has 12800 input tokens, candidate 1"),
        ({"output_tokens": None}, "candidate None"),
        ({"workload": {"dataset": "random", "rate": "20"}}, "sent rate 20 where the first window sent inf"),
        ({"estimators": {"p99_itl_ms": "harrell-davis"}}, "p99_itl_ms was made in 2 ways (as reported, harrell-davis)"),
        ({"telemetry": {"foreign_processes": 2.0}}, "other processes used the GPU; stop them, or take another runner (2 seen)"),
        ({"telemetry": {"throttled_share": 0.5}}, "the GPU throttled for 50 % of the window"),
        (
            {"telemetry": {"sm_clock_mhz": 1980.0, "foreign_cpu_share": 0.6, "stolen_cpu_share": 0.2}},
            "others took 80 % of the machine's CPU time",
        ),
        ({"telemetry": {"cache_hit_rate": 0.5}}, "50 % of random prompts came from the prefix cache"),
        ({"duration_s": 30.0}, "its requests took 30.0 s, the window 20.0 s; a clock jumped"),
        ({"ended_s": 3750.0}, "lasted 3603.0 s where 300 s are allowed; a clock jumped"),
        ({"values": {**LEVELS, "es5_itl_ms": 12.0}}, "this window tells es5_itl_ms, the first one does not"),
        ({"begun_s": -1.0}, "the clock went back"),
        ({"begun_s": nan}, "the clock went back"),
        ({"ended_s": inf}, "the clock went back"),
        ({"ended_s": 0.0}, "the clock went back"),
        ({"ended_s": 170.0}, "before block 1, candidate, start 2, window 2 ended"),
        ({"begun_s": 1000.0, "ended_s": 1001.0}, "was measured after block 2"),
        ({"index": 9}, "its windows are numbered against the order of time"),
        ({"index": 3}, "repeats block 1, candidate, start 2, window 3"),
        ({"start": 1}, "start 1 serves base in block 1 and candidate in block 1"),
        ({"block": 2}, "start 2 serves"),
        ({"start": 9}, "block 1, candidate: 2 server starts"),
        ({"role": Role.WARMUP}, "2 measured windows where the scenario fixed 3"),
    ],
)
def test_judge__one_window_of_the_candidate_is_wrong(changes, words):
    assert words in _void(change_window(SESSION, CANDIDATE, **changes))


FORMED = replace(SCENARIO, load=replace(SCENARIO.load, answer_form="a+"))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"answers_malformed": 0.0}, None),
        ({"answers_malformed": 3.0}, "3 of 400 answers do not match load.answer_form: the engine dropped its grammar"),
        ({}, "nothing tells whether its answers match load.answer_form (answers_malformed is missing)"),
    ],
)
def test_judge__answers_of_another_form(told, words):
    windows = [replace(window, telemetry={**window.telemetry, "answers_malformed": 0.0}) for window in SESSION.windows]
    session = replace(SESSION, windows=tuple(windows))
    verdict = judge(change_window(session, CANDIDATE, telemetry=told), FORMED, None)

    assert verdict.outcome is (Outcome.PASS if words is None else Outcome.INVALID)
    assert words is None or any(words in reason for reason in verdict.reasons)


def test_judge__a_kept_cache_may_serve_random_prompts():
    kept = replace(SCENARIO, load=replace(SCENARIO.load, keep_cache=True))
    session = replace(SESSION, workload_hash=kept.workload_hash)

    assert judge(change_window(session, CANDIDATE, telemetry={"cache_hit_rate": 0.5}), kept, None).outcome is Outcome.PASS


@pytest.mark.parametrize("value", [nan, inf, 0.0, -5.0])
@pytest.mark.parametrize("position", range(0, 20, 3))
def test_judge__a_number_that_is_none_voids_the_session_wherever_it_stands(value, position):
    values = {**SESSION.windows[position].run.values, "output_tok_per_s": value}

    assert "output_tok_per_s is" in _void(change_window(SESSION, position, values=values))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"problems": (DriverProblem(message="config.json names no experts: this is a dense model"),)}, "dense model"),
        ({"scenario": "other"}, "measured as other with workload"),
        ({"workload_hash": "0" * 12}, "with workload 000000000000, but judged as unit"),
        ({"windows": ()}, "no window was measured"),
        ({"windows": SESSION.windows[:-1]}, "block 2, base: 2 measured windows where the scenario fixed 3"),
        ({"windows": SESSION.windows[10:]}, "block 1, base: 0 measured windows"),
        ({"windows": SESSION.windows[:15]}, "block 2, base: 0 measured windows"),
        ({"windows": (*SESSION.windows, SESSION.windows[BASE])}, "repeats block 1, base, start 1, window 2"),
        ({"fingerprints": {Arm.BASE: Fingerprint(facts=FACTS)}}, "the candidate arm has no fingerprint"),
        (
            {"fingerprints": {Arm.BASE: Fingerprint(facts=FACTS), Arm.CANDIDATE: Fingerprint(facts={**FACTS, "gpu": "Other"})}},
            "the arms ran on different hardware (gpu: Test GPU in base, Other in candidate)",
        ),
        (
            {"fingerprints": {Arm.BASE: Fingerprint(facts=FACTS), Arm.CANDIDATE: Fingerprint(facts={**FACTS, "cores": "8"})}},
            "the arms ran on different hardware (cores: absent in base, 8 in candidate)",
        ),
        (
            {"fingerprints": {Arm.BASE: Fingerprint(facts=FACTS), Arm.CANDIDATE: Fingerprint(facts={**FACTS, "gpus": "2"})}},
            "the arms ran on different hardware (gpus: absent in base, 2 in candidate)",
        ),
    ],
)
def test_judge__the_session_is_wrong(changes, words):
    assert words in _void(replace(SESSION, **changes))


def test_judge__others_took_the_cpu_from_one_arm():
    windows = tuple(
        replace(window, telemetry={"sm_clock_mhz": 1980.0, "foreign_cpu_share": 0.5 if window.arm is Arm.CANDIDATE else 0.1})
        for window in SESSION.windows
    )

    assert "others took 10 % of the machine's CPU time from base, 50 % from" in _void(replace(SESSION, windows=windows))


@pytest.mark.parametrize("length_s", [20.0, 1.5])
def test_judge__others_took_the_cpu_from_one_arm_of_a_cpu_engine(length_s):
    """Windows that are too short to tell a share alone tell it together."""
    windows = tuple(
        replace(
            window,
            ended_s=window.begun_s + length_s,
            run=replace(window.run, duration_s=length_s),
            telemetry={"foreign_cpu_share": 0.5 if window.arm is Arm.CANDIDATE else 0.1},
        )
        for window in SESSION.windows
    )

    assert "others took 10 % of the machine's CPU time from base, 50 % from" in _void(replace(SESSION, windows=windows))


def test_judge__a_cpu_engine_shares_its_cores_with_others():
    """Both arms lose as much over all, so the comparison stands; that the machine was not quiet is said."""
    session = change_window(SESSION, CANDIDATE, telemetry={"foreign_cpu_share": 0.9})
    verdict = judge(session, SCENARIO, None)

    assert verdict.outcome is Outcome.PASS
    [told] = [warning for warning in verdict.warnings if "CPU time" in warning]
    assert told.startswith("others took more than 25 % of the machine's CPU time in 1 window, 90 % in block 1, candidate")


def test_judge__a_quiet_cpu_engine_is_not_called_disturbed():
    windows = tuple(replace(window, telemetry={"foreign_cpu_share": 0.1}) for window in SESSION.windows)

    assert not [warning for warning in judge(replace(SESSION, windows=windows), SCENARIO, None).warnings if "CPU" in warning]


def test_judge__a_front_end_at_the_end_of_its_core_is_named():
    """Half of the candidate's windows on a GPU machine; on a machine without one nothing is said."""

    def tell(busy, **telemetry):
        windows = tuple(
            replace(window, telemetry={**telemetry, "front_end_core_share": busy if window.arm is Arm.CANDIDATE else 0.7})
            for window in SESSION.windows
        )
        return [told for told in judge(replace(SESSION, windows=windows), SCENARIO, None).warnings if "whole core" in told]

    [told] = tell(0.99, sm_clock_mhz=1980.0)
    measured = sum(window.arm is Arm.CANDIDATE and window.role is Role.MEASURED for window in SESSION.windows)
    assert told.startswith(f"in {measured} of {2 * measured} windows (0 of the base, {measured} of the candidate)")
    assert tell(0.97, sm_clock_mhz=1980.0) == tell(0.99) == []


def test_judge__a_window_of_a_few_ticks_tells_no_share_of_the_cpu():
    short = {"ended_s": SESSION.windows[CANDIDATE].begun_s + 0.5, "duration_s": 0.4}
    session = change_window(SESSION, CANDIDATE, telemetry={"sm_clock_mhz": 1980.0, "foreign_cpu_share": 1.0}, **short)

    assert judge(session, SCENARIO, None).outcome is Outcome.PASS


def test_judge__a_deleted_block_in_the_middle_is_missed():
    session = make_session(SCENARIO, blocks=3)
    windows = tuple(window for window in session.windows if window.block != 2)

    assert "block 2, base: 0 measured windows" in _void(replace(session, windows=windows))
    assert "block 2, base: 0 measured windows" in _void(replace(session, windows=windows, is_complete=False))


def test_judge__a_block_number_without_end_costs_no_time():
    assert "0 measured windows" in _void(change_window(SESSION, len(SESSION.windows) - 1, block=10**12))


def test_judge__the_same_numbers_under_another_name_are_a_copy():
    run = SESSION.windows[CANDIDATE].run

    session = change_window(SESSION, CANDIDATE + 1, values=run.values, duration_s=run.duration_s)

    assert "a copy is no second measurement" in _void(session)


def test_judge__a_copy_is_one_whatever_the_server_held_beside_it():
    run = SESSION.windows[CANDIDATE].run
    values = {**run.values, "server_memory_mib": 4000.5}

    session = change_window(SESSION, CANDIDATE + 1, values=values, duration_s=run.duration_s)

    assert "a copy is no second measurement" in _void(session)


def test_judge__more_windows_than_planned_would_be_choosing():
    extra = replace(SESSION.windows[-1], index=5, begun_s=900.0, ended_s=905.0)
    extra = replace(extra, run=replace(extra.run, source="extra", duration_s=4.0))

    assert "4 measured windows where the scenario fixed 3" in _void(replace(SESSION, windows=(*SESSION.windows, extra)))


def test_judge__a_cold_start_is_not_judged():
    windows = tuple(window for window in SESSION.windows if window.role is not Role.WARMUP or window.start != 2)

    assert "start 2: no window was discarded" in _void(replace(SESSION, windows=windows))


def test_judge__never_steady_shows_the_curve():
    session = SESSION
    for step, position in enumerate(range(5, 9)):
        values = {name: value * 1.1**step for name, value in SESSION.windows[position].run.values.items()}
        session = change_window(session, position, values={**values, "output_tok_per_s": 1000.0 / 1.1**step})

    reasons = _void(session)

    assert "start 2: never steady (slowness against its first window: 0.0 %, +" in reasons


def test_judge__more_discards_than_allowed():
    scenario = make_scenario(warmup=replace(SCENARIO.warmup, max_discards=2))
    windows = tuple(replace(window, role=Role.WARMUP) if window.index == 2 else window for window in SESSION.windows)

    assert "3 windows discarded, 2 are allowed" in _void(replace(SESSION, windows=windows), scenario)


def _with_rerun(session, start, index=8):
    last = max((window for window in session.windows if window.start == start), key=lambda window: window.begun_s)
    run = replace(last.run, source=f"rerun-{index}", duration_s=1.0 + index)
    rerun = replace(
        last,
        run=run,
        index=index,
        role=Role.RERUN,
        begun_s=last.ended_s + 0.1 * (index - 7),
        ended_s=last.ended_s + 0.1 * (index - 6),
    )
    return replace(session, windows=(*session.windows, rerun))


def test_judge__a_rerun_that_no_rule_asked_for():
    assert "start 2: re-run although no window stalled" in _void(_with_rerun(SESSION, 2))


def test_judge__a_second_rerun():
    assert "start 2: 2 re-runs; one is the rule" in _void(_with_rerun(_with_rerun(SESSION, 2), 2, index=9))


def test_judge__clocks_of_the_arms_must_agree():
    clocks = {Arm.BASE: 1980.0, Arm.CANDIDATE: 1900.0}
    slow, even = (
        replace(SESSION, windows=tuple(replace(one, telemetry={"sm_clock_mhz": read(one)}) for one in SESSION.windows))
        for read in (lambda one: clocks[one.arm], lambda one: clocks[one.arm] + (60 if one.arm is Arm.CANDIDATE else 0))
    )

    assert "base ran at 1980 MHz, candidate at 1900 MHz; lock the clocks" in _void(slow)
    assert judge(even, SCENARIO, None).outcome is Outcome.PASS


def test_judge__nothing_may_gate():
    scenario = make_scenario(gates={"output_tok_per_s": Gate(advisory=True)})

    assert "no metric of scenario unit may gate" in _void(SESSION, scenario)


def test_judge__a_void_window_after_the_decision_still_voids_the_session():
    session = make_session(SCENARIO, blocks=4)
    assert judge(session, SCENARIO, None).blocks == 2

    assert "399 of 400" in _void(change_window(session, len(session.windows) - 1, completed=399))
