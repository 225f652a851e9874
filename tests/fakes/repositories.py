"""Small git repositories of real commits."""

import os
import subprocess

IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(folder, *arguments):
    """Run git in a folder and return what it says."""
    argv = ["git", "-C", str(folder), *map(str, arguments)]
    return subprocess.run(argv, check=True, capture_output=True, text=True, env={**os.environ, **IDENTITY}).stdout.strip()


def make_repository(folder):
    """An empty repository on the branch main."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    return folder


def commit(folder, files, subject):
    """Write files, commit them and return the hash."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)
    return git(folder, "rev-parse", "HEAD")


def grow(folder, count, write):
    """Commit `write(number)`, a mapping of files, for each number from 0 up to `count`; return the hashes."""
    return [commit(folder, write(number), f"change {number}") for number in range(count + 1)]
