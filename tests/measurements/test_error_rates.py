"""Replays of recorded blocks: what is counted, what is left out, and what is told."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from math import expm1, log1p
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import orjson
import pytest

from benchmarks.error_rates import case_study, recordings, render, storing
from benchmarks.error_rates.case_study import describe_order, describe_tail, find_seen, study_rivals
from benchmarks.error_rates.custom import gather_arms, gather_history, judge_all, list_foreign
from benchmarks.error_rates.goals import (
    PowerGoal,
    check_false_alarms,
    count_stalls,
    describe_asked,
    describe_nearest,
    find_case,
    find_needed,
    grade,
    is_larger,
    set_margin,
)
from benchmarks.error_rates.rates import rate_with_bounds, resample_blocks, tally
from benchmarks.error_rates.recordings import read_list, read_recordings
from benchmarks.error_rates.replays import (
    Composer,
    Replayed,
    Shelf,
    drop_unasked,
    find_stored,
    group_cases,
    list_picks,
    replay,
    sample,
    take_turns,
    walk,
)
from benchmarks.error_rates.storing import describe_effects, describe_storing
from benchmarks.error_rates.studies import keep_first_storing, stock_shelf, study_all
from benchmarks.history import HOMES
from benchmarks.verdict.record import as_rate
from perfgate.core import Arm, Fingerprint, Outcome, Role
from perfgate.errors import InputError
from perfgate.gate.baselines import find_path, load_baseline
from perfgate.scenario.schema import parse_scenario
from perfgate.stats.power import MetricTest, find_power
from perfgate.verdict.noise import Response
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.power import Cost, Study
from perfgate.verdict.series import read_series
from perfgate.verdict.validity.admission import admit
from perfgate.verdict.validity.structure import AdmissionLimits
from tests.fakes.sessions import SCENARIO_TEXT, make_scenario, make_session, write_folder

ROOT = Path(__file__).parents[2]
SCENARIO = make_scenario()
NO_CO_TENANTS = {"gpu": [], "host": []}
LOG = 'perfgate injection measured: {"kind": "gpu", "steps": 100, "injected_us": 50000.0}\n'
LIST = """
[[session]]
folder = "quiet"
kind = "aa"
label = "equal arms"
[[session]]
folder = "slow"
kind = "injected"
[[session]]
folder = "nowhere"
kind = "injected"
"""


def write_page(study):
    made = {"command": "c", "perfgate": "0", "rule": "r", "limit": 50, "seed": 1, "wall_s": 1.0}
    return render.write_page(json.loads(json.dumps({"made": made, "co_tenants": NO_CO_TENANTS, **study})))


@pytest.fixture
def place(tmp_path):
    """A list of two folders that are there, six A/A blocks and three slowed ones, and one that is not."""
    write_folder(tmp_path / "quiet", make_session(SCENARIO, blocks=6, seed=1))
    write_folder(tmp_path / "slow", make_session(SCENARIO, blocks=3, seed=2, worse=log1p(0.05)), at="2026-01-02T00:00:00Z")
    path = tmp_path / "slow" / "session.json"
    record = orjson.loads(path.read_bytes())
    record["arms"]["candidate"]["env"] = {"PERFGATE_INJECT": "gpu:20"}
    path.write_bytes(orjson.dumps(record))
    (tmp_path / "slow" / "logs" / "server-02-candidate.log").write_text(LOG)
    (tmp_path / "list.toml").write_text(LIST)
    return tmp_path


@pytest.fixture
def found(place):
    return read_recordings(read_list(place / "list.toml"))


@pytest.fixture
def cases(found):
    return group_cases(found[0])


def read_differences(composer, pick, metric="median_itl_ms"):
    session = composer.compose(pick)
    readings = read_series(session, fix_policy(session, SCENARIO, None))
    return next(one.series.differences for one in readings if one.metric == metric)


def test_read_recordings__effect_is_read_from_the_servers_logs(found):
    slow = found[0][1]

    # 500 of about 10,000 microseconds: the base's median ITL is near 10 ms.
    assert slow.effect == pytest.approx(0.05, rel=0.02)
    assert slow.effect_from == "its servers' logs"
    assert found[0][0].effect is None


def test_read_recordings__a_missing_folder_is_told(found):
    assert [(one.entry.folder.name, one.reason[:21]) for one in found[1]] == [("nowhere", "no such result folder")]


def test_read_recordings__a_void_folder_and_a_wrong_kind_are_told(place):
    next((place / "quiet" / "windows").iterdir()).unlink()
    (place / "list.toml").write_text(LIST.replace('kind = "injected"', 'kind = "aa"\nlabel = "x"', 1))

    kept, skipped = read_recordings(read_list(place / "list.toml"))

    assert kept == []
    assert skipped[0].reason.startswith("void: windows/")
    assert skipped[1].reason == "its arms are not equal, so it is not aa"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('kind = "aa"', 'kind = "quiet"', "session 1: kind: 'quiet' is none of"),
        ('"slow"', '"slow"\neffect = -1', "session 2: effect: -1 is no positive ratio"),
        ('"slow"', '"slow"\neffect = 0.05', "session 2: effect and effect_from belong together"),
        ('"slow"', '"slow"\nsize = 0.05', "session 2: size: no such key"),
        ('label = "equal arms"\n', "", "session 1: label is missing"),
        ('"slow"', '"slow*"\ncommit = "0"', "session 2: commit: names one folder"),
        ('"slow"', '"slow"\ncommit = "0"\nin_history = true', "session 2: commit: names one folder"),
        ("[[session]]", "[[folder]]", "expected \\[\\[session\\]\\] and"),
    ],
)
def test_read_list__names_what_is_wrong(place, old, new, words):
    (place / "list.toml").write_text(LIST.replace(old, new))

    with pytest.raises(InputError, match=words):
        read_list(place / "list.toml")


def test_read_list__a_star_takes_every_folder_that_matches(place):
    for name in ("slow-10", "slow-3-long", "slow-3"):
        (place / name).mkdir()
    (place / "list.toml").write_text(LIST.replace('"slow"', '"slow*"').replace('"nowhere"', '"no*"'))

    entries = read_list(place / "list.toml")

    assert [one.folder.name for one in entries[1:]] == ["slow", "slow-3", "slow-3-long", "slow-10", "no*"]


def test_read_list__a_folder_of_another_commit_is_brought_back(place, monkeypatch):
    asked = []
    monkeypatch.setattr(recordings, "ROOT", place)
    monkeypatch.setattr(recordings, "restore", lambda *words: asked.append(words) or place / "back" / words[1])
    (place / "list.toml").write_text(LIST.replace('"slow"', '"slow"\ncommit = "0123"'))

    entries = read_list(place / "list.toml")

    assert asked == [("0123", "slow")]
    assert [entry.folder for entry in entries] == [place / "quiet", place / "back/slow", place / "nowhere"]


def test_group_cases__a_slowed_session_is_named_by_what_its_server_was_given(place):
    shutil.copytree(place / "slow", place / "slow-again")
    (place / "list.toml").write_text(LIST.replace('"slow"', '"slow*"'))

    quiet, *slowed = group_cases(read_recordings(read_list(place / "list.toml"))[0])

    assert (quiet.label, len(quiet.blocks)) == ("equal arms", 6)
    assert [case.label for case in slowed] == ["gpu:20 (slow)", "gpu:20 (slow-again)"]


def test_compose__is_a_session_of_the_host_of_its_first_block(place):
    write_folder(place / "quiet-2", make_session(SCENARIO, blocks=2, seed=3), at="2026-01-03T00:00:00Z")
    record = orjson.loads((place / "quiet-2" / "session.json").read_bytes())
    for arm in record["arms"].values():
        arm["facts"]["cores"] = "32"
    (place / "quiet-2" / "session.json").write_bytes(orjson.dumps(record))
    (place / "list.toml").write_text(LIST.replace('"quiet"', '"quiet*"'))
    found, skipped = read_recordings(read_list(place / "list.toml"))
    composer = Composer(case=group_cases(found)[0])

    cores = [composer.compose(pick).fingerprints[Arm.BASE].facts.get("cores") for pick in (((0, False),), ((6, False),))]

    assert [one.entry.folder.name for one in skipped] == ["nowhere"]
    assert cores == [None, "32"]
    assert find_stored(Shelf(quiet=found[:1]), composer.case, ((6, False),)) is not None


def make_tail(place, period=200):
    """The slowed folder of `place` as one in which one batch of `period` was: its worst intervals and nothing else."""
    path = place / "slow" / "session.json"
    record = orjson.loads(path.read_bytes())
    record["arms"]["candidate"]["env"] = {"PERFGATE_INJECT": f"host:10000/{period}"}
    path.write_bytes(orjson.dumps(record))
    return read_recordings(read_list(place / "list.toml"))


def test_describe_tail__change_and_interval_of_the_tail_and_the_middle(place):
    found, skipped = make_tail(place)
    case = group_cases(found)[1]

    tail = describe_tail(case)
    differences = read_differences(Composer(case=case), tuple((index, False) for index in range(3)))

    assert (case.label, tail["period"], tail["spent_us"]) == ("host:10000/200", 200, pytest.approx(500.0))
    middle = tail["metrics"]["median_itl_ms"]
    assert middle["ratio"] == pytest.approx(expm1(np.mean(differences)))
    assert middle["low"] < middle["ratio"] < middle["high"]
    assert {"p99_itl_ms", "median_itl_ms"} <= tail["metrics"].keys()
    assert describe_tail(group_cases(found)[0]) is None
    page = write_page(study_all(found, skipped, limit=10))
    assert "Slowed was one batch in 200, by 100000 us each as its logs say, 500 us a batch over all." in page
    assert re.search(r"^\| P99 ITL \| \+\d+\.\d+ % \(.* to .*\) \| [A-Z]+ \|$", page, flags=re.MULTILINE)


def test_describe_tail__every_step_slowed_is_no_tail(cases):
    assert describe_tail(cases[1]) is None


def arrange(order, rigs=None, *, is_symmetric=True):
    """What `list_replays` reads of a case: who started first in each block (b or c), where, and if labels may be exchanged."""
    arms = {"b": Arm.BASE, "c": Arm.CANDIDATE}
    rigs = rigs or ["one"] * len(order)
    blocks = [SimpleNamespace(session=rig) for rig in rigs]
    return SimpleNamespace(leads=[arms[one] for one in order], rigs=rigs, blocks=blocks, is_symmetric=is_symmetric)


def test_list_picks__equal_arms_keep_the_turns_with_all_labels_either_way():
    picks = list_picks(arrange("bcbb"), 2)

    assert {tuple(index for index, _ in pick) for pick in picks} == {(0, 1), (1, 2), (1, 3)}
    assert len(set(picks)) == len(picks) == 6
    assert all(len({swapped for _, swapped in pick}) == 1 for pick in picks)


def test_list_picks__a_slowed_candidate_keeps_its_name():
    picks = list_picks(arrange("bcbc", is_symmetric=False), 2)

    assert {tuple(index for index, _ in pick) for pick in picks} == {(0, 1), (0, 3), (1, 2), (2, 3)}
    assert not any(swapped for pick in picks for _, swapped in pick)


def test_list_picks__no_replay_holds_blocks_of_two_sessions():
    case = arrange("bbccb", ["one", "other", "one", "other", "one"])

    assert {tuple(index for index, _ in pick) for pick in list_picks(case, 2)} == {(0, 2), (2, 4), (1, 3)}
    assert list_picks(case, 4) == []


def test_sample__repeats_nothing_and_is_the_same_each_time():
    every = list_picks(arrange("bc" * 5), 4)
    picks = sample(every, 30, 1)

    assert len(every) > 30
    assert len(set(picks)) == 30
    assert picks == sample(every, 30, 1)
    assert picks != sample(every, 30, 2)
    assert sample(every, 1000, 1) == every


def test_take_turns__blocks_out_of_turn_wait():
    assert take_turns(arrange("bcbbcb"), [1, 2, 3, 4, 5]) == [1, 2, 4, 5]
    assert take_turns(arrange("bb"), []) == []


def test_describe_order__what_the_arm_called_candidate_won(cases):
    [row] = describe_order(cases[0])
    losses = read_differences(Composer(case=cases[0]), tuple((index, False) for index in range(6)), "output_tok_per_s")

    assert (row["all"]["blocks"], row["base"]["blocks"], row["candidate"]["blocks"]) == (6, 3, 3)
    assert row["all"]["mean"] == pytest.approx(-sum(losses) / 6)
    assert row["base"]["mean"] == pytest.approx(-(losses[0] + losses[2] + losses[4]) / 3)
    assert describe_order(cases[1]) is None


def test_list_foreign__history_is_of_the_same_rig_where_it_has_some():
    quiet = arrange("bcb", ["one", "other", "one"])

    assert list_foreign(quiet, "one") == {1}
    assert list_foreign(quiet, "third") == set()


def test_compose__any_blocks_make_a_session_that_is_admitted(cases):
    session = Composer(case=cases[0]).compose(((1, True), (3, False), (5, True)))

    assert admit(session, AdmissionLimits(scenario=SCENARIO, gated=tuple(SCENARIO.gates))) == ()
    assert {window.block for window in session.windows} == {1, 2, 3}
    assert {window.start for window in session.windows} == {1, 2, 3, 4, 5, 6}


def test_compose__blocks_keep_their_numbers_and_exchanged_arms_change_the_sign(cases):
    composer = Composer(case=cases[0])

    whole = read_differences(composer, tuple((index, False) for index in range(6)))

    assert read_differences(composer, ((1, False), (4, True))) == pytest.approx((whole[1], -whole[4]))


def test_shelf__stored_noise_is_of_other_blocks(cases):
    shelf = Shelf(quiet=cases[0].recordings)

    baseline = find_stored(shelf, cases[0], ((0, False), (2, True)))

    every = read_differences(Composer(case=cases[0]), tuple((index, False) for index in range(6)))
    assert baseline.metrics["median_itl_ms"].differences == pytest.approx([every[index] for index in (1, 3, 4, 5)], abs=2e-5)
    assert find_stored(shelf, cases[1], ((0, False),)).blocks == 6
    assert find_stored(shelf, cases[0], tuple((index, False) for index in range(6))) is None


def test_stock_shelf__a_case_is_not_told_by_its_own_response(cases):
    shelf = stock_shelf(cases[0], cases)

    assert shelf.take().metrics["p99_itl_ms"].is_responsive is True
    assert find_stored(shelf, cases[0], ((0, False), (1, False))).metrics["p99_itl_ms"].is_responsive is True
    assert find_stored(shelf, cases[1], ((0, False), (1, False))).metrics["p99_itl_ms"].is_responsive is None


def test_study_all__noise_of_the_page_knows_the_responses(found):
    study = study_all(*found, limit=10)

    assert study["designs"][0]["noise"]["metrics"]["p99_itl_ms"]["responds"] is True
    assert next(case for case in study["cases"] if case["kind"] == "injected")["live"][0]["outcome"] == "REGRESSION"


def test_replay__is_the_verdict_of_the_session(cases):
    composer = Composer(case=cases[1])

    found = replay(composer, ((0, False), (1, False), (2, False)), Shelf(quiet=cases[0].recordings).take())

    assert (found.outcome, found.blocks) == (Outcome.REGRESSION, 2)
    assert found.alone["median_itl_ms"] is Outcome.REGRESSION
    assert found.machine_s == pytest.approx(sum(block.machine_s for block in cases[1].blocks[:2]))


def test_walk__no_block_serves_twice(cases):
    found = list(walk(Composer(case=cases[0]), 4, Shelf(quiet=cases[0].recordings)))

    used = [index for one in found for index, _ in one.pick[: one.blocks]]
    assert used == sorted(set(used))
    assert {one.outcome for one in found} == {Outcome.PASS}


def test_walk__undecided_at_its_last_look_is_a_verdict(cases):
    found = list(walk(Composer(case=cases[1]), 1, None))

    assert [one.outcome for one in found] == [Outcome.INCONCLUSIVE] * len(cases[1].blocks)


@pytest.mark.parametrize(("slow", "is_kept"), [(2.0, True), (1.0, False)])
def test_drop_unasked__a_rerun_stays_only_where_its_rule_asks_for_it(slow, is_kept):
    session = make_session(SCENARIO, blocks=2, seed=1)
    place = next(index for index, window in enumerate(session.windows) if window.role is Role.MEASURED)
    stalled = session.windows[place]
    worse = {name: value / slow if name == "output_tok_per_s" else value * slow for name, value in stalled.run.values.items()}
    again = replace(stalled, role=Role.RERUN, index=5, begun_s=stalled.begun_s + 40, ended_s=stalled.ended_s + 40)
    windows = [*session.windows, again]
    windows[place] = replace(stalled, run=replace(stalled.run, values=worse))
    session = replace(session, windows=tuple(windows))

    kept = drop_unasked(session, fix_policy(session, SCENARIO, None))

    assert any(window.role is Role.RERUN for window in kept.windows) is is_kept


def test_resample_blocks__one_bad_block_makes_the_bound_wide():
    subsets = np.array([[first, second] for first in range(6) for second in range(first + 1, 6)])
    hits = (subsets == 0).any(axis=1).astype(float)

    bounds = resample_blocks(subsets, hits, 6)

    assert bounds["lower95"] == 0.0
    assert hits.mean() < 0.5 < bounds["upper95"] < 1.0


def test_resample_blocks__one_set_of_blocks_does_not_vary():
    assert resample_blocks(np.array([[0, 1], [0, 1]]), np.array([0.0, 1.0]), 2) is None


def make_replayed(outcome, *indices):
    pick = tuple((index, False) for index in indices)
    return Replayed(pick=pick, outcome=outcome, blocks=len(indices), machine_s=60.0, alone={})


def test_rate_with_bounds__counts_disjoint_verdicts_apart():
    many = [make_replayed(Outcome.PASS, first, second) for first in range(5) for second in range(first + 1, 5)]

    rate = rate_with_bounds(many, many[:2], lambda one: one.outcome is Outcome.REGRESSION)

    assert (rate["count"], rate["tries"], rate["disjoint"]["tries"]) == (0, 10, 2)
    assert rate["disjoint"]["upper95"] == pytest.approx(1 - 0.05**0.5, abs=1e-6)


def test_tally__an_undecided_replay_is_charged_a_whole_session():
    found = [
        make_replayed(Outcome.INCONCLUSIVE, 0, 1),
        make_replayed(Outcome.PASS, 0, 2),
        make_replayed(Outcome.INCONCLUSIVE, 1, 2),
    ]

    row = tally(found, [], 3, whole_s=600.0)

    assert row["minutes"] == {"median": 10.0, "p90": 10.0, "charged_whole": 2}
    assert tally(found, [], 3)["minutes"]["median"] == 1.0


def test_check_false_alarms__kinds_of_noise_judge_the_same_replays():
    def row(noise, replays, alarms):
        rate = {"count": alarms, "tries": replays, "disjoint": {"count": alarms, "tries": 2, "upper95": 0.78}}
        return {"noise": noise, "replays": replays, "regression": rate, "blocks_used": 2.0}

    enough = check_false_alarms([row("none", 400, 0), row("blocks", 200, 0)], 2.0)
    loud = check_false_alarms([row("none", 400, 0), row("blocks", 200, 1)], 2.0)

    assert (enough["status"], enough["bound_status"], loud["status"]) == ("met", "NOT met", "NOT met")
    assert check_false_alarms([row("none", 200, 0), row("blocks", 200, 0)], 2.0)["status"] == "NOT met"


@pytest.mark.parametrize(
    ("replays", "disjoint", "words"),
    [
        ((1, 1), (1, 1), "found 1 of 1, proves nothing yet"),
        ((58, 58), None, "found 58 of 58, proves nothing yet"),
        ((59, 59), (2, 2), "found, too few blocks to prove it"),
        ((1, 1), (1, 2), "NOT shown"),
        ((500, 500), (59, 60), "found, too few blocks to prove it"),
        ((500, 500), (59, 59), "met"),
        ((9, 10), (2, 2), "NOT met"),
        ((0, 1), None, "NOT met"),
    ],
)
def test_grade__only_verdicts_that_share_no_block_meet_a_goal(replays, disjoint, words):
    found = {**as_rate(*replays), "disjoint": as_rate(*disjoint) if disjoint else None}

    assert grade(found, 0.95) == words


def test_find_needed__of_one_percent():
    assert find_needed(0.01) == 299


def test_find_case__an_effect_that_is_too_large_proves_nothing():
    def case(label, effect, *, direct=True, blocks=2):
        return {"label": label, "kind": "injected", "effect": effect, "direct": direct, "blocks": blocks, "rows": [{}]}

    goal = PowerGoal(metric="median_itl_ms", effect=0.03, power=0.95)
    given = [case("large", 0.036), case("near", 0.027), case("far", 0.024), case("host", 0.03, direct=False)]

    assert find_case(goal, given)["label"] == "near"
    assert find_case(goal, given[:1]) is None
    assert find_case(goal, [*given, case("long", 0.024, blocks=4)])["label"] == "long"


def test_list_carded__the_first_design_of_each_card():
    told = [("a", "h200", {}), ("a", "h100", None), ("a", "h100", {}), ("a", "h200", {"later": 1}), ("b", "h20", {})]
    designs = [{"scenario": scenario, "hardware": hardware, "goals": goals} for scenario, hardware, goals in told]

    assert render.list_carded(designs) == [designs[0], designs[2]]


def make_found_case(label, effect):
    found = {**as_rate(1, 1), "disjoint": None}
    row = {"alone": {"median_itl_ms": {"regression": found}}, "blocks": 4, "minutes": {"median": 12.9}}
    told = {"label": label, "kind": "injected", "effect": effect, "direct": True, "blocks": 4, "seen": None}
    return told | {"rows": [row]}


def test_describe_nearest__only_where_no_case_answers():
    goal = PowerGoal(metric="median_itl_ms", effect=0.02, power=0.90)
    given = [make_found_case(label, effect) for label, effect in (("far", 0.05), ("near", 0.0235), ("less near", 0.039))]

    told = describe_nearest(goal, given)

    assert (told["case"], told["blocks"], told["minutes"]) == ("near", 4, 12.9)
    assert describe_nearest(goal, given[:1]) is None
    assert describe_nearest(goal, [*given, make_found_case("answers", 0.021)]) is None


def test_set_margin__of_the_goals_metric_alone():
    study = SimpleNamespace(scenario=SCENARIO)
    goal = PowerGoal(metric="median_itl_ms", effect=0.01, power=0.90, margin=0.01)

    assert set_margin(study, replace(goal, margin=None)) is study
    changed = set_margin(Study(baseline=None, scenario=SCENARIO, cost=Cost()), goal).scenario
    assert changed.margin_ratio("median_itl_ms") == 0.01
    assert changed.margin_ratio("output_tok_per_s") == SCENARIO.margin_ratio("output_tok_per_s")


@pytest.mark.parametrize(
    ("minutes", "offset_sd", "blocks", "is_possible"), [(5.0, 0.0, 2, True), (5.0, 0.02, 2, False), (2.0, 0.0, 0, False)]
)
def test_describe_asked__how_quiet_blocks_would_have_to_be(minutes, offset_sd, blocks, is_possible):
    goal = PowerGoal(metric="median_itl_ms", effect=0.02, power=0.90, minutes=minutes)
    noise = {"block_sd": 0.01, "prior_df": 30.0, "alpha": 0.001, "offset_sd": offset_sd, "offset_df": 16.0}
    study = SimpleNamespace(
        scenario=SCENARIO,
        cost=SimpleNamespace(minutes=lambda design: 2.2 * design.blocks),
        trial=lambda _metric, design: MetricTest(blocks=design.blocks, **noise),
    )

    told = describe_asked(study, goal)

    assert (told["blocks"], told["offset_sd"]) == (blocks, offset_sd)
    assert (told["block_sd"] is not None) == is_possible
    if not is_possible:
        return
    test = MetricTest(blocks=blocks, **noise)
    power = [find_power(replace(test, block_sd=told["block_sd"] * share), log1p(goal.effect)) for share in (0.99, 1.01)]
    assert power[0] > goal.power > power[1]


def test_describe_asked__a_goal_without_a_limit_of_time():
    assert describe_asked(None, PowerGoal(metric="median_itl_ms", effect=0.03, power=0.95)) is None


def test_count_exchanged__and_losses_of_whole_sessions(found):
    cases = study_all(*found, limit=50)["cases"]
    losses = render.count_losses(cases)

    assert render.count_exchanged(cases) == {"sessions": 1, "alarms": []}
    assert (losses["sessions"], [one["folder"] for one in losses["found"]], losses["missed"]) == (1, ["slow"], [])
    assert render.count_equal(cases)["sessions"] == 1


def test_grade__a_slow_down_that_showed_as_more_meets_nothing():
    found = {**as_rate(500, 500), "disjoint": as_rate(60, 60)}

    assert grade(found, 0.95, is_larger=is_larger({"ratio": 0.035, "low": 0.031, "high": 0.04}, 0.03)) == "met"
    assert grade(found, 0.95, is_larger=is_larger({"ratio": 0.037, "low": 0.035, "high": 0.04}, 0.03)).startswith("NOT shown")
    assert is_larger({"ratio": 0.05, "low": None, "high": None}, 0.03) is False


def test_find_seen__the_interval_of_the_blocks_own_differences(cases):
    seen = find_seen(cases[1])
    differences = read_differences(Composer(case=cases[1]), tuple((index, False) for index in range(3)))

    assert seen["ratio"] == pytest.approx(expm1(np.mean(differences)))
    # Student's t of two degrees of freedom: 2.92.
    reach = 2.92 * np.std(differences, ddof=1) / 3**0.5
    assert [seen["low"], seen["high"]] == pytest.approx(
        [expm1(np.mean(differences) - reach), expm1(np.mean(differences) + reach)], rel=1e-3
    )


def test_count_stalls__against_the_starts_own_median(cases):
    [window, *_] = [one for one in cases[0].blocks[0].windows if one.role is Role.MEASURED]
    values = window.run.values

    before = values["output_tok_per_s"]
    values["output_tok_per_s"] = 0.9 * before
    stalls = count_stalls(cases[0].blocks[0].windows)

    assert stalls == (1, 6)


def test_gather_arms__exchanged_labels_exchange_the_windows():
    values = np.arange(2 * 2 * 3, dtype=float).reshape(2, 2, 3, 1)

    base, candidate = gather_arms(values, ((0, False), (1, True)))

    assert base[0, :, 0].tolist() == [0, 1, 2, 9, 10, 11]
    assert candidate[0, :, 0].tolist() == [3, 4, 5, 6, 7, 8]
    assert gather_arms(values, ((1, True),), 1)[0].ravel().tolist() == [9]


def test_gather_history__leaves_the_replay_out():
    past = np.arange(3 * 2 * 1, dtype=float).reshape(3, 2, 1, 1)

    assert gather_history(past, {1}).ravel().tolist() == [0, 1, 4, 5]


def test_judge_all__a_loss_of_five_percent(cases):
    picks = [tuple((index, False) for index in pair) for pair in ((0, 1), (0, 2), (1, 2))]

    rows = {(row["rule"], row["evidence"]): row for row in judge_all(cases[1], cases[0], picks, ["median_itl_ms"])}

    assert rows["Mann-Whitney", "all windows"]["alarms"]["count"] == 3
    assert rows["fixed 10 %", "all windows"]["alarms"]["count"] == 0
    assert rows["benchstat", "one run an arm"]["alarms"] is None
    assert rows["SGLang nightly 10 %", "all windows"]["history"] == 10


def test_study_rivals__a_growth_is_no_number_of_a_window_and_few_blocks_are_not_told(tmp_path, monkeypatch):
    text = SCENARIO_TEXT + "[gates.throughput_growth]\n[blocks]\nwindows = 6\nlooks = [2, 4]\n"
    write_folder(tmp_path / "quiet", make_session(parse_scenario(text, "list"), blocks=2), text)
    [row] = LIST.split("[[session]]")[1:2]
    (tmp_path / "list.toml").write_text(f"[[session]]{row}")
    [case] = group_cases(read_recordings(read_list(tmp_path / "list.toml"))[0])

    assert study_rivals(case, case, None, 50) is None
    monkeypatch.setattr(case_study, "TOLD_BLOCKS", 2)
    found = study_rivals(case, case, None, 50)

    assert "throughput_growth" in case.scenario.gates
    assert found["metrics"] == ["output_tok_per_s", "p99_itl_ms", "median_itl_ms"]


def test_write_page__says_what_is_missing_and_what_was_not_met(found, monkeypatch):
    monkeypatch.setattr(case_study, "TOLD_BLOCKS", 2)
    study = study_all(*found, limit=50)
    page = write_page(study)

    assert "## Co-tenants" not in page
    assert "**nowhere** (injected): no such result folder" in page
    assert "Median ITL: +2 % found in 90 % within 5 GPU-minutes | no session of that size | none | **not measured**" in page
    assert "`perfgate power --effect 0.01` names no design at all: a loss below half its margin never fails." in page
    assert "verdicts that share no block, none of them an alarm, bound the rate by 1 %" in page
    assert "### gpu:20\n" in page
    assert "injected +4.94 %" in page
    assert "SGLang nightly 10 %" in page


def test_write_page__without_any_equal_arms(found):
    study = study_all([found[0][1]], found[1], limit=50)
    page = write_page(study)

    assert "No goal can be judged" in page


@pytest.fixture
def shelved(place, monkeypatch):
    """The list's folders as the only ones there are, of a scenario that ships with a baseline."""
    facts = orjson.loads((place / "quiet/session.json").read_bytes())["arms"]["base"]["facts"]
    baseline = find_path(place / "baselines", Fingerprint(facts=facts), "unit")
    baseline.parent.mkdir(parents=True)
    baseline.touch()
    monkeypatch.setattr(storing, "ROOT", place)
    monkeypatch.setattr(storing, "BASELINES", place / "baselines")
    monkeypatch.setattr(storing, "is_shipped", lambda _: True)


