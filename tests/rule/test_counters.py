"""Counters are judged without statistics: what differs is told, a loss beyond its row's size fails, what scatters does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from perfgate.check import judge, needs_more
from perfgate.core import Arm, CountState, Outcome, Role
from perfgate.evidence import DriverProblem
from perfgate.github.asked.acceptance import Acceptance, is_accepted, list_losses
from perfgate.report.comment import build_comment
from perfgate.report.junit import format_junit
from perfgate.report.render import Fold, ReportedCase, lay_out_body, render_text
from perfgate.report.words.counts import UNKNOWN, tabulate_counts
from perfgate.results.readings import (
    ACCEPT_LENGTH,
    CACHE_HIT_RATE,
    DECODE_GRAPH_SHARE,
    KV_CAPACITY,
    KV_TRANSFER_MS,
    PREFILL_GRAPH_SHARE,
    READINGS,
    REQUESTS_RETRACTED,
)
from perfgate.storage.rounding import format_percent, format_verdict
from perfgate.verdict.counters import COUNTERS, count_blocks, list_counters
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.series import read_blocks
from tests.fakes.sessions import make_baseline, make_scenario, make_session

ROOT = Path(__file__).parents[2]
SCENARIO = make_scenario()
BASELINE = make_baseline(SCENARIO)
TEXTS = replace(SCENARIO, load=replace(SCENARIO.load, dataset="generated-shared-prefix", input_len=None, output_len=None))
FULL = replace(SCENARIO, allow_retraction=True)
APART = replace(SCENARIO, server=replace(SCENARIO.server, args=("--disaggregation-transfer-backend", "nixl")))


def count_in(session, readings, arm=Arm.CANDIDATE):
    """The session whose windows of an arm tell `readings`; a list has one reading for each window, in turns."""
    windows, seen = [], 0
    for window in session.windows:
        if window.arm is not arm:
            windows.append(window)
            continue
        told = {name: value[seen % len(value)] if isinstance(value, list) else value for name, value in readings.items()}
        windows.append(replace(window, telemetry={**window.telemetry, **told}))
        seen += window.role is Role.MEASURED
    return replace(session, windows=tuple(windows))


def make_counted(name, base, candidate, scenario=SCENARIO, **changes):
    session = make_session(scenario, **changes)
    return count_in(count_in(session, {name: base}, Arm.BASE), {name: candidate})


def find_count(name, base, candidate, scenario=SCENARIO):
    session = make_counted(name, base, candidate, scenario)
    counts = count_blocks(read_blocks(session, fix_policy(session, scenario, None)), scenario)
    return next((count for count in counts if count.counter == name), None)


SEEDED = [
    (KV_CAPACITY, 65536.0, 64000.0, SCENARIO),
    (REQUESTS_RETRACTED, 0.0, 3.0, FULL),
    (CACHE_HIT_RATE, 0.8, 0.6, TEXTS),
    (ACCEPT_LENGTH, 3.1, 2.9, SCENARIO),
    (DECODE_GRAPH_SHARE, 1.0, 0.0, SCENARIO),
    (PREFILL_GRAPH_SHARE, 1.0, 0.9, SCENARIO),
    (KV_TRANSFER_MS, 25.0, 51.0, SCENARIO),
]


def test_seeded__there_is_one_for_each_row():
    assert [row[0] for row in SEEDED] == list(COUNTERS)
    assert COUNTERS.keys() <= READINGS.keys()


@pytest.mark.parametrize(("name", "base", "candidate", "scenario"), SEEDED)
def test_judge__a_lost_counter_alone_fails_the_change(name, base, candidate, scenario):
    baseline = make_baseline(scenario)
    same = judge(make_counted(name, base, base, scenario), scenario, baseline)
    lost = judge(make_counted(name, base, candidate, scenario), scenario, baseline)

    assert (same.outcome, same.counts[0].state) == (Outcome.PASS, CountState.SAME)
    assert (lost.outcome, [count.counter for count in lost.lost_counts]) == (Outcome.REGRESSION, [name])
    assert {one.outcome for one in lost.judgements} == {Outcome.PASS}
    assert len(lost.reasons) == 1
    assert COUNTERS[name].title in lost.reasons[0]


@pytest.mark.parametrize(("name", "base", "candidate", "scenario"), SEEDED)
def test_judge__a_gain_is_told_and_fails_nothing(name, base, candidate, scenario):
    verdict = judge(make_counted(name, candidate, base, scenario), scenario, make_baseline(scenario))

    assert (verdict.outcome, verdict.counts[0].state) == (Outcome.PASS, CountState.CHANGED)


@pytest.mark.parametrize(
    ("base", "candidate", "state"),
    [
        (1000.0, 991.0, CountState.CHANGED),
        (1000.0, 990.0, CountState.CHANGED),
        (1000.0, 989.0, CountState.LOST),
        ([1000.0, 995.0], [980.0, 985.0], CountState.LOST),
        ([1000.0, 985.0], [900.0], CountState.CHANGED),
        ([1000.0], [1000.0, 900.0], CountState.SCATTERED),
        ([1000.0, 900.0], [1000.0, 900.0], CountState.SCATTERED),
    ],
)
def test_count_blocks__a_loss_is_every_window_beyond_the_size_of_a_base_that_agrees(base, candidate, state):
    assert find_count(KV_CAPACITY, base, candidate).state is state


@pytest.mark.parametrize(
    ("base", "state"), [(0.0, CountState.LOST), (1.0, CountState.CHANGED), ([0.0, 1.0], CountState.CHANGED)]
)
def test_count_blocks__retractions_are_judged_where_the_base_has_none(base, state):
    assert find_count(REQUESTS_RETRACTED, base, 5.0, FULL).state is state


@pytest.mark.parametrize(
    ("base", "candidate", "state"),
    [
        # What windows measured on H200s: equal arms, and keys and values over TCP.
        ([26.4, 24.3, 22.0], [30.2, 23.4, 35.5], CountState.SCATTERED),
        ([20.2, 20.4, 26.3], [151.0, 144.6, 167.1], CountState.LOST),
        ([21.1, 21.1, 21.1], [35.5, 35.5, 35.5], CountState.CHANGED),
        (25.0, 50.0, CountState.CHANGED),
        (25.0, [151.0, 49.0, 167.1], CountState.CHANGED),
        ([20.0, 41.0], 200.0, CountState.CHANGED),
        (150.0, 25.0, CountState.CHANGED),
    ],
)
def test_count_blocks__a_transfer_is_lost_where_it_takes_more_than_twice_as_long(base, candidate, state):
    assert find_count(KV_TRANSFER_MS, base, candidate, APART).state is state


@pytest.mark.parametrize("arm", Arm)
def test_count_blocks__a_window_without_a_transfer_is_no_fast_one(arm):
    session = make_counted(KV_TRANSFER_MS, 25.0, 150.0, APART)
    last = max(place for place, window in enumerate(session.windows) if window.arm is arm)
    windows = (*session.windows[:last], replace(session.windows[last], telemetry={}), *session.windows[last + 1 :])

    verdict = judge(replace(session, windows=windows), APART, make_baseline(APART))

    levels = {Arm.BASE: verdict.counts[0].base, Arm.CANDIDATE: verdict.counts[0].candidate}
    assert verdict.counts[0].state is CountState.UNTOLD
    assert [side for side in Arm if levels[side] is None] == [arm]


def test_count_blocks__tells_the_nearest_readings_of_arms_that_lie_apart():
    found = find_count(KV_CAPACITY, [1000.0, 995.0], [980.0, 900.0])

    assert (found.base, found.candidate, found.fails_beyond) == (995.0, 980.0, -0.01)
    assert found.change == pytest.approx(980 / 995 - 1)


@pytest.mark.parametrize(("name", "base", "candidate", "scenario"), [(*row[:3], SCENARIO) for row in SEEDED[1:3]])
def test_count_blocks__what_a_scenario_cannot_move_is_left_out(name, base, candidate, scenario):
    assert find_count(name, base, candidate, scenario) is None


def test_list_counters__a_kept_cache_may_be_hit():
    kept = replace(SCENARIO, load=replace(SCENARIO.load, keep_cache=True))

    assert CACHE_HIT_RATE in {row.name for row in list_counters(kept)} - {row.name for row in list_counters(SCENARIO)}


def test_list_counters__graphs_are_none_on_a_cpu():
    scenario = replace(SCENARIO, server=replace(SCENARIO.server, engine="sglang-cpu"))

    assert {row.name for row in list_counters(scenario)} == {KV_CAPACITY, ACCEPT_LENGTH, KV_TRANSFER_MS}


@pytest.mark.parametrize(("missing", "told"), [(Arm.CANDIDATE, "base"), (Arm.BASE, "candidate")])
def test_judge__an_arm_that_tells_nothing_is_named_and_not_judged(missing, told):
    session = count_in(make_session(SCENARIO), {KV_CAPACITY: 1000.0}, next(arm for arm in Arm if arm is not missing))
    verdict = judge(session, SCENARIO, BASELINE)
    text = render_text(make_case(verdict, session))

    assert (verdict.outcome, verdict.counts[0].state) == (Outcome.PASS, CountState.UNTOLD)
    assert f"KV capacity is reported by the {told}'s server alone, so it is not judged" in text


def test_judge__one_window_without_a_reading_leaves_the_arm_untold():
    session = make_counted(KV_CAPACITY, 1000.0, 900.0)
    last = max(place for place, window in enumerate(session.windows) if window.arm is Arm.CANDIDATE)
    windows = (*session.windows[:last], replace(session.windows[last], telemetry={}), *session.windows[last + 1 :])

    verdict = judge(replace(session, windows=windows), SCENARIO, BASELINE)

    assert verdict.counts[0].state is CountState.UNTOLD


def test_judge__warm_up_windows_count_nothing():
    session = make_session(SCENARIO)
    windows = [replace(one, telemetry={KV_CAPACITY: 900.0 if one.role is Role.WARMUP else 1000.0}) for one in session.windows]

    assert judge(replace(session, windows=tuple(windows)), SCENARIO, BASELINE).counts[0].state is CountState.SAME


def test_judge__a_candidate_alone_has_nothing_to_count_against():
    session = count_in(make_session(SCENARIO, arms=(Arm.CANDIDATE,)), {KV_CAPACITY: 900.0})

    assert judge(session, SCENARIO, BASELINE).counts == ()


def test_judge__a_void_session_counts_nothing():
    session = replace(make_counted(KV_CAPACITY, 1000.0, 900.0), problems=(DriverProblem(message="the server died"),))

    verdict = judge(session, SCENARIO, BASELINE)

    assert (verdict.outcome, verdict.counts) == (Outcome.INVALID, ())


def test_needs_more__a_lost_counter_ends_the_session_at_the_look():
    undecided = {"blocks": 2, "worse": 0.0178}

    assert needs_more(make_session(SCENARIO, **undecided), SCENARIO, BASELINE)
    assert not needs_more(make_counted(KV_CAPACITY, 1000.0, 900.0, **undecided), SCENARIO, BASELINE)


def test_verdict__a_lost_counter_is_not_only_reported_where_no_noise_is_stored():
    slower = judge(make_session(SCENARIO, worse=0.2), SCENARIO, None)
    lost = judge(make_counted(KV_CAPACITY, 1000.0, 900.0), SCENARIO, None)

    assert slower.uncalibrated
    assert lost.uncalibrated
    assert (slower.find_exit_code("report"), lost.find_exit_code("report")) == (0, 1)


def make_case(verdict, session, scenario=SCENARIO):
    return ReportedCase(verdict=verdict, session=session, scenario=scenario, baseline=BASELINE)


def test_reports__tell_a_lost_counter_in_every_form():
    session = make_counted(KV_CAPACITY, 65536.0, 60000.0)
    verdict = judge(session, SCENARIO, BASELINE)
    told = "KV capacity 65,536 tokens to 60,000 tokens (-8.4 %, fails beyond -1.0 %)"

    comment = build_comment([make_case(verdict, session)], 60_000)
    shortest = build_comment([make_case(verdict, session)], 1)
    junit = format_junit(verdict).decode()

    assert comment.headline == f"REGRESSION: {told}"
    assert f"- **Counters:** lost: {told}." in comment.body
    assert told in shortest.body
    assert f"counters  lost: {told}." in render_text(make_case(verdict, session))
    assert f'name="KV capacity">\n      <failure type="REGRESSION" message="REGRESSION: {told}" />' in junit


def test_reports__a_slower_metric_leads_and_the_counter_follows():
    session = make_counted(KV_CAPACITY, 65536.0, 60000.0, worse=0.05)
    headline = build_comment([make_case(judge(session, SCENARIO, BASELINE), session)], 60_000).headline

    assert headline.startswith("REGRESSION: Median ITL")
    assert headline.endswith("lost: KV capacity")


def test_reports__counters_that_are_the_same_stand_in_a_fold():
    session = make_counted(KV_CAPACITY, 65536.0, 65536.0)
    body = build_comment([make_case(judge(session, SCENARIO, BASELINE), session)], 60_000).body

    assert "**Counters:**" not in body
    assert "- Counters: the same in both arms: KV capacity 65,536 tokens." in body.partition("<summary>Rules")[2]


def test_reports__several_counters_that_scatter_are_a_sentence_each():
    session = make_session(SCENARIO)
    scattered = {KV_CAPACITY: [1000.0, 1010.0], PREFILL_GRAPH_SHARE: [0.33, 0.34]}
    for arm in Arm:
        session = count_in(session, scattered, arm)
    verdict = judge(session, SCENARIO, BASELINE)
    capacity = "KV capacity (about 1,005 tokens) varies between windows, so it is not judged"
    prefills = "Prefill steps in a CUDA graph (about 33.5 %) vary between windows, so they are not judged"

    full = build_comment([make_case(verdict, session)], 60_000).body
    terse = lay_out_body(make_case(verdict, session), Fold.NOTHING, words=1)

    assert f"counters  {capacity}; {prefills}." in render_text(make_case(verdict, session))
    assert f"- Counters: {capacity}; {prefills}." in full
    assert f"- Counter: {capacity}.\n- Counter: {prefills}." in terse


def test_tabulate_counts__names_what_no_window_tells():
    verdict = judge(make_counted(KV_CAPACITY, 1000.0, 1000.0), SCENARIO, BASELINE)

    rows = {row[0]: row for row in tabulate_counts(verdict.counts, SCENARIO).rows}

    assert rows["KV capacity"] == ("KV capacity", "1,000 tokens", "1,000 tokens", "0.0 %", "-1.0 %", "same")
    assert rows["Accept length"][1:3] == (UNKNOWN, UNKNOWN)
    assert len(rows) == len(list(list_counters(SCENARIO))) - 1
    assert "KV transfer time" not in rows


def test_tabulate_counts__a_transfer_is_named_where_there_must_be_one_or_was_one():
    told = judge(make_counted(KV_TRANSFER_MS, 25.0, 60.0), SCENARIO, BASELINE)

    assert tabulate_counts((), APART).rows[-1][:3] == ("KV transfer time", UNKNOWN, UNKNOWN)
    assert tabulate_counts(told.counts, SCENARIO).rows[-1] == (
        *("KV transfer time", "25.0 ms", "60.0 ms", "+140.0 %", "+100.0 %", "lost"),
    )


def test_format_verdict__holds_its_schema():
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with the extra test")
    schema = orjson.loads((ROOT / "perfgate" / "storage" / "verdict.schema.json").read_bytes())

    for base, candidate in ((1000.0, 900.0), (0.0, 3.0), ([1.0, 2.0], [1.0, 3.0])):
        verdict = judge(make_counted(KV_CAPACITY, base, candidate), SCENARIO, BASELINE)
        jsonschema.validate(orjson.loads(format_verdict(verdict)), schema)


def test_format_verdict__counters_only_where_some_are_told():
    none = orjson.loads(format_verdict(judge(make_session(SCENARIO), SCENARIO, BASELINE)))
    some = orjson.loads(format_verdict(judge(make_counted(KV_CAPACITY, 1000.0, 900.0), SCENARIO, BASELINE)))

    assert "counters" not in none
    assert some["counters"] == [
        {"counter": KV_CAPACITY, "state": "lost", "base": 1000.0, "candidate": 900.0, "change": -0.1, "fails_beyond": -0.01}
    ]


@pytest.mark.parametrize(("again", "is_taken"), [(900.0, True), (892.0, True), (880.0, False)])
def test_is_accepted__a_lost_counter_in_its_size(again, is_taken):
    def build(candidate):
        session = make_counted(KV_CAPACITY, 1000.0, candidate)
        return make_case(judge(session, SCENARIO, BASELINE), session)

    losses = list_losses([build(900.0)])
    place = {"head_sha": "a" * 40, "hardware": "test-gpu-80gb", "by": "someone", "at": "2026-11-22T19:00:00Z"}
    accepted = Acceptance(losses=losses, reason="the graphs need it", **place)

    assert [loss.metric for loss in losses] == [KV_CAPACITY]
    assert is_accepted([build(again)], [accepted]) is is_taken


def test_docs__table_of_counters_is_the_codes():
    text = (ROOT / "docs" / "reference" / "telemetry.md").read_text()

    for row in COUNTERS.values():
        size = format_percent(row.fails_beyond, is_signed=True) if row.fails_beyond else "any loss"
        assert f"| {row.title} | `{row.name}` | {row.better.value} | {size} | {row.where} |\n" in text
