"""Every command that a help, a comment, a page or a demo prints runs, or names what is there."""

from __future__ import annotations

import html
import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from perfgate.cli import main, program
from perfgate.cli.examples import EXAMPLES
from perfgate.cli.reading.demo import RECORDINGS
from perfgate.scenario.catalog import read_scenario_text
from tests.fakes.recorded import BASELINE, ROOT, bring_unfused

RUNS = ROOT / "tests" / "fixtures" / "runs"
RECORDED = {
    "REGRESSION": "benchmarks/h100/serving/mxfp4-mixed-c16-gpu-15-profiled",
    "PASS": "benchmarks/h200/serving/routed/mxfp4-mixed-c16-graphs-aa-2",
    "INCONCLUSIVE": "benchmarks/h200/serving/routed/mxfp4-closed-c16-aa-2-m2",
    "INVALID": "benchmarks/h200/serving/routed/dummy-closed-c16",
}
# These start servers: what they name has to be there, but for what only the reader has.
SERVING = {"gate", "calibrate", "bisect"}
OWN = {"PATH_TO_MODEL", "GOOD", "BAD"}
# Examples that measure, need another tool or service, or name what only a reader has; their words are parsed all the same.
NOT_RUN = {
    *("ab", "bisect", "calibrate", "deps", "gate", "kernels", "matrix", "resolve", "run", "scheduler"),
    *("engine bump", "engine install", "engine try", "github", "handoff", "history override", "ledger add", "pack", "runner"),
}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))


def prepare(folder):
    """What the examples name."""
    main(["demo"])
    for outcome in ("pass", "inconclusive"):
        main(["demo", outcome])
    for name, source in {"before": "fusion_off_1.txt", "after": "fusion_on_1.txt"}.items():
        shutil.copy(RUNS / source, folder / f"{name}.jsonl")
        shutil.copy(RUNS / source.replace("1", "2"), folder / f"{name}_1.jsonl")
    for name in ("baseline", "old", "new"):
        shutil.copy(BASELINE, folder / f"{name}.json")
    for name in ("benchmarks", "perfgate"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "perfgate-results").mkdir()


def test_examples__parse(tmp_path, monkeypatch):
    prepare(tmp_path)
    monkeypatch.setenv("GITHUB_REPOSITORY", "o/r")
    monkeypatch.setenv("GITHUB_RUN_ID", "1")
    for tree in ("sglang", "sglang-main"):
        (tmp_path.parent / tree).mkdir(exist_ok=True)
    for name, lines in EXAMPLES.items():
        for line in lines:
            words = shlex.split(line.partition(" < ")[0])[1:]
            command = program
            while isinstance(command, click.Group) and words:
                found = command.get_command(click.Context(command), words[0])
                assert found is not None, line
                command, words = found, words[1:]
            if isinstance(command, click.Command) and not isinstance(command, click.Group):
                command.make_context(name, words)


def test_examples__run(tmp_path, capsys):
    prepare(tmp_path)
    for name, lines in EXAMPLES.items():
        for line in lines:
            words = shlex.split(line.partition(" < ")[0])[1:]
            if " < " in line or {words[0], " ".join(words[:2])} & NOT_RUN:
                continue
            expanded = [path for word in words for path in (sorted(map(str, tmp_path.glob(word))) if "*" in word else [word])]
            code = main(expanded)
            assert code in {0, 1, 3}, f"{name}: {line}: {capsys.readouterr().err}"


@pytest.mark.parametrize("outcome", RECORDINGS)
def test_demo__commands_that_it_tells_next_run(outcome, capsys):
    main(["demo", outcome])
    told = capsys.readouterr().out.partition("next:\n")[2]
    lines = [shlex.split(line, comments=True) for line in told.splitlines()]

    assert len(lines) == 3
    assert [main(line[1:]) for line in lines] == [0, 0, 0], capsys.readouterr().err


def list_told(folder, page, capsys):
    """Each command that the comment and the page of a result folder print."""
    assert main(["report", folder]) == main(["report", folder, "--html", str(page)]) == 0
    comment = re.findall(r"^(perfgate .*)$|`(perfgate [^`]+)`", capsys.readouterr().out, flags=re.MULTILINE)
    shown = re.findall(r'<p class="command">.*?<code>(.*?)</code>', page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = (*(line or inline for line, inline in comment), *map(html.unescape, shown))
    # Comment and page print the same ones, of which one says behind the line what it is for.
    return sorted({shlex.join(shlex.split(line, comments=True)) for line in lines})


@pytest.mark.parametrize("folder", RECORDED.values(), ids=RECORDED)
def test_report__every_command_that_it_prints_runs_or_names_what_is_there(folder, tmp_path, capsys):
    require_told(folder, tmp_path, capsys)


def test_report__the_same_of_a_regression_of_a_scenario_that_does_not_ship(tmp_path, capsys):
    require_told(str(bring_unfused()), tmp_path, capsys)


def require_told(folder, tmp_path, capsys):
    """Each command that the reports of a folder print runs, or names what is there."""
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    told = list_told(folder, tmp_path / "page.html", capsys)

    assert any(line.startswith("perfgate check") for line in told)
    for line in told:
        # A later session, which only the reader has, is given as this one is.
        words = [folder if word == "RESULT_DIR" else word for word in shlex.split(line)[1:] if word not in OWN]
        if words[0] in SERVING:
            scenario = words[words.index("--scenario") + 1] if "--scenario" in words else words[1]
            read_scenario_text(scenario)
            assert [word for word in words if "/" in word and not Path(word).exists()] == [], line
        else:
            code, err = main(words), capsys.readouterr().err
            # Recorded sessions were stored since.
            is_stored = words[0] == "baseline" and "is in the baseline already" in err
            assert code in ((0, 1, 3) if words[0] == "check" else (0,)) or is_stored, f"{line}: {err}"
