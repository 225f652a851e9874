"""`perfgate check` on real result folders: exit codes, formats, replay, and input that is none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import orjson
import pytest

from perfgate.cli import main
from perfgate.core import Arm, Fingerprint
from perfgate.gate.baselines import find_path, save_baseline
from perfgate.results.results import load_results
from tests.fakes.sessions import FACTS, change_window, make_baseline, make_scenario, make_session, write_folder

SCENARIO = make_scenario()


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))


@pytest.fixture
def baselines(tmp_path):
    folder = tmp_path / "baselines"
    save_baseline(make_baseline(SCENARIO, sessions=10), find_path(folder, Fingerprint(facts=FACTS), SCENARIO.name))
    return folder


@pytest.mark.parametrize(
    ("worse", "outcome"), [(0.0, "PASS"), (-0.1, "IMPROVED"), (0.1, "REGRESSION"), (0.0178, "INCONCLUSIVE")]
)
def test_check__exit_codes(tmp_path, capsys, baselines, worse, outcome):
    code = {"PASS": 0, "IMPROVED": 0, "REGRESSION": 1, "INCONCLUSIVE": 3}[outcome]
    folder = write_folder(tmp_path / "r", make_session(SCENARIO, worse=worse))

    assert main(["check", str(folder), "--baselines", str(baselines), "--format", "json"]) == code
    assert orjson.loads(capsys.readouterr().out)["outcome"] == outcome


@pytest.mark.parametrize("file", ["../../../../etc/passwd", "/etc/passwd", "windows/../session.json"])
def test_check__a_window_file_that_leads_elsewhere(tmp_path, capsys, file):
    folder = write_folder(tmp_path / "r", make_session(SCENARIO))
    journal = folder / "windows.jsonl"
    journal.write_text(journal.read_text().replace("windows/0003.jsonl.gz", file))

    assert main(["check", str(folder)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "windows.jsonl:4: file: " in told.err


def test_check__failed_requests_are_invalid(tmp_path, capsys):
    folder = write_folder(tmp_path / "r", change_window(make_session(SCENARIO), 7, completed=390))

    assert main(["check", str(folder)]) == 3
    assert capsys.readouterr().out.startswith("INVALID")


@pytest.mark.parametrize(("style", "first"), [("text", "PASS"), ("markdown", "### "), ("json", "{")])
def test_check__formats(tmp_path, capsys, baselines, style, first):
    folder = write_folder(tmp_path / "r", make_session(SCENARIO))

    assert main(["check", str(folder), "--baselines", str(baselines), "--format", style]) == 0
    assert capsys.readouterr().out.startswith(first)


@pytest.mark.parametrize(("setting", "code"), [("fail", 1), ("report", 0)])
def test_check__a_regression_on_an_uncalibrated_machine_fails_or_is_reported(tmp_path, capsys, setting, code):
    folder = str(write_folder(tmp_path / "r", make_session(SCENARIO, worse=0.2)))

    assert main(["check", folder, "--uncalibrated", setting]) == code
    assert capsys.readouterr().out.startswith("REGRESSION (uncalibrated): ")


def test_check__a_regression_on_a_calibrated_machine_fails_whatever_the_setting(tmp_path, baselines):
    folder = write_folder(tmp_path / "r", make_session(SCENARIO, worse=0.2))

    assert main(["check", str(folder), "--baselines", str(baselines), "--uncalibrated", "report"]) == 1


def test_check__replays_byte_for_byte_elsewhere(tmp_path, capsys, baselines):
    """Another folder, another process, another hash seed, another locale; the baseline travels with the results."""
    folder = write_folder(tmp_path / "r", make_session(SCENARIO, worse=0.05))
    shutil.copytree(baselines, folder / "baselines")
    main(["check", str(folder), "--format", "json"])
    first = capsys.readouterr().out.encode()
    moved = shutil.copytree(folder, tmp_path / "some" / "other" / "place")

    environment = {
        "PATH": "",
        "PYTHONHASHSEED": "7",
        "LC_ALL": "tr_TR.UTF-8",
        "TZ": "Asia/Tokyo",
        "PERFGATE_STATE": str(tmp_path / "none"),
    }
    command = [sys.executable, "-m", "perfgate.check", str(moved), "--format", "json"]
    done = subprocess.run(command, capture_output=True, env=environment, cwd=tmp_path, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (1, first, b"")


@pytest.mark.parametrize("is_kept", [True, False])
def test_check__names_the_noise_of_elsewhere_in_the_command_that_judges_again(tmp_path, capsys, baselines, is_kept):
    folder = write_folder(tmp_path / "r", make_session(SCENARIO))
    if is_kept:
        baselines = shutil.copytree(baselines, folder / "baselines")
    main(["check", str(folder), *([] if is_kept else ["--baselines", str(baselines)])])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith("# judge the same windows again")]

    options = "" if is_kept else f" --baselines {baselines}"
    assert line == f"perfgate check {folder}{options}  # judge the same windows again"


def test_check__a_recorded_verdict_that_differs_is_told(tmp_path, capsys):
    folder = write_folder(tmp_path / "r", make_session(SCENARIO))
    main(["check", str(folder), "--format", "json", "--output", str(folder / "verdict.json")])
    assert main(["check", str(folder)]) == 0
    assert capsys.readouterr().err == ""

    (folder / "verdict.json").write_text("{}")

    assert main(["check", str(folder)]) == 0
    assert "differs: it was made with" in capsys.readouterr().err


def test_check__a_folder_judged_without_a_baseline_is_replayed_without(tmp_path, capsys):
    folder = write_folder(tmp_path / "r", make_session(SCENARIO))
    main(["check", str(folder), "--format", "json", "--output", str(folder / "verdict.json")])
    late = find_path(tmp_path / "state" / "baselines", Fingerprint(facts=FACTS), SCENARIO.name)
    save_baseline(make_baseline(SCENARIO, sessions=10), late)

    main(["check", str(folder), "--format", "json"])

    assert capsys.readouterr().out.encode() == (folder / "verdict.json").read_bytes()


def test_check__scenarios_of_one_pull_request_share_the_error(tmp_path, capsys):
    folder = write_folder(tmp_path / "r", make_session(SCENARIO))

    main(["check", str(folder), "--format", "json", "--scenarios-in-pr", "5"])

    assert orjson.loads(capsys.readouterr().out)["policy"]["alpha_look"] == 0.01 / 4 / 5


def test_check__what_the_folder_says_is_judged_by_and_options_go_before(tmp_path, capsys):
    folder = write_folder(tmp_path / "r", make_session(SCENARIO))
    record = orjson.loads((folder / "session.json").read_bytes())
    (folder / "session.json").write_bytes(orjson.dumps(record | {"scenarios_in_pr": 3, "has_base": False}))

    shares = []
    for options in ([], ["--scenarios-in-pr", "1", "--has-base"]):
        main(["check", str(folder), "--format", "json", *options])
        shares.append(orjson.loads(capsys.readouterr().out)["policy"]["scenarios_in_pr"])

    assert shares == [3, 1]
    assert load_results(folder)[1].has_base is False


def test_check__the_session_survives_the_folder(tmp_path):
    """What was written is what is judged."""
    session = make_session(SCENARIO)

    _, loaded = load_results(write_folder(tmp_path / "r", session))

    assert [one.run.values["p99_itl_ms"] for one in loaded.windows] == [one.run.values["p99_itl_ms"] for one in session.windows]


def _no_folder(path):
    return path / "nowhere"


def _a_file(path):
    (path / "file").write_text("x")
    return path / "file"


def _torn_index(path):
    folder = write_folder(path / "r", make_session(SCENARIO))
    lines = (folder / "windows.jsonl").read_text().splitlines()
    (folder / "windows.jsonl").write_text("\n".join([lines[0][:40], *lines[1:]]) + "\n")
    return folder


def _write_begun(path, begun_s):
    folder = write_folder(path / "r", make_session(SCENARIO))
    index = folder / "windows.jsonl"
    index.write_text(index.read_text().replace('"begun_s":0.0', f'"begun_s":{begun_s}', 1))
    return folder


def _write_newer(path, **changes):
    folder = write_folder(path / "r", make_session(SCENARIO))
    record = folder / "session.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    return folder


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_no_folder, "no such result folder"),
        (_a_file, "no such result folder"),
        (lambda path: path, "holds no session.json"),
        (_torn_index, "windows.jsonl:1: not valid JSON"),
        (lambda path: _write_begun(path, -1.0), "windows.jsonl:1: begun_s"),
        (lambda path: _write_begun(path, 1e12), "windows.jsonl:1: begun_s"),
        (
            lambda path: _write_newer(path, schema=2),
            "schema: Input should be 1; the folder was damaged, measure again, or upgrade",
        ),
        (
            lambda path: _write_newer(path, later=1),
            "later: Unexpected keyword argument; the folder was damaged, measure again, or",
        ),
        (lambda path: _write_newer(path, purpose="new"), "measure again, or upgrade perfgate if a newer one wrote it"),
    ],
)
def test_check__input_that_is_none(tmp_path, capsys, make, words):
    assert main(["check", str(make(tmp_path))]) == 2

    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--baselines", "{tmp}/nowhere"], "--baselines"),
        (["--output", "{tmp}/nowhere/v.json"], "--output"),
        (["--format", "yaml"], "yaml"),
        (["--scenarios-in-pr", "0"], "0"),
    ],
)
def test_check__flags_that_cannot_be_used(tmp_path, capsys, arguments, words):
    folder = write_folder(tmp_path / "r", make_session(SCENARIO))

    assert main(["check", str(folder), *(one.format(tmp=tmp_path) for one in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_check__a_broken_baseline_is_named(tmp_path, capsys, baselines):
    folder = write_folder(tmp_path / "r", make_session(SCENARIO))
    path = find_path(baselines, Fingerprint(facts=FACTS), SCENARIO.name)
    path.write_bytes(path.read_bytes().replace(b'"resident": "one"', b'"resident": "both"'))

    assert main(["check", str(folder), "--baselines", str(baselines)]) == 2
    assert "edited by hand" in capsys.readouterr().err


def test_check__a_session_that_knows_no_hardware_has_no_baseline(tmp_path, capsys):
    nameless = dict.fromkeys(Arm, Fingerprint(facts={"gpu": "Test GPU"}))
    folder = write_folder(tmp_path / "r", make_session(SCENARIO, fingerprints=nameless))

    main(["check", str(folder), "--format", "json"])

    assert orjson.loads(capsys.readouterr().out)["hardware"] == "unknown"
