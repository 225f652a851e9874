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
from perfgate.scenario.catalog import read_scenario_text

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
TRACKED = ("benchmarks/", "perfgate/", "tests/", "docs/", "deploy/")
OWN_NOISE = {"perfgate power --scenario mine.toml --effect 0.03"}  # what the command before it measured
OWN_FILES = ("docs/how-to/compare.md", "docs/how-to/history.md")  # test_docs_history.py runs the latter in one go
EXPECTED = {
    "perfgate compare --base tests/fixtures/runs/fusion_off_*.txt --candidate tests/fixtures/runs/fusion_on_*.txt": 3,
    "perfgate check benchmarks/h100/serving/mxfp4-mixed-c16-gpu-15-profiled": 1,
    "perfgate check benchmarks/h100/serving/mxfp4-mixed-c16-gpu-15-profiled --format json": 1,
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


def list_commands(pattern, command):
    """Each command with its page; `pattern` finds the parts of a page that hold some."""
    return sorted(
        {
            (str(page.relative_to(ROOT)), line.strip())
            for page in PAGES
            for part in pattern(page.read_text(encoding="utf-8"))
            for line in re.findall(command, part.replace("\\\n", " "), flags=re.MULTILINE)
        }
    )


def find_blocks(language):
    return re.compile(rf"^ *```{language}\n(.*?)```", flags=re.DOTALL | re.MULTILINE).findall


def find_prose(page):
    """A page without its blocks, and without the messages that troubleshooting lists."""
    return [re.sub(r"^ *```.*?```|^Messages: .*?$", "", page, flags=re.DOTALL | re.MULTILINE)]


COMMANDS = list_commands(find_blocks("console"), r"^ *\$ (perfgate .*)$")
SCRIPTS = list_commands(find_blocks("sh"), r"(?:^|[|;&]) *(perfgate [^|;&<>#\n]*)")
INLINE = [
    (page, line)
    for page, line in list_commands(find_prose, r"`(perfgate [a-z][^`|<>]*)[^`]*`")
    # A status of GitHub, and lines of a log.
    if not line.startswith(("perfgate verdict", "perfgate moe active"))
]
# Words that stand for the reader's own, where their form is checked.
STAND_IN = {"NAME": "cpu-moe", "SCENARIO": "cpu-moe", "KIND:SIZE": "gpu:15"}
LACKING = (click.BadOptionUsage, click.MissingParameter, click.exceptions.Exit, click.exceptions.NoArgsIsHelpError)
# Scenarios that a page has made, and a name that an import gives.
OWN_SCENARIOS = {"mine.toml", "fusion-off"}


def test_list_commands__finds_those_of_the_readme():
    assert sum(page == "README.md" for page, _ in COMMANDS) >= 10
    assert ("README.md", "perfgate demo") in SCRIPTS
    assert ("docs/troubleshooting.md", "perfgate power --scenario NAME") in INLINE


@pytest.mark.parametrize(("page", "line"), sorted({*COMMANDS, *SCRIPTS, *INLINE}))
def test_docs__options_exist(page, line, tmp_path, monkeypatch):
    for name in ("sglang", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    is_whole = (page, line) not in INLINE
    words = [STAND_IN.get(word, word) for word in shlex.split(line, comments=True)[1:] if word != "..."]
    name, command = "perfgate", program
    while isinstance(command, click.Group) and (words or is_whole) and not (words and words[0].startswith("-")):
        if not words and command.invoke_without_command:
            break
        name, *words = words
        command = command.get_command(click.Context(command), name)
        assert command is not None, f"{page}: {line}"
    try:
        context = command.make_context(name, words)
    except LACKING:
        # A sentence may name a command without all that it needs.
        assert not is_whole, f"{page}: {line}"
    else:
        check_scenarios(context.params)
    missing = [word for word in words if word.startswith(TRACKED) and "=" not in word and not list(ROOT.glob(word))]
    assert missing == [], f"{page}: {line}"


def check_scenarios(params):
    """Every scenario that a command names is there."""
    given = [params.get(name) for name in ("scenario", "scenario_name", "scenarios")]
    for name in (one for value in given if value for one in ([value] if isinstance(value, str) else value)):
        if name not in OWN_SCENARIOS:
            read_scenario_text(str(ROOT / name) if "/" in name else name)


RUN = [line for page, line in COMMANDS if page not in OWN_FILES and line.split()[1] not in NOT_RUN and line not in OWN_NOISE]


@pytest.mark.parametrize("line", RUN)
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
