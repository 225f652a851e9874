"""Baseline files: what they derive, what they refuse, and that they grow only by review."""

from __future__ import annotations

from dataclasses import replace
from math import log
from statistics import median

import orjson
import pytest

from perfgate.core import Arm, Fingerprint
from perfgate.errors import BaselineError, InputError
from perfgate.evidence import DriverProblem
from perfgate.gate.baselines import (
    KEPT_STARTS,
    add_responses,
    build_baseline,
    expire_baseline,
    extend_baseline,
    find_baseline,
    find_path,
    load_baseline,
    save_baseline,
    verify_baseline,
)
from perfgate.scenario.schema import Warmup
from perfgate.verdict.baselines import compute_checksum
from perfgate.verdict.noise import Response
from perfgate.verdict.recorded import find_slower
from tests.fakes.sessions import FACTS, change_window, make_baseline, make_scenario, make_session, record, slow_both

SCENARIO = make_scenario()
BASELINE = make_baseline(SCENARIO, sessions=10)
HARDWARE = Fingerprint(facts=FACTS)
DIED = DriverProblem(message="the server died")


def _main(day: int, worse: float = 0.0):
    """A quiet session of main, not A/A: only its base arm counts."""
    return record(slow_both(make_session(SCENARIO, blocks=1, noise=0.0005, seed=day), 1 + worse), day)


def test_build_baseline__learns_differences_from_aa_blocks_only():
    aa = make_session(SCENARIO, blocks=2, is_aa=True)
    other = make_session(SCENARIO, blocks=2, worse=0.5, seed=2)

    baseline = build_baseline(SCENARIO, HARDWARE, [record(aa, 1), record(other, 2)])

    noise = baseline.metrics["median_itl_ms"]
    assert (noise.blocks, noise.sessions, len(baseline.starts)) == (2, 2, 6)
    assert noise.block_variance**0.5 < 0.05


def test_build_baseline__blocks_that_agree_by_chance_are_not_trusted():
    aa = make_session(SCENARIO, blocks=2, is_aa=True)
    noise = build_baseline(SCENARIO, HARDWARE, [record(aa)]).metrics["p99_itl_ms"]
    twins = tuple(noise.values[index - index % 2] for index in range(len(noise.values)))
    lucky = replace(noise, values=tuple(tuple(value * 1.0001 for value in one) for one in twins))

    assert max(map(abs, lucky.differences)) < 1e-9
    assert lucky.block_variance == pytest.approx(lucky.spread / lucky.windows)
    assert lucky.block_variance > 0


def test_build_baseline__derives_by_the_formulas():
    aa = make_session(SCENARIO, blocks=2, is_aa=True)

    noise = build_baseline(SCENARIO, HARDWARE, [record(aa)]).metrics["p99_itl_ms"]

    middles = {}
    for window in aa.windows:
        if window.index > 1:
            middles.setdefault((window.block, window.arm), []).append(log(window.run.values["p99_itl_ms"]))
    found = {place: median(values) for place, values in middles.items()}
    d = [found[block, Arm.CANDIDATE] - found[block, Arm.BASE] for block in (1, 2)]
    assert noise.differences == pytest.approx(d, abs=1e-5)
    assert noise.block_variance == pytest.approx(sum(one * one for one in d) / 2, rel=1e-2)
    assert noise.log_mean == pytest.approx(sum(found.values()) / 4, abs=1e-5)
    assert noise.band == pytest.approx(4.302653 * noise.block_variance**0.5, rel=0.1)
    assert noise.components.window.df == 8


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (make_session(SCENARIO, problems=(DIED,)), "session-01: no evidence for a baseline: the server died"),
        (change_window(make_session(SCENARIO), 3, completed=1), "1 of 400 requests completed"),
        (
            make_session(SCENARIO, fingerprints=dict.fromkeys(Arm, Fingerprint(facts={**FACTS, "gpu": "Other"}))),
            "other hardware",
        ),
        (make_session(SCENARIO, arms=(Arm.CANDIDATE,)), "no session holds a measured window of the base arm"),
    ],
)
def test_build_baseline__refuses_what_a_verdict_would_refuse(session, words):
    with pytest.raises(BaselineError, match=words):
        build_baseline(SCENARIO, HARDWARE, [record(session)])


