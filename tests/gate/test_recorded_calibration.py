"""`perfgate calibrate --from`: a baseline out of sessions that are there already."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log1p
from pathlib import Path

import orjson
import pytest

from benchmarks.h200.serving.routed_noise import H100
from benchmarks.history import restore
from perfgate.cli import main
from perfgate.core import Fingerprint
from perfgate.errors import InputError
from perfgate.gate.baselines import find_path, load_baseline
from perfgate.gate.recorded_calibration import Slowed, parse_slowed
from perfgate.gate.recorded_sessions import measure_busy
from perfgate.storage.state import SHIPPED_BASELINES
from tests.fakes.recorded import ROOT, ROUTED, bring_back
from tests.fakes.sessions import FACTS, SCENARIO_TEXT, make_scenario, make_session, write_folder

SCENARIO = make_scenario()
EVIDENCE = ROOT / "docs/evidence"


@pytest.fixture
def place(tmp_path):
    """A scenario file, two A/A folders and one whose candidate was slowed by 3 %."""
    (tmp_path / "unit.toml").write_text(SCENARIO_TEXT)
    for day in (1, 2):
        write_folder(tmp_path / f"aa{day}", make_session(SCENARIO, blocks=4, seed=day), at=f"2026-01-0{day}T00:00:00Z")
    slow = make_session(SCENARIO, blocks=4, seed=3, worse=log1p(0.03))
    write_folder(tmp_path / "slow", slow, at="2026-01-03T00:00:00Z")
    change_arm(tmp_path / "slow", env={"PERFGATE_INJECT": "host:300"})
    return tmp_path


def change_arm(folder, **changes):
    """Say of the candidate what a slowed, or another, candidate's folder says."""
    path = folder / "session.json"
    record = orjson.loads(path.read_bytes())
    record["arms"]["candidate"].update(changes)
    path.write_bytes(orjson.dumps(record))


def calibrate(place, *arguments):
    return main(["calibrate", str(place / "unit.toml"), "--to", str(place / "to"), *map(str, arguments)])


def find_stored(place):
    return find_path(place / "to", Fingerprint(facts=FACTS), SCENARIO.name)


def test_calibrate__from_recorded_sessions(place):
    code = calibrate(place, "--from", place / "aa1", "--from", place / "aa2", "--injected", f"0.03:{place / 'slow'}")

    baseline = load_baseline(find_stored(place))
    [response] = baseline.metrics["median_itl_ms"].sensitivity
    assert code == 0
    assert baseline.blocks == 8
    assert {start.session for start in baseline.starts} == {"aa1", "aa2"}
    assert response.injected_ratio == 0.03
    assert response.low < 0.03 < response.high
    assert baseline.metrics["median_itl_ms"].is_responsive


def test_calibrate__noise_of_a_busy_machine_says_so(place):
    quiet = make_session(SCENARIO, blocks=4, seed=1)
    lost = {"foreign_cpu_share": 0.3, "stolen_cpu_share": 0.1}
    busy = replace(quiet, windows=tuple(replace(window, telemetry={**window.telemetry, **lost}) for window in quiet.windows))
    write_folder(place / "busy", busy, at="2026-01-02T00:00:00Z")

    code = calibrate(place, "--from", place / "busy")

    assert code == 0
    assert measure_busy(busy) == pytest.approx(0.4)
    assert {start.environment for start in load_baseline(find_stored(place)).starts} == {
        "sglang 0.5.15, others had 40 % of the CPU"
    }


