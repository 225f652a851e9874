"""`perfgate deps` on the command line: what is refused before anything is installed."""

import sys

import pytest

from perfgate.cli import main


@pytest.fixture
def locks(tmp_path):
    for name, pins in (("base.lock", "click==0.1\n"), ("candidate.lock", "click==0.2\n")):
        (tmp_path / name).write_text(pins)
    return [str(tmp_path / "base.lock"), str(tmp_path / "candidate.lock")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --scenario"),
        (["--scenario", "cpu-moe", "--windows", "2"], "--windows: has no effect with --scenario"),
        (["--command", "true", "--model", "there"], "--model: has no effect with --command"),
        (["--command", "true"], f"--engine {sys.executable}: has click"),
    ],
)
def test_deps__options_that_cannot_be_used(capsys, tmp_path, locks, words, message):
    given = ["deps", *locks, "--engine", sys.executable, "--budget", "1", "--out", str(tmp_path / "out"), *words]

    assert main(given) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
