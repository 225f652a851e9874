"""Every command that prints a result prints it as JSON too: one document alone on standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import orjson
import pytest

from perfgate.cli import COMMANDS, SECTIONS, main, program
from perfgate.cli.output import fit_screen
from tests.fakes.recorded import BASELINE, EQUAL, ROOT, SLOWER, VOID
from tests.fakes.sessions import make_scenario, make_session, write_folder

LOG = ROOT / "tests/fixtures/runs/matrix.log"
BASE, CANDIDATE = ([str(path) for path in (ROOT / "tests/fixtures/runs").glob(f"fusion_{arm}_*.txt")] for arm in ("off", "on"))
# By full name, so that a new command of a group needs the option or a reason of its own.
WITHOUT = {
    "completion": "prints a script for a shell",
    "demo": "is for people; `check` of the folder that it makes prints JSON",
    "engine table": "prints a page of markdown; the records are JSON",
    "export": "writes files, with formats of its own; standard output stays empty",
    "ledger show": "prints a page of markdown; `check` of each session prints JSON",
    "pack": "moves files; standard output stays empty",
    "scenarios new": "writes a file; standard output stays empty",
    "scenarios show": "prints a TOML text",
    "schema": "prints JSON, and nothing else",
    "runner lock": "standard output is that of the command it runs",
    "runner run-once": "becomes GitHub's runner",
    "runner status": "prints JSON unless told --prometheus",
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

    assert sorted(lacking) == sorted(WITHOUT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("json") / "slower", make_session(make_scenario(), worse=0.08, blocks=3))


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """Settings of a machine, with a compile cache that a seed can be made of."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "kernel").write_text("code")
    (tmp_path / "runner.toml").write_text(f'repositories = ["o/r"]\nstate = "{tmp_path}/state"\ncache = "{tmp_path}/cache"\n')
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(tmp_path / "runner.toml"))
    monkeypatch.setattr("perfgate.runner.setup.seeds.read_toolchain", lambda: ("580.95.05", "sm90"))


def ask(capsys, *words, code=0):
    """Run a command with --format json; standard output must hold one document and nothing else."""
    assert main([*map(str, words), "--format", "json"]) == code
    return orjson.loads(capsys.readouterr().out)


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


def test_history__json_says_what_was_stored(tmp_path, capsys):
    measured, store = SLOWER, ["--store", tmp_path / "store"]

    (first,) = ask(capsys, "history", "append", measured, *store)["sessions"]
    (again,) = ask(capsys, "history", "append", measured, *store)["sessions"]
    overruled = ask(capsys, "history", "override", first["session"][:8], *store, "--by", "ada", "--reason", "on purpose")
    merged = ask(capsys, "history", "compact", *store)
    past = ask(capsys, "history", "import", LOG, *store, "--hardware", "a-gpu", "--at", "2025-11-20")

    assert (first["outcome"], first["windows"], first["added"]) == ("REGRESSION", 29, True)
    assert again == {**first, "added": False}
    assert overruled == {"person": "ada", "reason": "on purpose", "ruling": "false alarm", "session": first["session"]}
    assert merged["files"] <= merged["files_before"]
    assert past["read"] == past["added"] > 0 == past["already_there"]


def test_plug_in__json_names_the_file(tmp_path, capsys):
    assert Path(ask(capsys, "kernels", "plug-in", tmp_path / "site")["file"]).exists()


@pytest.mark.usefixtures("runner")
def test_runner_cache__json_says_what_became_of_a_seed(tmp_path, capsys):
    made = ask(capsys, "runner", "cache", "seed", tmp_path / "compiled", "--key", "a")
    verified = ask(capsys, "runner", "cache", "verify", "--key", "a")
    lent = ask(capsys, "runner", "cache", "lend", tmp_path / "job", "--key", "a")
    empty = ask(capsys, "runner", "cache", "lend", tmp_path / "other")
    deleted = ask(capsys, "runner", "cache", "prune", "--keep", "0")

    assert Path(made["seed"]) == tmp_path / "cache" / "a"
    assert verified == {"files": 1, "key": "a"}
    assert lent == {"files": 1, "key": "a", "target": str(tmp_path / "job")}
    assert empty == {"files": 0, "key": None, "target": str(tmp_path / "other")}
    assert deleted == {"deleted": ["a"]}
    assert ask(capsys, "runner", "cache", "key")["key"].startswith("sm90-580.95.05-")


@pytest.mark.usefixtures("runner")
def test_hook__json_says_what_is_left(capsys):
    assert ask(capsys, "runner", "hook", "completed") == {"findings": []}


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