@pytest.mark.usefixtures("shelved")
def test_describe_storing__the_command_follows_the_recordings(cases):
    found = describe_storing(cases[0], stock_shelf(cases[0], cases), cases[1:])

    assert (found["scenario"], found["quiet"], found["injected"]) == ("unit", ["quiet"], ["slow"])
    assert found["baseline"].startswith("baselines/")
    assert (found["silenced"], found["silenced_by"]) == ([], [])


@pytest.mark.usefixtures("shelved")
def test_describe_storing__names_the_gate_that_a_slow_down_silences(cases):
    response = Response(injected_ratio=0.05, measured_ratio=0.001, low=-0.01, high=0.01)
    shelf = Shelf(quiet=cases[0].recordings, responses={cases[1].label: {"median_itl_ms": response}})

    found = describe_storing(cases[0], shelf, cases[1:])

    assert (found["injected"], found["silenced"], found["silenced_by"]) == (["slow"], ["median_itl_ms"], ["slow"])


def test_keep_first_storing__a_later_design_does_not_overwrite_the_file():
    designs = [{"storing": one} for one in ({"baseline": "a"}, None, {"baseline": "a"}, {"baseline": "b"})]

    keep_first_storing(designs)

    assert [one["storing"] for one in designs] == [{"baseline": "a"}, None, None, {"baseline": "b"}]