def test_save_and_load__give_the_same_noise(tmp_path):
    path = find_path(tmp_path, HARDWARE, SCENARIO.name)
    save_baseline(BASELINE, path)

    loaded = load_baseline(path)

    assert loaded == BASELINE
    assert loaded.blocks == 20
    assert loaded.checksum
    assert [noise.block_variance for noise in loaded.metrics.values()] == [
        noise.block_variance for noise in BASELINE.metrics.values()
    ]
    assert verify_baseline(path) == BASELINE
    save_baseline(loaded, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_save_baseline__is_laid_out_for_review(tmp_path):
    path = tmp_path / "b.json"
    save_baseline(BASELINE, path)

    lines = path.read_text().splitlines()

    keys = [line.split('"')[1] for line in lines if line.startswith('  "')]
    assert keys == sorted(keys)
    assert max(map(len, lines)) < 300
    assert sum(line.lstrip().startswith("[") for line in lines) == len(BASELINE.metrics) * len(BASELINE.starts)
    derived = orjson.loads(path.read_bytes())["metrics"]["median_itl_ms"]["derived"]
    assert derived["noise_band_percent"] == pytest.approx(100 * BASELINE.metrics["median_itl_ms"].band, rel=1e-5)
    assert set(derived["components"]) == {"window", "start", "session"}


def _edit(data, *path, value):
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda data: _edit(data, "metrics", "median_itl_ms", "values", 0, 0, value=5.0),
            "checksum: its content was edited by hand",
        ),
        (lambda data: _edit(data, "schema", value=2), "schema: Input should be 1"),
        (lambda data: _edit(data, "metrics", "median_itl_ms", "values", 0, 0, value=-5.0), "or equal to 0.000000001"),
        (lambda data: _edit(data, "metrics", "median_itl_ms", "values", 0, 0, value="x"), "metrics.median_itl_ms.values.0.0"),
        (
            lambda data: _edit(data, "metrics", "median_itl_ms", "anchor", "log_mean", value=-800.0),
            "metrics.median_itl_ms.anchor.log_mean: -800 is no level of a window; restore it from version control",
        ),
        (lambda data: data["metrics"].update(speed=data["metrics"]["median_itl_ms"]), "metrics.speed is no metric"),
        (lambda data: data["metrics"]["median_itl_ms"]["values"].pop(), "has 39 starts, the file 40"),
        (lambda data: data.pop("fingerprint"), "fingerprint: Field required"),
        (lambda data: data.update(extra=1), "extra: Unexpected keyword argument"),
        (lambda data: data.update(metrics={}), "metrics: Dictionary should have at least 1 item"),
    ],
)
def test_load_baseline__broken_or_edited(tmp_path, edit, words):
    path = tmp_path / "b.json"
    save_baseline(BASELINE, path)
    data = orjson.loads(path.read_bytes())
    edit(data)
    path.write_bytes(orjson.dumps(data))

    with pytest.raises(BaselineError, match=words):
        load_baseline(path)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), (b"", "not valid JSON"), (b"{", "not valid JSON"), (b"[]", "b.json: ")]
)
def test_load_baseline__no_file_or_no_json(tmp_path, content, words):
    path = tmp_path / "b.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(BaselineError, match=words):
        load_baseline(path)


def test_verify_baseline__numbers_that_the_values_do_not_give(tmp_path):
    path = tmp_path / "b.json"
    save_baseline(BASELINE, path)
    data = orjson.loads(path.read_bytes())
    data["metrics"]["median_itl_ms"]["derived"]["s0"] = 0.5
    data["checksum"] = compute_checksum(data)
    path.write_bytes(orjson.dumps(data))

    assert load_baseline(path).metrics["median_itl_ms"].block_variance < 0.01
    with pytest.raises(BaselineError, match=r"metrics.median_itl_ms.derived.s0: shows what its values do not give"):
        verify_baseline(path)


def test_save_baseline__where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(InputError, match="cannot be written"):
        save_baseline(BASELINE, tmp_path / "file" / "b.json")


