"""Every command that prints a result prints it as JSON too: one document alone on standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import orjson
import pytest

from perfgate.cli import COMMANDS, main, program
from tests.fakes.sessions import make_scenario, make_session, write_folder

ROOT = Path(__file__).parents[2]
BASELINE = ROOT / "perfgate/baselines/nvidia-h200-141gb/gpt-oss-20b-shape-closed-c16.json"
LOG = ROOT / "tests/fixtures/runs/matrix.log"
BASE, CANDIDATE = ([str(path) for path in (ROOT / "tests/fixtures/runs").glob(f"fusion_{arm}_*.txt")] for arm in ("off", "on"))
# What they print is for a workflow, a shell or a collector, or is nothing but the name of the file that they were given.
WITHOUT = {
    "completion": "a script for a shell",
    "export": "writes files; standard output stays empty",
    "github": "steps of workflows, which speak GitHub's own language",
    "kernels plug-in": "the name of the file that it wrote",
    "kernels tune": "writes a JSON file itself",
    "runner": "steps of an administrator's machine; `doctor` and `status` have JSON",
    "history": "its questions have JSON; what it appends is a count",
}


def list_leaves(group, path=()):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from list_leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_commands__have_json_or_a_reason():
    lacking = [
        name
        for name, command in list_leaves(program)
        if not any("json" in getattr(option.type, "choices", ()) for option in command.params)
    ]

    assert [name for name in lacking if name not in WITHOUT and name.split()[0] not in WITHOUT] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("json") / "slower", make_session(make_scenario(), worse=0.08, blocks=3))


SUBJECT = ["--repository", "o/r", "--pr", "7", "--head-sha", "a" * 40, "--run-id", "1", "--hardware", "test-gpu"]


@pytest.mark.parametrize(
    "case",
    [
        (["scenarios"], 0, None),
        (["engine", "show"], 0, "sglang"),
        (["model", "make", "tiny-qwen3-moe", "{tmp}/tiny"], 0, "experts"),
        (["baseline", "show", str(BASELINE)], 0, "metrics"),
        (["baseline", "diff", str(BASELINE), str(BASELINE)], 0, "after"),
        (["baseline", "verify", str(BASELINE)], 0, "whole"),
        (["check", "{folder}"], 1, "outcome"),
        (["report", "{folder}"], 0, "outcome"),
        (["explain", "{folder}", "p99_itl_ms"], 0, "sentences"),
        (["show", str(LOG)], 0, "runs"),
        (["compare", "--base", *BASE, "--candidate", *CANDIDATE], 3, "outcome"),
        (["handoff", "pack", "{folder}", "-o", "{tmp}", *SUBJECT], 0, "file"),
    ],
)
def test_command__json_stands_alone(tmp_path, folder, capsys, case):
    arguments, code, key = case
    words = [word.format(tmp=tmp_path, folder=folder) for word in arguments]

    assert main([*words, "--format", "json"]) == code
    found = orjson.loads(capsys.readouterr().out)
    assert key is None or key in found


@pytest.mark.parametrize(("shell", "variable"), [("bash", "COMP_WORDS"), ("zsh", "COMP_WORDS"), ("fish", "COMP_WORDS")])
def test_completion__the_script_asks_perfgate_and_perfgate_answers(capsys, shell, variable):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_PERFGATE_COMPLETE={shell}_complete" in script
    assert variable in script

    words = {"COMP_WORDS": "perfgate ex", "COMP_CWORD": "ex" if shell == "fish" else "1"}
    code = "import sys; from perfgate.cli import main; sys.exit(main([]))"
    environment = {**os.environ, **words, "_PERFGATE_COMPLETE": f"{shell}_complete"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert {"explain", "export"} <= set(done.stdout.replace(",", " ").split())


def test_completion__another_shell(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "'tcsh' is not one of" in capsys.readouterr().err


def test_commands__are_in_the_order_of_the_alphabet():
    assert list(COMMANDS) == sorted(COMMANDS)
