"""Every command that the documentation shows exists with those options, and those that need no server do what is said."""

import os
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from perfgate.cli import main, program
from perfgate.cli.reading.demo import RECORDINGS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
# These start servers or name files of the reader's own; their options are checked, they are not run.
NOT_RUN = {
    "ab",
    "bisect",
    "gate",
    "run",
    "matrix",
    "calibrate",
    "engine",
    "kernels",
    "ledger",
    "github",
    "handoff",
    "pack",
    "runner",
}
OWN_FILES = ("docs/how-to/compare.md", "docs/how-to/history.md")  # test_docs_history.py runs the latter in one go
EXPECTED = {
    "perfgate compare --base tests/fixtures/runs/fusion_off_*.txt --candidate tests/fixtures/runs/fusion_on_*.txt": 3,
    "perfgate check benchmarks/h200/serving/routed/mxfp4-mixed-c16-graphs-gpu-15": 1,
    "perfgate check benchmarks/h200/serving/routed/mxfp4-mixed-c16-graphs-gpu-15 --format json": 1,
    "perfgate check perfgate-demo/regression --format junit --output verdict.xml": 1,
    "perfgate compare perfgate-demo/pass perfgate-demo/inconclusive": 3,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model that the documentation makes; its weights are drawn once."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    assert main(["model", "make", "tiny-qwen3-moe", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def places(model, demos):
    """Where the reader of a page has got to: the model at its path, the demos at theirs."""
    return {"model": model, "demos": demos}


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """What the tutorials have made before: each recording, as `perfgate demo` leaves it."""
    folder = tmp_path_factory.mktemp("demos")
    for outcome in RECORDINGS:
        assert main(["demo", outcome, "--out", str(folder / outcome)]) == 0
    return folder


def list_commands():
    found = []
    for page in PAGES:
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL):
            name = str(page.relative_to(ROOT))
            found.extend((name, line[2:]) for line in block.splitlines() if line.startswith("$ perfgate"))
    return found


COMMANDS = list_commands()


def test_list_commands__finds_those_of_the_readme():
    assert sum(page == "README.md" for page, _ in COMMANDS) >= 10


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_docs__options_exist(page, line, tmp_path, monkeypatch):
    for name in ("sglang", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    name, *arguments = shlex.split(line, comments=True)[1:]
    command = program.get_command(click.Context(program), name)

    assert command is not None, f"{page}: {line}"
    while isinstance(command, click.Group) and (arguments or not command.invoke_without_command):
        name, *arguments = arguments
        command = command.get_command(click.Context(command), name)
        assert command is not None, f"{page}: {line}"
    command.make_context(name, arguments)


@pytest.mark.parametrize("line", [line for page, line in COMMANDS if page not in OWN_FILES and line.split()[1] not in NOT_RUN])
def test_docs__command_runs(line, places, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    if not line.startswith("perfgate demo"):
        (tmp_path / "perfgate-demo").symlink_to(places["demos"])
        (tmp_path / "perfgate-results").symlink_to(places["demos"])
    for name in ("tests", "benchmarks", "perfgate"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    if not line.startswith("perfgate model make"):
        shutil.copytree(places["model"], tmp_path / "build" / "tiny", copy_function=os.link)
    words = shlex.split(line, comments=True)[1:]
    code = main([found for word in words for found in (sorted(map(str, Path().glob(word))) or [word])])

    assert code == EXPECTED.get(line, 0), capsys.readouterr().err


def test_readme__says_what_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE))

    assert named <= targets
