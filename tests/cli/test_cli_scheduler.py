"""`perfgate scheduler` on the command line: what is refused before an arm is driven."""

import sys

import pytest

from perfgate.cli import main


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
