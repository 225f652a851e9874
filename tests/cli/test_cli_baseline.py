"""`perfgate baseline`: from result folders to reviewed files and back."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from perfgate.cli import main
from perfgate.cli.keeping.baseline import describe
from perfgate.core import Arm, Fingerprint
from perfgate.gate.baselines import find_path, load_baseline
from perfgate.report.table import lay_out
from tests.fakes.sessions import FACTS, SCENARIO_TEXT, make_baseline, make_scenario, make_session, slow_both, write_folder

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = make_scenario()


def _write(tmp_path, day, **changes):
    session = make_session(SCENARIO, **{"blocks": 2, "seed": day, "is_aa": True, **changes})
    return str(write_folder(tmp_path / f"s{day}", session, at=f"2026-01-{day:02d}T00:00:00Z"))


@pytest.fixture
def stored(tmp_path):
    """A baseline of two A/A sessions, and where it lies."""
    target = tmp_path / "baselines"
    assert main(["baseline", "add", _write(tmp_path, 1), _write(tmp_path, 2), "--to", str(target), "--commit", "abc"]) == 0
    return target, find_path(target, Fingerprint(facts=FACTS), SCENARIO.name)


def _slow_folder(tmp_path, day):
    """A session of main whose arms both lost a tenth."""
    slowed = slow_both(make_session(SCENARIO, blocks=1, seed=day), 1.1)
    return str(write_folder(tmp_path / f"s{day}", slowed, at=f"2026-01-{day:02d}T00:00:00Z"))


@pytest.mark.parametrize("hardware", ["../../../../escaped", "/tmp/escaped", "a/b", "..", ""])
def test_attack__a_baseline_outside_of_its_folder(tmp_path, capsys, hardware):
    """The machine's name in a result folder is what its measuring job wrote."""
    facts = {**FACTS, "hardware": hardware}
    session = make_session(SCENARIO, blocks=2, is_aa=True, fingerprints={arm: Fingerprint(facts=facts) for arm in Arm})
    folder = write_folder(tmp_path / "inner" / "session", session)
    before = set(tmp_path.rglob("*"))

    assert main(["baseline", "add", str(folder), "--to", str(tmp_path / "inner" / "baselines"), "--commit", "abc"]) == 2
    assert "no plain name" in capsys.readouterr().err
    assert set(tmp_path.rglob("*")) == before


def test_add__writes_where_check_looks(stored):
    _, path = stored

    baseline = load_baseline(path)

    assert (baseline.blocks, baseline.history[0].action) == (4, "built")
    assert {(start.commit, start.environment) for start in baseline.starts} == {("abc", "sglang 0.5.15, driver 570")}


def test_add__a_second_time_grows_the_file(tmp_path, capsys, stored):
    target, path = stored

    assert main(["baseline", "add", _write(tmp_path, 3), "--to", str(target), "--release", "v1"]) == 0

    baseline = load_baseline(path)
    assert "added (1 session, 6 A/A blocks stored)" in capsys.readouterr().out
    assert {noise.anchor.release for noise in baseline.metrics.values()} == {"v1"}


def test_add__slower_is_refused_without_a_reason(tmp_path, capsys, stored):
    target, path = stored
    before, folder = path.read_bytes(), _slow_folder(tmp_path, 3)

    assert main(["baseline", "add", folder, "--to", str(target)]) == 2
    assert "--accept-slower REASON" in capsys.readouterr().err
    assert path.read_bytes() == before

    assert main(["baseline", "add", folder, "--to", str(target), "--accept-slower", "bug fix 12"]) == 0
    assert load_baseline(path).history[-1].reason == "bug fix 12"


def test_add__a_reason_that_nothing_needs_is_not_dropped_silently(tmp_path, capsys, stored):
    assert main(["baseline", "add", _write(tmp_path, 3), "--to", str(stored[0]), "--accept-slower", "bug fix 12"]) == 0

    assert "the reason was not recorded: no level is slower" in capsys.readouterr().out
    assert (load_baseline(stored[1]).history[-1].action, load_baseline(stored[1]).history[-1].reason) == ("added", "")