def test_calibrate__the_size_of_the_slow_down_is_read_from_the_logs(place):
    lines = 'noise\nperfgate injection measured: {"kind": "host", "steps": 100, "injected_us": 25000.0}\n'
    (place / "slow" / "logs" / "server-02-candidate.log").write_text(lines)

    assert calibrate(place, "--from", place / "aa1", "--injected", place / "slow") == 0

    # 250 of about 10,000 microseconds: the base's median ITL is near 10 ms.
    [response] = load_baseline(find_stored(place)).metrics["median_itl_ms"].sensitivity
    assert response.injected_ratio == pytest.approx(0.025, rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--injected", "0.03:slow"], "--injected belongs to --from"),
        (["--from", "aa1", "--blocks", "4"], "leave out --blocks"),
        (["--from", "aa1", "--inject", "step:1.0"], "leave out --blocks, --inject, --effects"),
        (["--from", "slow"], "slow: its arms differ, so it holds no noise"),
        (["--from", "aa1", "--injected", "0.03:aa2"], "aa2: its arms are equal, nothing was injected"),
        (["--from", "aa1", "--from", "aa1"], "another folder has that name"),
        (["--from", "aa1", "--injected", "-1:slow"], "expected RATIO:FOLDER"),
        (["--from", "aa1", "--injected", "nan:slow"], "expected RATIO:FOLDER"),
        (["--from", "nowhere"], "nowhere: no such result folder"),
        (["--inject", "nap:1"], "'nap:1' is no injection: give step:RATIO"),
    ],
)
def test_calibrate__what_cannot_be_used_is_named_in_one_line(place, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(place)

    assert calibrate(place, *arguments) == 2

    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (place / "to").exists()


def test_calibrate__a_folder_of_another_design(place, capsys):
    (place / "unit.toml").write_text(SCENARIO_TEXT + "[blocks]\nwindows = 5\n")

    assert calibrate(place, "--from", place / "aa1") == 2
    assert "aa1: windows per start: 3, but the scenario has 5" in capsys.readouterr().err


def test_calibrate__a_slowed_folder_of_another_machine(place, capsys):
    change_arm(place / "slow", facts={**FACTS, "gpu": "Other GPU"})
    record = orjson.loads((place / "slow" / "session.json").read_bytes())
    record["arms"]["base"]["facts"]["gpu"] = "Other GPU"
    (place / "slow" / "session.json").write_bytes(orjson.dumps(record))

    assert calibrate(place, "--from", place / "aa1", "--injected", f"0.03:{place / 'slow'}") == 2
    assert "slow: ran on other hardware" in capsys.readouterr().err


def test_calibrate__equal_arms_of_two_hosts(place, capsys):
    for arm in ("base", "candidate"):
        record = orjson.loads((place / "aa2" / "session.json").read_bytes())
        record["arms"][arm]["facts"]["cores"] = "8"
        (place / "aa2" / "session.json").write_bytes(orjson.dumps(record))

    assert calibrate(place, "--from", place / "aa1", "--from", place / "aa2") == 2
    assert "aa2: ran on another host than" in capsys.readouterr().err


def test_calibrate__a_slow_down_that_nobody_knows(place, capsys):
    change_arm(place / "slow", env={"PERFGATE_INJECT": "nap:1"})

    assert calibrate(place, "--from", place / "aa1", "--injected", place / "slow") == 2
    assert "'nap:1' is no injection" in capsys.readouterr().err


def test_calibrate__a_slow_down_without_a_measurement(place, capsys):
    change_arm(place / "slow", env={"OTHER": "1"})

    assert calibrate(place, "--from", place / "aa1", "--injected", place / "slow") == 2
    assert "its candidate ran without PERFGATE_INJECT" in capsys.readouterr().err


def test_calibrate__one_block_shows_no_response(place, capsys):
    write_folder(place / "short", make_session(SCENARIO, blocks=1, seed=3, worse=log1p(0.03)))
    change_arm(place / "short", env={"PERFGATE_INJECT": "host:300"})

    assert calibrate(place, "--from", place / "aa1", "--injected", f"0.03:{place / 'short'}") == 2
    assert "short: has fewer than 2 whole blocks" in capsys.readouterr().err


def test_calibrate__a_void_session_stores_nothing(place, capsys):
    session = make_session(SCENARIO, blocks=4, seed=9)
    write_folder(place / "void", session)
    next((place / "void" / "windows").iterdir()).unlink()

    assert calibrate(place, "--from", place / "void") == 3
    said = capsys.readouterr().err
    assert "the calibration is void: " in said
    assert said.endswith("docs/troubleshooting.md#the-folder-was-changed-or-is-incomplete)\n")
    assert not (place / "to").exists()


def test_calibrate__the_shipped_baseline_is_what_the_raw_data_gives(tmp_path):
    """By the command of docs/evidence/error-rates.md."""
    bring_back(ROUTED)
    [command] = re.findall(
        r"^\$ perfgate (calibrate .*/h200/.*)$", (EVIDENCE / "error-rates.md").read_text(), flags=re.MULTILINE
    )
    *given, _ = command.split()
    for commit in {word.split("/")[2] for word in given if word.startswith("build/history/")}:
        restore(commit, ROUTED.relative_to(ROOT).as_posix())

    assert main([str(ROOT / word) if (ROOT / word).is_dir() else word for word in (*given, tmp_path)]) == 0

    [built] = tmp_path.rglob("*.json")
    assert built.read_bytes() == (SHIPPED_BASELINES / built.relative_to(tmp_path)).read_bytes()


def test_calibrate__the_shipped_baseline_of_h100_is_what_the_history_gives(tmp_path):
    folder = bring_back(H100)
    quiet = [word for number in range(1, 8) for word in ("--from", str(folder / f"mxfp4-mixed-c16-aa-{number}"))]
    slowed = [word for name in ("gpu-15", "rare-prefill") for word in ("--injected", str(folder / f"mxfp4-mixed-c16-{name}"))]

    assert main(["calibrate", "gpt-oss-20b-shape-mxfp4-mixed-c16", *quiet, *slowed, "--to", str(tmp_path)]) == 0

    [built] = tmp_path.rglob("*.json")
    assert built.read_bytes() == (SHIPPED_BASELINES / built.relative_to(tmp_path)).read_bytes()


def test_parse_slowed__folder_with_a_colon():
    assert parse_slowed("results:old/slow") == Slowed(folder=Path("results:old/slow"))


def test_parse_slowed__ratio_without_a_folder():
    with pytest.raises(InputError, match="expected RATIO:FOLDER"):
        parse_slowed("0.03:")