def test_describe_storing__the_scenario_does_not_ship(cases):
    assert describe_storing(cases[0], stock_shelf(cases[0], cases), cases[1:]) is None


def test_stock_shelf__rare_slow_steps_are_no_response(place):
    made = group_cases(make_tail(place)[0])

    assert stock_shelf(made[0], made).responses == {}


def test_describe_effects__what_was_recorded_and_what_a_launch_costs(cases):
    found = describe_effects(cases[1:])

    # 500 us were spent where 4 layers were asked to spin for 20 us each.
    assert found["launch_us"] == pytest.approx(420.0)
    assert [(row["effect"], row["folders"]) for row in found["rows"] if row["folders"]] == [(0.05, ["slow"])]
    assert found["step_us"] == pytest.approx(10_000, rel=0.05)


def test_write_page__is_the_page_that_is_published():
    found = render.read_results()

    assert render.write_page(found) == render.PAGE.read_text()


def test_published_page__its_commands_name_folders_that_are_there():
    named = re.findall(r"--(?:from|injected) (\S+/routed/\S+)", render.PAGE.read_text())

    history = [folder for folder in named if folder.startswith("build/history/")]

    assert len(named) == 25
    assert [folder for folder in named if folder not in history and not (ROOT / folder / "session.json").exists()] == []
    # `python -m benchmarks.history` puts them there.
    routed = "benchmarks/h200/serving/routed"
    away = (
        *(f"graphs-aa-{number}" for number in range(1, 9)),
        *(f"aa-{number}" for number in (12, 13, 14, 15, 16, 18, *range(19, 26))),
        "prefill-6000",
    )
    other = "ae9358e4ef4b05af6919cd5db836e6470f0281f0"
    assert history == [
        *(f"build/history/{HOMES[routed]}/{routed}/mxfp4-mixed-c16-{name}" for name in away),
        *(f"build/history/{other}/{routed}/mxfp4-mixed-c16-graphs-{name}" for name in ("prefill-10000-m4", "prefill-5000")),
    ]
    assert f"$ python -m benchmarks.history {other} {routed}\n" in render.PAGE.read_text()