def test_add__an_empty_reason_is_none(tmp_path, capsys, stored):
    assert main(["baseline", "add", _slow_folder(tmp_path, 3), "--to", str(stored[0]), "--accept-slower", " "]) == 2
    assert "--accept-slower: is empty" in capsys.readouterr().err


def test_add__two_workloads_at_once(tmp_path, capsys):
    other = SCENARIO_TEXT.replace("max_concurrency = 16", "max_concurrency = 8")
    folder = write_folder(tmp_path / "other", make_session(SCENARIO), text=other)

    assert main(["baseline", "add", _write(tmp_path, 1), str(folder), "--to", str(tmp_path / "b")]) == 2
    assert "belong to several workloads" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_add__no_base_arm(tmp_path, capsys):
    session = make_session(SCENARIO, blocks=1, arms=(Arm.CANDIDATE,))
    folder = write_folder(tmp_path / "alone", session)

    assert main(["baseline", "add", str(folder), "--to", str(tmp_path / "b")]) == 2
    assert "no base arm" in capsys.readouterr().err


def test_show__names_bands_and_history(capsys, stored):
    assert main(["baseline", "show", str(stored[1])]) == 0

    shown = capsys.readouterr().out
    assert "unit on test-gpu-80gb" in shown
    assert "Output throughput" in shown
    assert "built: s1, s2" in shown


def test_diff__shows_what_changed_and_nothing_else(tmp_path, capsys, stored):
    target, path = stored
    old = tmp_path / "old.json"
    old.write_bytes(path.read_bytes())
    capsys.readouterr()
    assert main(["baseline", "diff", str(old), str(path)]) == 0
    assert capsys.readouterr().out == ""
    main(["baseline", "add", _write(tmp_path, 3), "--to", str(target)])
    capsys.readouterr()

    assert main(["baseline", "diff", str(old), str(path)]) == 0
    shown = capsys.readouterr().out
    assert "-8 starts of 3 windows, 4 A/A blocks" in shown
    assert "+12 starts of 3 windows, 6 A/A blocks" in shown


@pytest.mark.parametrize(("days", "words"), [("36500", "0 of 8 starts dropped")])
def test_expire__young_values_stay(capsys, stored, days, words):
    before = stored[1].read_bytes()

    assert main(["baseline", "expire", str(stored[1]), "--older-than", days]) == 0
    assert words in capsys.readouterr().out
    assert stored[1].read_bytes() == before


def test_expire__everything_is_refused(capsys, stored):
    assert main(["baseline", "expire", str(stored[1]), "--older-than", "0"]) == 2
    assert "every start is older" in capsys.readouterr().err


def test_verify__whole_and_edited(capsys, stored):
    _, path = stored
    assert main(["baseline", "verify", str(path)]) == 0
    assert "whole and unedited" in capsys.readouterr().out
    data = orjson.loads(path.read_bytes())
    data["metrics"]["median_itl_ms"]["anchor"]["log_mean"] += 0.02
    path.write_bytes(orjson.dumps(data))

    assert main(["baseline", "verify", str(path)]) == 2
    assert "edited by hand" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["show"], ["verify"], ["expire", "--older-than", "3"]])
def test_baseline__no_such_file(tmp_path, capsys, command):
    name, *options = command

    assert main(["baseline", name, str(tmp_path / "none.json"), *options]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_describe__writes_a_level_as_reports_do():
    shipped = load_baseline(ROOT / "perfgate/baselines/nvidia-h200-141gb/gpt-oss-20b-shape-mxfp4-mixed-c16.json")

    assert re.search(r"\nOutput throughput +1,\d{3}\.\d tok/s ", "\n".join(describe(shipped, lay_out)))


def test_describe__metrics_that_some_sessions_did_not_tell_of():
    whole, short = make_baseline(SCENARIO, sessions=4), make_baseline(SCENARIO, sessions=2)
    lines = list(describe(replace(whole, metrics={**whole.metrics, "mean_itl_ms": short.metrics["mean_itl_ms"]}), lay_out))

    assert lines[1].endswith("8 A/A blocks")
    assert "fewer A/A blocks: Mean ITL, because some sessions did not record them" in lines
    assert not any(line.startswith("fewer") for line in describe(whole, lay_out))
