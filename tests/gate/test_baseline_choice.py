"""Stored noise that was named or kept is used or refused, and never left out without a word."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.core import Fingerprint, Role
from perfgate.errors import EvidenceError
from perfgate.gate.baselines import find_path, save_baseline
from perfgate.gate.reports import write_report
from tests.fakes.recorded import SLOWER
from tests.fakes.sessions import FACTS, LEVELS, NOISE, make_baseline, make_run, make_scenario, make_session, write_folder

SCENARIO = make_scenario()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    return write_folder(tmp_path / "r", make_session(SCENARIO))


def store(folder, noise=NOISE, **changes):
    baseline = replace(make_baseline(SCENARIO, sessions=10, noise=noise), **changes)
    save_baseline(baseline, find_path(folder, Fingerprint(facts=FACTS), SCENARIO.name))
    return folder


def test_find_state_dir__of_a_user_without_a_home(folder, monkeypatch, capsys):
    def refuse():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PERFGATE_STATE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", refuse)

    assert main(["check", str(folder)]) == 2
    assert capsys.readouterr().err == (
        "perfgate: this user has no home folder; set PERFGATE_STATE to a folder that can be written\n"
    )


@pytest.mark.parametrize("name", ["report.md", "verdict.json"])
def test_write_report__where_it_cannot_be_written(folder, name):
    (folder / name).mkdir()

    with pytest.raises(EvidenceError, match=f"stopped, Is a directory .*{name}.*; correct that, then continue with --resume"):
        write_report(folder)


def test_choose_baseline__folder_that_was_named_and_holds_none(folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()

    assert main(["check", str(folder), "--baselines", str(tmp_path / "empty")]) == 2
    assert "holds no baseline of unit on this hardware" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload_hash": "0" * 12}, "another workload (unit 000000000000)"),
        ({"windows": 9}, "another design (9 windows per start, one resident)"),
        ({"fingerprint": Fingerprint(facts={**FACTS, "gpu": "Other"})}, "other hardware (gpu: Test GPU here, Other there)"),
    ],
)
def test_choose_baseline__one_that_cannot_be_this_sessions(folder, tmp_path, capsys, changes, words):
    given = store(tmp_path / "given", **changes)
    store(folder / "baselines", **changes)

    for options in ((), ("--baselines", str(given))):
        assert main(["check", str(folder), *options]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1


def make_slowed(slower, name):
    """A run that is slower by so much in every metric."""
    return make_run(
        {metric: level * (1 - slower if metric == "output_tok_per_s" else 1 + slower) for metric, level in LEVELS.items()}, name
    )


def measure_again(session, stalled, again):
    """The session whose last window took a re-run."""
    last = session.windows[-1]
    rerun = replace(
        last, run=again, index=last.index + 1, role=Role.RERUN, begun_s=last.ended_s + 1.0, ended_s=last.ended_s + 30.0
    )
    return replace(session, windows=(*session.windows[:-1], replace(last, run=stalled), rerun))


@pytest.mark.parametrize(
    ("slower", "is_kept", "words"),
    [
        (0.06, True, "PASS"),
        (0.03, True, "re-run although no window stalled"),
        (0.06, False, "re-run although no window stalled"),
    ],
)
def test_load_case__noise_that_came_later_does_not_say_what_had_stalled(folder, capsys, slower, is_kept, words):
    session = make_session(SCENARIO)
    again = measure_again(session, make_slowed(slower, "stalled"), session.windows[-1].run)
    measured = write_folder(folder.parent / "again", again)
    louder = store(folder.parent / "louder", noise=3 * NOISE)
    if is_kept:
        store(measured / "baselines")

    main(["check", str(measured), "--baselines", str(louder)])
    assert words in capsys.readouterr().out.splitlines()[0]


def test_load_case__a_hand_off_that_measured_a_window_again_is_steady_by_the_noise_that_is_given(folder, capsys):
    """It has no copy of the noise by which it was measured: that does not say that it was measured by none."""
    session = make_session(SCENARIO)
    start = session.windows[-1].start
    uneven = (
        replace(window, run=make_slowed(0.055 * (window.index % 2) + 0.0002 * window.index, f"uneven-{window.index}"))
        if window.start == start
        else window
        for window in session.windows
    )
    again = measure_again(replace(session, windows=tuple(uneven)), make_slowed(0.2003, "stalled"), make_slowed(0.0011, "again"))
    measured = write_folder(folder.parent / "again", again)

    main(["check", str(measured), "--baselines", str(store(folder.parent / "given", noise=3 * NOISE))])
    assert capsys.readouterr().out.startswith("PASS")


def test_load_results__last_block_that_was_taken_out_of_the_index(tmp_path, capsys):
    folder = Path(shutil.copytree(SLOWER, tmp_path / "slower"))
    lines = (folder / "windows.jsonl").read_text().splitlines(keepends=True)
    last = max(json.loads(line)["block"] for line in lines)
    (folder / "windows.jsonl").write_text("".join(line for line in lines if json.loads(line)["block"] < last))

    assert main(["check", str(folder)]) == 3
    assert f"INVALID: windows.jsonl has no window of block {last}, which ended" in capsys.readouterr().out


@pytest.mark.parametrize("take", [Path.unlink, lambda events: events.write_bytes(b"")], ids=["file", "lines"])
def test_load_results__events_that_were_taken_away(folder, capsys, take):
    take(folder / "events.jsonl")

    assert main(["check", str(folder)]) == 3
    assert "events.jsonl is missing although windows were measured" in capsys.readouterr().out
