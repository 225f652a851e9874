"""The page on the history, from its first command to its last, in one folder: each finds what the one before left."""

import re
import shlex
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.history.schema import OVERRIDES, VERDICTS, WINDOWS, build_schema

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "history.md").read_text()
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
OVERRIDE = re.search(r"^perfgate history override .*$", PAGE, flags=re.MULTILINE)[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in ("tests", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("RUNNER_NAME", raising=False)
    return tmp_path


def run(line):
    words = shlex.split(line)[1:]
    return main([found for word in words for found in (sorted(map(str, Path().glob(word))) if "*" in word else [word])])


def test_page__commands_run_one_after_the_other(folder, capsys):
    assert len(COMMANDS) >= 6
    for line in [*COMMANDS, OVERRIDE, "perfgate history show --store past"]:
        assert run(line) == 0, f"{line}: {capsys.readouterr().err}"

    out = capsys.readouterr().out
    assert (folder / "history.html").stat().st_size > 10_000
    assert "ruled false alarm by a maintainer: the candidate was slowed down on purpose" in out


def test_page__names_the_tables_that_there_are():
    for table in (WINDOWS, VERDICTS, OVERRIDES):
        assert f"{{store}}/{table}/" in PAGE

    columns = set(build_schema(WINDOWS).names) | {"scenario", "hardware"}
    query = re.search(r"```sql\n(.*?)```", PAGE, flags=re.DOTALL)[1]
    assert {"scenario", "hardware", "begun", "output_tok_per_s", "judged", "arm"} <= columns & set(re.findall(r"\w+", query))
