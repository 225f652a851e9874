"""The commits between GOOD and BAD, as git lists them, and copies of the repository at one of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfgate.errors import InputError
from perfgate.machine.tools import Ended, Tool
from perfgate.storage.rounding import format_count

_GIT = Tool(timeout_s=600.0)
SHORT = 12
"""How many digits name a commit to people and in file names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit of the line that is searched."""

    sha: str
    subject: str
    is_merge: bool = False

    @property
    def short(self) -> str:
        """The digits that people see."""
        return self.sha[:SHORT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """GOOD, and the commits after it on BAD's first-parent line, oldest first; the last one is BAD."""

    good: Commit
    commits: tuple[Commit, ...]

    def find(self, place: int) -> Commit:
        """The commit at a place: 0 is GOOD."""
        return self.commits[place - 1] if place else self.good


def read_line(repo: Path, good: str, bad: str) -> Line:
    """Read the line from GOOD to BAD. Raise InputError where there is none that could be searched, with what to do."""
    _require_whole(repo)
    first, last = (_resolve(repo, role, name) for role, name in (("GOOD", good), ("BAD", bad)))
    _require_ancestor(repo, first, last)
    log = _ask(repo, "log", "--first-parent", "--reverse", "--format=%H%x00%P%x00%s", f"{first.sha}..{last.sha}")
    rows = [row.split("\0") for row in log.split("\n")]
    if rows[0][1].split()[0] != first.sha:
        raise InputError(_explain_side_line(repo, first, last, [row[0] for row in rows]))
    commits = tuple(Commit(sha=sha, subject=subject, is_merge=" " in parents) for sha, parents, subject in rows)
    return Line(good=first, commits=commits)


def copy_commit(repo: Path, sha: str, target: Path) -> None:
    """Check one commit out into the new folder `target`, a clone that borrows the objects of `repo`.

    A clone leaves nothing behind in the user's repository, and a build finds the history and tags that it may ask for. Raise
    InputError with git's last word when that fails; `target` is then gone.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _ask(repo, "clone", "--quiet", "--shared", "--no-checkout", str(repo.resolve()), str(target.resolve()))
        _ask(target, "checkout", "--quiet", "--detach", sha)
    except InputError:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _require_whole(repo: Path) -> None:
    if not repo.is_dir():
        raise InputError(f"--repo {repo}: no such folder; give the repository that holds GOOD and BAD")
    if _run(repo, "rev-parse", "--git-dir").code:
        raise InputError(f"--repo {repo}: no git repository; give the one that holds GOOD and BAD")
    if _ask(repo, "rev-parse", "--is-shallow-repository") == "true":
        raise InputError(f"--repo {repo}: a shallow clone, which may lack commits between; `git fetch --unshallow` gets them")
    is_bare = _ask(repo, "rev-parse", "--is-bare-repository") == "true"
    changed = "" if is_bare else _ask(repo, "status", "--porcelain", "--untracked-files=no")
    if changed:
        count = len(changed.splitlines())
        raise InputError(
            f"--repo {repo}: changes of {format_count(count, 'file')} belong to no commit and would not be measured; "
            "commit or stash them"
        )


def _resolve(repo: Path, role: str, name: str) -> Commit:
    found = _run(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found.code:
        raise InputError(
            f"{role} {name}: names no commit in {repo}; `git fetch` it, or give a hash, a tag or a branch that is there"
        )
    sha = found.text.strip()
    return Commit(sha=sha, subject=_ask(repo, "log", "-1", "--format=%s", sha))


def _require_ancestor(repo: Path, good: Commit, bad: Commit) -> None:
    if good.sha == bad.sha:
        raise InputError(f"GOOD and BAD are the same commit, {good.short}; there is nothing between them")
    if _is_ancestor(repo, good, bad):
        return
    if _is_ancestor(repo, bad, good):
        raise InputError(f"GOOD {good.short} is newer than BAD {bad.short}; give the older, faster commit first")
    base = _run(repo, "merge-base", good.sha, bad.sha).text.strip()[:SHORT]
    advice = f"give {base}, from which both come, or another commit before BAD" if base else "they have no commit in common"
    raise InputError(f"GOOD {good.short} is no ancestor of BAD {bad.short}; {advice}")


def _is_ancestor(repo: Path, older: Commit, newer: Commit) -> bool:
    return _run(repo, "merge-base", "--is-ancestor", older.sha, newer.sha).code == 0


def _explain_side_line(repo: Path, good: Commit, bad: Commit, line: Sequence[str]) -> str:
    """GOOD came in through a merge: commits are searched along first parents, where it does not stand."""
    heirs = set(_ask(repo, "rev-list", "--ancestry-path", f"{good.sha}..{bad.sha}").splitlines())
    merge = next(sha for sha in line if sha in heirs)[:SHORT]
    return f"GOOD {good.short} is not on the first-parent line of BAD: the merge {merge} brought it in; give {merge}^1 as GOOD"


def _ask(folder: Path, *arguments: str) -> str:
    """The output of git. Raise InputError with its last line when it fails."""
    return _GIT.call(_write(folder, arguments), name=_name(folder, arguments)).text.strip()


def _run(folder: Path, *arguments: str) -> Ended:
    return _GIT.run(_write(folder, arguments), name=_name(folder, arguments))


def _write(folder: Path, arguments: Sequence[str]) -> list[str]:
    return ["git", "-C", str(folder), *arguments]


def _name(folder: Path, arguments: Sequence[str]) -> str:
    return f"{folder}: git {arguments[0]}"