def test_readme__tells_what_the_page_counts():
    cases = render.read_results()["cases"]
    losses, equal, exchanged = render.count_losses(cases), render.count_equal(cases), render.count_exchanged(cases)
    readme = (ROOT / "README.md").read_text()

    assert f"*Losses*: {len(losses['found'])} of {losses['sessions']} made on purpose" in readme
    assert f"the smallest of every step {100 * losses['smallest']:.0f} % of it" in readme
    assert {(one["outcome"], one["blocks"] in {1, 2}) for one in losses["missed"]} == {("INCONCLUSIVE", True)}
    assert f"{len(exchanged['alarms'])} of {exchanged['sessions']} such sessions would be a REGRESSION" in readme
    assert f"{equal['outcomes']['INCONCLUSIVE']} of the {equal['sessions']} ended INCONCLUSIVE" in readme


def test_injections_page__its_table_is_what_the_stored_baseline_says():
    rows = re.findall(
        r"^\| `gpu:.*\| ([\d.]+) % \| ([\d.]+) % \(([\d.]+) to ([\d.]+)\) \| \+(\d+) % \|$",
        (ROOT / "docs/reference/injections.md").read_text(),
        flags=re.MULTILINE,
    )
    stored = load_baseline(ROOT / "perfgate/baselines/nvidia-h200-141gb/gpt-oss-20b-shape-mxfp4-mixed-c16.json")
    said = {
        (
            *(f"{100 * share:.2f}" for share in (one.injected_ratio, one.measured_ratio, one.low, one.high)),
            f"{100 * (one.measured_ratio / one.injected_ratio - 1):.0f}",
        )
        for one in stored.metrics["median_itl_ms"].sensitivity
    }

    assert len(rows) == 1
    assert set(rows) <= said
