"""Real repositories: the line between two commits, and why there is none."""

from __future__ import annotations

import shutil

import pytest

from perfgate.bisection.repository import copy_commit, read_line
from perfgate.errors import InputError
from tests.fakes.repositories import commit, git, grow, make_repository


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """Four commits, then a side branch of two that a merge brings in, then one more."""
    folder = make_repository(tmp_path_factory.mktemp("origin") / "repo")
    grow(folder, 3, lambda number: {"file": f"{number}\n"})
    git(folder, "switch", "--quiet", "--create", "side", "main~1")
    commit(folder, {"side": "1"}, "side 1")
    commit(folder, {"side": "2"}, "side 2")
    git(folder, "switch", "--quiet", "main")
    git(folder, "merge", "--quiet", "--no-ff", "--message", "merge side", "side")
    commit(folder, {"file": "last"}, "last\u2028 one")
    return folder


@pytest.fixture
def repo(origin, tmp_path):
    return shutil.copytree(origin, tmp_path / "repo")


def test_read_line__follows_first_parents(repo):
    line = read_line(repo, "main~4", "main")

    assert line.good.subject == "change 1"
    assert [one.subject for one in line.commits] == ["change 2", "change 3", "merge side", "last\u2028 one"]
    assert [one.is_merge for one in line.commits] == [False, False, True, False]
    assert line.find(0) == line.good
    assert line.find(4).sha == git(repo, "rev-parse", "main")


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ("v9", "main", "GOOD v9: names no commit in"),
        ("main~1", "--all", "BAD --all: names no commit in"),
        ("main:file", "main", "GOOD main:file: names no commit"),
        ("main", "main^0", "are the same commit"),
        ("main", "main~3", "is newer than BAD"),
        ("main~2", "side", "is no ancestor of BAD"),
        ("side", "main", "^1 as GOOD"),
    ],
)
def test_read_line__no_line(repo, good, bad, words):
    with pytest.raises(InputError, match=r"GOOD|BAD") as caught:
        read_line(repo, good, bad)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_read_line__names_the_merge_that_brought_good_in(repo):
    with pytest.raises(InputError, match=git(repo, "rev-parse", "main~1")[:12]):
        read_line(repo, "side~1", "main")


def test_read_line__unrelated_commits(repo):
    git(repo, "switch", "--quiet", "--orphan", "other")
    commit(repo, {"file": "1"}, "another beginning")

    with pytest.raises(InputError, match="no commit in common"):
        read_line(repo, "main", "other")


def test_read_line__a_changed_file(repo):
    (repo / "file").write_text("changed")

    with pytest.raises(InputError, match="changes of 1 file belong to no commit and would not be measured; commit"):
        read_line(repo, "main~2", "main")


def test_read_line__files_that_git_does_not_know_do_not_count(repo):
    (repo / "new").write_text("new")

    assert len(read_line(repo, "main~2", "main").commits) == 2


def test_read_line__a_shallow_clone(repo, tmp_path):
    git(tmp_path, "clone", "--quiet", "--depth", "2", f"file://{repo}", "shallow")

    with pytest.raises(InputError, match=r"shallow clone.*--unshallow"):
        read_line(tmp_path / "shallow", "main~1", "main")


@pytest.mark.parametrize(("name", "words"), [("none", "no such folder"), ("plain", "no git repository")])
def test_read_line__no_repository(tmp_path, name, words):
    (tmp_path / "plain").mkdir()

    with pytest.raises(InputError, match=words):
        read_line(tmp_path / name, "a", "b")


def test_copy_commit__leaves_the_repository_as_it_was(repo, tmp_path):
    sha = git(repo, "rev-parse", "main~4")
    before = git(repo, "for-each-ref"), git(repo, "worktree", "list")
    copy_commit(repo, sha, tmp_path / "copies" / "one")

    assert (tmp_path / "copies" / "one" / "file").read_text() == "1\n"
    assert git(tmp_path / "copies" / "one", "rev-parse", "HEAD") == sha
    assert (git(repo, "for-each-ref"), git(repo, "worktree", "list")) == before


def test_copy_commit__what_fails_leaves_nothing(repo, tmp_path):
    with pytest.raises(InputError, match="git checkout: failed"):
        copy_commit(repo, "0" * 40, tmp_path / "copy")

    assert not (tmp_path / "copy").exists()
