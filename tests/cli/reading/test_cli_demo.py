"""A first verdict without a GPU: the recordings that ship, judged by the light core."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.cli.reading.demo import RECORDINGS, find_recording

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))


@pytest.mark.parametrize("outcome", RECORDINGS)
def test_demo__says_the_outcome_that_it_is_named_after(outcome, tmp_path, capsys):
    code = main(["demo", outcome])
    said = capsys.readouterr().out

    assert code == 0
    assert re.search(rf"^{outcome.upper()}\b", said, flags=re.MULTILINE)
    assert said.startswith(("One NVIDIA H100,", "One NVIDIA H200,"))
    assert (tmp_path / "perfgate-demo" / outcome / "report.html").stat().st_size > 10_000
    assert main(["list", "perfgate-demo", "--format", "json"]) == 0
    assert outcome.upper() in capsys.readouterr().out


def test_demo__live_shows_each_window_and_look(monkeypatch, capsys):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    main(["demo", "regression", "--live"])
    said = capsys.readouterr().out

    assert len(re.findall(r"(warmup|measured) +[\d.]+ tok/s", said)) == 30
    assert "look after block 2, 20 windows: REGRESSION; stop" in said
    assert 6 < sum(waited) < 6.5  # 369 s, sixty times faster


def test_demo__again_uses_what_lies_there(capsys):
    assert [main(["demo"]), main(["demo"])] == [0, 0]
    assert capsys.readouterr().out.count("page: perfgate-demo/regression/report.html") == 2


def test_demo__folder_of_something_else_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    code = main(["demo", "--out", "mine"])

    assert code == 2
    assert capsys.readouterr().err == "perfgate: mine: holds something else than this demo; give another folder with --out\n"
    assert list((tmp_path / "mine").iterdir()) == []


def test_demo__disk_that_is_full_keeps_no_half_of_a_copy(tmp_path):
    command = f"ulimit -f 100; {sys.executable} -m perfgate demo --out mine"
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "mine: cannot be written ([Errno 27] File too large" in done.stderr
    assert list(tmp_path.glob("mine*")) == []


def test_find_recording__each_goes_into_the_wheel():
    settings = (ROOT / "pyproject.toml").read_text()

    for outcome, recording in RECORDINGS.items():
        assert f'"{recording.folder}" = "perfgate/demos/{outcome}"' in settings
        assert json.loads((find_recording(outcome) / "session.json").read_text())["schema"] == 1
