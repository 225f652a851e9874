"""`perfgate deps` on the command line: what is refused, and folders that take nothing."""

import sys
from importlib.metadata import version

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


@pytest.mark.parametrize(("name", "reason"), [("environments", "File exists"), ("journal.jsonl", "Is a directory")])
def test_deps__a_folder_that_takes_nothing(capsys, tmp_path, locks, name, reason):
    (tmp_path / "base.lock").write_text(f"click=={version('click')}\n")
    there, out = tmp_path / "out" / name, str(tmp_path / "out")
    there.parent.mkdir()
    there.touch() if name == "environments" else there.mkdir()

    assert main(["deps", *locks, "--engine", sys.executable, "--budget", "1", "--out", out, "--command", "true"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"perfgate: {out}: stopped, {reason} ({there}); correct that, then continue with --resume"
    )
