"""`perfgate scheduler` on the command line: what is refused before an arm is driven."""

import sys

import pytest

from perfgate.cli import main
from perfgate.results.profiling.host_counts import HOST_FILE, load_host
from perfgate.results.profiling.profiles import read_attribution
from tests.fakes.folders import write_profiled
from tests.scheduler.test_judge import make_work


@pytest.mark.parametrize(
    ("accepted", "message"),
    [
        ("scheduler.decode_step.instructions", "has no reason"),
        ("speed: we like it", "speed: is no key that can be lost"),
    ],
)
def test_scheduler__an_acceptance_that_cannot_be_used(capsys, accepted, message):
    code = main(["scheduler", "--base", sys.executable, "--candidate", sys.executable, "--accept", accepted])

    assert code == 2
    assert message in capsys.readouterr().err


def test_scheduler__an_arm_that_is_none(capsys, tmp_path):
    code = main(["scheduler", "--base", sys.executable, "--candidate", str(tmp_path)])

    assert code == 2
    assert "--candidate" in capsys.readouterr().err


ARMS = ("--base", sys.executable, "--candidate", sys.executable)


def test_scheduler__keeps_the_instructions_with_the_profiles_of_a_session(capsys, monkeypatch, tmp_path):
    write_profiled(tmp_path / "out")
    monkeypatch.setattr("perfgate.cli.measuring.scheduler.measure_arms", lambda *_: (make_work(), make_work()))
    code = main(["scheduler", *ARMS, "--into", str(tmp_path / "out")])
    found = read_attribution(tmp_path / "out")

    assert (code, capsys.readouterr().err) == (0, "")
    assert {(one.part, one.base, one.change) for one in found.host} == {
        (part, 2_004_000.0, 0.0) for part in ("scheduler", "detokenizer", "tokenizer_manager")
    }


def test_scheduler__a_folder_that_is_no_session_is_refused_before_an_arm_is_driven(capsys, tmp_path):
    code = main(["scheduler", *ARMS, "--into", str(tmp_path)])

    assert code == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_load_host__damaged(tmp_path):
    write_profiled(tmp_path / "out")
    (tmp_path / "out" / HOST_FILE).write_text('{"counts": [{"part": "kernel", "base": 1.0, "candidate": 1.0}]}')

    assert load_host(tmp_path) == ()
    assert "host.json" in read_attribution(tmp_path / "out")
