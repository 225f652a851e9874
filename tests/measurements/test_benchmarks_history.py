"""Sessions that left the working tree come back whole; and the made store by which questions to a history are timed."""

import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks import history
from perfgate.errors import InputError
from perfgate.history.schema import build_schema

# Not imported: `benchmarks.history` is the module beside the folder.
MADE = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "history" / "make_store.py"))


@pytest.fixture
def commit(tmp_path, monkeypatch):
    """A repository whose first commit holds two sessions, and its second none."""
    root = tmp_path / "clone"
    for name in ("one/raw", "two/raw"):
        (root / "sessions" / name).parent.mkdir(parents=True)
        (root / "sessions" / name).write_text(name)
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in ("init -q", "add -A", "commit -q -m one", "rm -q -r .", "commit -q -m two"):
        subprocess.run([*git, *words.split()], check=True)
    monkeypatch.setattr(history, "ROOT", root)
    monkeypatch.setattr(history, "PLACE", tmp_path / "history")
    return subprocess.run([*git, "rev-parse", "HEAD~1"], check=True, capture_output=True, text=True).stdout.strip()


def read(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_restore__completes_what_is_there_in_part(commit):
    assert read(history.restore(commit, "sessions/one")) == {"raw": "one/raw"}
    assert read(history.restore(commit, "sessions")) == {"one/raw": "one/raw", "two/raw": "two/raw"}


def test_restore__leaves_alone_what_is_whole(commit):
    raw = history.restore(commit, "sessions") / "one" / "raw"
    before = raw.stat().st_ino

    assert history.restore(commit, "sessions") == raw.parents[1]
    assert raw.stat().st_ino == before


@pytest.mark.parametrize("folder", ["sessions", "nowhere"])
def test_restore__says_what_this_clone_lacks(commit, folder):
    wanted = "0" * 40 if folder == "sessions" else commit

    with pytest.raises(InputError, match=f"{folder}: lies in the history at {wanted}, which this clone lacks"):
        history.restore(wanted, folder)


def test_make_tables__have_the_columns_of_today():
    month = next(MADE["list_partitions"](20_000))

    made = MADE["make_tables"](month, np.random.default_rng(1))

    assert {name: table.schema for name, table in made.items()} == {name: build_schema(name) for name in made}
    assert {name: table.num_rows for name, table in made.items()} == {"windows": 60, "verdicts": 3}