def test_find_baseline__first_folder_wins_and_other_hardware_has_none(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    save_baseline(BASELINE, find_path(second, HARDWARE, SCENARIO.name))
    assert find_baseline([first, second], SCENARIO, HARDWARE) == BASELINE

    other = Fingerprint(facts={**FACTS, "hardware": "other-gpu"})

    assert find_baseline([first, second], SCENARIO, other) is None


def test_extend_baseline__adds_a_session_and_says_so():
    grown = extend_baseline(BASELINE, SCENARIO, [_main(20)])

    assert (grown.history[-1].action, grown.history[-1].sessions) == ("added", ("session-20",))
    assert grown.metrics["median_itl_ms"].sessions == 11
    assert grown.metrics["median_itl_ms"].blocks == BASELINE.blocks
    assert grown.metrics["median_itl_ms"].anchor == BASELINE.metrics["median_itl_ms"].anchor


def test_extend_baseline__the_same_session_twice():
    grown = extend_baseline(BASELINE, SCENARIO, [_main(20)])

    with pytest.raises(BaselineError, match="session-20 is in the baseline already"):
        extend_baseline(grown, SCENARIO, [_main(20)])


def test_extend_baseline__a_copy_under_another_name():
    grown = extend_baseline(BASELINE, SCENARIO, [_main(20)])

    with pytest.raises(BaselineError, match="session copy is in the baseline already or given twice"):
        extend_baseline(grown, SCENARIO, [replace(_main(20), name="copy")])


@pytest.mark.parametrize("name", ["session-1", "copy"])
def test_build_baseline__one_session_given_twice(name):
    aa = record(make_session(SCENARIO, blocks=2, is_aa=True))

    with pytest.raises(BaselineError, match=f"session {name} is in the baseline already or given twice"):
        build_baseline(SCENARIO, HARDWARE, [aa, replace(aa, name=name)])


def test_extend_baseline__slower_needs_a_reason_and_keeps_it():
    with pytest.raises(BaselineError, match=r"worse than the stored level; find the cause, or record .* --accept-slower"):
        extend_baseline(BASELINE, SCENARIO, [_main(20, worse=0.1)])

    grown = extend_baseline(BASELINE, SCENARIO, [_main(20, worse=0.1)], accept_slower="needed for correctness")

    noise = grown.metrics["median_itl_ms"]
    assert (grown.history[-1].action, grown.history[-1].reason) == ("accepted slower", "needed for correctness")
    assert noise.log_mean == pytest.approx(log(10.0 * 1.1), abs=0.02)
    assert (noise.sessions, noise.blocks) == (1, BASELINE.blocks)
    assert noise.anchor.release == "accepted: needed for correctness"


def test_extend_baseline__a_reason_without_need_changes_no_anchor():
    grown = extend_baseline(BASELINE, SCENARIO, [_main(20)], accept_slower="just in case")

    assert grown.history[-1].action == "added"
    assert grown.metrics["median_itl_ms"].anchor == BASELINE.metrics["median_itl_ms"].anchor


def test_extend_baseline__faster_is_the_level_of_tomorrow_but_no_anchor():
    grown = extend_baseline(BASELINE, SCENARIO, [_main(20, worse=-0.1)])

    noise = grown.metrics["median_itl_ms"]
    assert (grown.history[-1].action, noise.sessions) == ("became faster", 1)
    assert noise.log_mean == pytest.approx(log(9.0), abs=0.02)
    assert noise.anchor == BASELINE.metrics["median_itl_ms"].anchor


@pytest.mark.parametrize(("noise", "words"), [(0.004, "worse than the stored level"), (0.012, "crept to")])
def test_extend_baseline__creep_alarms_before_three_percent(noise, words):
    """Twenty commits of half a percent each: on a quiet machine the level tells, on a noisy one the anchor has to."""
    scenario = make_scenario(warmup=Warmup(steady_ratio=0.25))
    baseline = make_baseline(scenario, sessions=10, noise=noise)
    for commit in range(1, 21):
        session = replace(_main(20, worse=1.005**commit - 1), name=f"commit-{commit:02d}", at=f"2026-02-{commit:02d}")
        slower = find_slower(baseline, scenario, [session])
        if slower:
            break
        baseline = extend_baseline(baseline, scenario, [session])

    assert 2 <= commit <= 5
    assert words in next(iter(slower.values()))


def test_extend_baseline__keeps_the_newest_of_each_kind():
    baseline = BASELINE
    for day in range(11, 32):
        aa = make_session(SCENARIO, blocks=2, seed=100 + day, is_aa=True)
        baseline = extend_baseline(baseline, SCENARIO, [record(aa, day)], accept_slower="the machine drifts")

    assert len(baseline.starts) == KEPT_STARTS
    assert baseline.starts[-1].session == "session-31"
    assert baseline.blocks == KEPT_STARTS // 2


def test_expire_baseline__drops_what_is_older():
    kept = expire_baseline(BASELINE, "2026-01-04", "2026-03-01")

    assert kept.metrics["median_itl_ms"].sessions == 7
    assert kept.history[-1].sessions == ("session-01", "session-02", "session-03")


def test_expire_baseline__never_everything():
    with pytest.raises(BaselineError, match="every start is older"):
        expire_baseline(BASELINE, "2027", "2027")


def test_add_responses__decide_whether_a_metric_answers(tmp_path):
    row = Response(injected_ratio=0.1, measured_ratio=0.08, low=0.05, high=0.11)

    grown = add_responses(BASELINE, {"median_itl_ms": [row]}, "2026-03-01")

    assert grown.metrics["median_itl_ms"].is_responsive is True
    assert grown.metrics["p99_itl_ms"].is_responsive is None
    save_baseline(grown, tmp_path / "b.json")
    assert load_baseline(tmp_path / "b.json").metrics["median_itl_ms"].sensitivity == (row,)


@pytest.mark.parametrize(
    ("measured", "low", "expected"),
    [(0.05, 0.01, True), (0.2, 0.1, True), (0.04, 0.01, False), (0.21, 0.1, False), (0.1, -0.01, False)],
)
def test_is_responsive__between_half_and_twice_of_what_was_injected(measured, low, expected):
    row = Response(injected_ratio=0.1, measured_ratio=measured, low=low, high=0.5)

    assert add_responses(BASELINE, {"p99_itl_ms": [row]}, "2026-03-01").metrics["p99_itl_ms"].is_responsive is expected


def test_add_responses__of_a_metric_that_is_not_there():
    with pytest.raises(BaselineError, match="max_itl_ms is not in the baseline"):
        add_responses(BASELINE, {"max_itl_ms": []}, "2026-03-01")


def test_noise_model__one_start_knows_its_level_and_no_noise():
    one = record(make_session(SCENARIO, blocks=1), 1)

    noise = build_baseline(SCENARIO, HARDWARE, [one]).metrics["median_itl_ms"]

    assert (noise.band, noise.session_band, noise.blocks) == (None, None, 0)
    assert len(set(noise.quantiles)) == 1