@pytest.fixture
def screen(capsys, monkeypatch):
    """Make standard output a terminal of so many columns."""

    def make(columns):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.delenv("NO_COLOR", raising=False)
        return capsys

    return make


def is_whole(line):
    """Commands to paste stay whole, and words."""
    return line.startswith(("perfgate ", "  perfgate ")) or " " not in line.strip()


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize(
    "words",
    [
        ["demo", "regression", "--out", "demo"],
        ["check", str(SLOWER)],
        ["check", str(VOID)],
        ["report", str(SLOWER), "--format", "text"],
        ["explain", str(SLOWER)],
        ["explain", str(VOID)],
        ["compare", "--base", *BASE, "--candidate", *CANDIDATE],
        ["list", str(ROOT / "benchmarks/h200/serving/routed")],
        ["list"],
        ["scenarios"],
        ["doctor"],
        ["plan", "--changed", "python/sglang/srt/managers/scheduler.py"],
        ["power", "--baseline", str(BASELINE)],
        ["power", "--design", "--from", str(EQUAL)],
        ["show", str(LOG)],
        ["show", *BASE],
        ["baseline", "list"],
        ["baseline", "show", str(BASELINE)],
        ["baseline", "verify", str(BASELINE)],
        ["engine", "show"],
    ],
    ids=lambda words: " ".join(words[:2])[:40],
)
def test_command__fits_a_terminal(tmp_path, screen, monkeypatch, words, columns):
    monkeypatch.chdir(tmp_path)
    terminal = screen(columns)
    main(words)
    lines = click.unstyle(terminal.readouterr().out).splitlines()

    assert lines
    assert [line for line in lines if len(line) > columns and not is_whole(line)] == []


@pytest.mark.parametrize("columns", ["0", "-5", "1"])
def test_command__on_a_terminal_that_tells_no_width(screen, monkeypatch, columns):
    terminal = screen(80)
    monkeypatch.setenv("COLUMNS", columns)

    assert main(["check", str(SLOWER)]) == 1
    assert "REGRESSION" in terminal.readouterr().out


def test_command__a_path_that_is_no_utf_8(tmp_path, capsys):
    assert main(["check", str(tmp_path / os.fsdecode(b"bad\xff"))]) == 2
    assert capsys.readouterr().err == (f"perfgate: RESULT_DIR: {tmp_path}/bad? is no UTF-8; rename it, or set LC_ALL=C.UTF-8\n")


@pytest.mark.parametrize(
    ("words", "coloured"),
    [
        (["check", str(SLOWER)], click.style("REGRESSION", fg="red", bold=True)),
        (["explain", str(SLOWER)], click.style("REGRESSION", fg="red", bold=True)),
        (["explain", str(VOID)], click.style("INVALID", fg="magenta", bold=True)),
        (["compare", BASE[0], CANDIDATE[0]], click.style("INCONCLUSIVE", fg="yellow", bold=True)),
    ],
    ids=lambda one: " ".join(one[:1]) if isinstance(one, list) else "",
)
def test_command__colours_the_outcome_on_a_terminal(screen, monkeypatch, words, coloured):
    terminal = screen(80)
    main(words)
    assert coloured in terminal.readouterr().out

    monkeypatch.setenv("NO_COLOR", "1")
    main(words)
    assert coloured not in terminal.readouterr().out


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("where     nothing of it is known here", ["where     nothing of it", "          is known here"]),
        ("[1] Mean ITL is shown only, no more", ["[1] Mean ITL is shown", "    only, no more"]),
        ("a_name_of_twenty_one  and a title of it", ["a_name_of_twenty_one", "    and a title of it"]),
        ("perfgate explain folder metric  # what the cause is", ["perfgate explain folder metric", "  # what the cause is"]),
        ("  perfgate doctor    # on this machine", ["  perfgate doctor", "    # on this machine"]),
        ("  a/path/that/is/as/long/as/this: one", ["  a/path/that/is/as/long/as/this:", "  one"]),
        ("\u2502 a cell \u2502 another cell \u2502", ["\u2502 a cell \u2502 another cell \u2502"]),
    ],
)
def test_fit_screen__folds_a_line_below_its_label(line, folded):
    assert fit_screen(line, 24, has_colour=False).split("\n") == folded


def test_fit_screen__what_a_runner_reads_stays_one_line_without_colour():
    line = "::error title=perfgate unit%3A REGRESSION::Median ITL is slower by 22.1 %25"

    assert fit_screen(line, 24, has_colour=True) == line
    assert "\x1b" in fit_screen("REGRESSION", 24, has_colour=True)


def test_commands__each_in_one_section():
    assert sum(map(len, SECTIONS.values())) == len(COMMANDS)
