"""Arms that run a working tree: installed for real, once for the same content."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfgate.cli.options import build_arms
from perfgate.core import Arm
from perfgate.errors import InputError
from perfgate.serving.engine.environments import find_package, ready_python

ENGINE = Path(sys.executable)
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "served-thing"
version = "1"
"""


def make_tree(folder, *, speed, below="python"):
    package = folder / below / "served_thing"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"SPEED = {speed}\n")
    (folder / below / "pyproject.toml").write_text(PROJECT)
    return folder


def ask(python):
    """What the package says in that environment."""
    done = subprocess.run(
        [python, "-c", "import served_thing; print(served_thing.SPEED)"], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def arms_of(**options):
    nothing = {"python": sys.executable, "candidate_python": None, "args": (), "candidate_args": (), "env": ()}
    return build_arms({**nothing, "candidate_env": (), "candidate_inject": None, **options})


def test_build_arms__a_working_tree_for_the_candidate(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))

    arms = arms_of(candidate_checkout=make_tree(tmp_path / "change", speed=2))

    assert arms[Arm.BASE].python == sys.executable
    assert ask(arms[Arm.CANDIDATE].python) == 2


def test_build_arms__a_working_tree_for_both_and_another_for_the_candidate(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    trees = {name: make_tree(tmp_path / name, speed=speed) for name, speed in (("main", 1), ("change", 2))}

    arms = arms_of(checkout=trees["main"], candidate_checkout=trees["change"])
    same = arms_of(checkout=trees["main"])

    assert [ask(arms[arm].python) for arm in (Arm.BASE, Arm.CANDIDATE)] == [1, 2]
    assert same[Arm.CANDIDATE].python == same[Arm.BASE].python == arms[Arm.BASE].python


def test_ready_python__made_once_until_the_tree_changes(tmp_path):
    tree, state = make_tree(tmp_path / "tree", speed=1, below="."), tmp_path / "state"

    first = ready_python(tree, ENGINE, state)
    (tree / "served_thing" / "__pycache__").mkdir()
    (tree / "served_thing" / "__pycache__" / "old.pyc").write_bytes(b"made by running it")
    again = ready_python(tree, ENGINE, state)
    (tree / "served_thing" / "__init__.py").write_text("SPEED = 3\n")
    changed = ready_python(tree, ENGINE, state)

    assert first == again != changed
    assert (ask(first), ask(changed)) == (1, 3)


def test_ready_python__where_no_state_can_be_kept(tmp_path):
    tree = make_tree(tmp_path / "tree", speed=1, below=".")
    (tmp_path / "file").touch()

    with pytest.raises(
        InputError, match=r"PERFGATE_STATE .*file/arms: cannot be written \(Not a directory\); choose another place"
    ):
        ready_python(tree, ENGINE, tmp_path / "file")


def test_ready_python__an_attempt_that_was_cut_off_is_made_again(tmp_path):
    tree, state = make_tree(tmp_path / "tree", speed=1), tmp_path / "state"
    python = ready_python(tree, ENGINE, state)
    (python.parents[1] / "ready").unlink()
    (python.parents[1] / "lib" / "half").mkdir(parents=True)

    assert ask(ready_python(tree, ENGINE, state)) == 1
    assert not (python.parents[1] / "lib" / "half").exists()


def test_ready_python__names_the_commit(tmp_path):
    tree = make_tree(tmp_path / "tree", speed=1)
    git = ["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})
    sha = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()

    assert ready_python(tree, ENGINE, tmp_path / "state").parents[1].name.startswith(f"{sha}-")


def test_find_package__a_folder_without_one(tmp_path):
    with pytest.raises(InputError, match=r"holds no pyproject\.toml; give the folder of a package"):
        find_package(tmp_path)
