"""What a job leaves is gone: real processes of another user, real files."""

from __future__ import annotations

import os
import subprocess

import pytest

from perfgate.cli import main
from perfgate.errors import RunnerError
from perfgate.runner.scrub import delete_files, end_processes, find_leftovers, find_user

# All as that one user: on two workers one test would see, and end, the processes of the other.
pytestmark = pytest.mark.xdist_group("scrubbed-user")

# No process of the system runs as this user, and no account has it.
UID = 54321
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may start processes as another user")

# Forks for a while, in sessions of their own, ignoring every signal that can be ignored.
STUBBORN = 'trap "" TERM INT HUP; echo up; for i in 1 2 3 4 5 6 7 8 9; do setsid sleep 600 & sleep 0.02; done; wait'


@needs_root
def test_attack__processes_that_hide():
    with subprocess.Popen(["/bin/sleep", "600"]) as mine:
        with subprocess.Popen(["/bin/sh", "-c", STUBBORN], user=UID, stdout=subprocess.PIPE, cwd="/") as process:
            process.stdout.readline()

            ended = end_processes(UID)

            assert process.pid in ended
            assert process.wait(timeout=300) == -9
        assert find_leftovers(UID, []) == []
        assert mine.poll() is None
        mine.kill()


@pytest.mark.parametrize("uid", [0, -1])
def test_end_processes__never_of_root(uid):
    with pytest.raises(RunnerError, match="processes of root are never ended"):
        end_processes(uid)


@pytest.mark.parametrize(("name", "reason"), [("no-such-user", "no such user"), ("root", "is root or whoever runs this")])
def test_find_user__refuses(name, reason):
    with pytest.raises(RunnerError, match=reason):
        find_user(name)


@needs_root
def test_delete_files__of_the_slot_alone(tmp_path):
    own, shared = tmp_path / "work", tmp_path / "shared"
    for folder in (own / "deep" / "deeper", shared):
        folder.mkdir(parents=True)
    (own / "deep" / "file").write_text("x")
    (own / ".hidden").write_text("x")
    for name, owner in (("theirs", UID), ("others", 0)):
        (shared / name).write_text("x")
        os.chown(shared / name, owner, -1)

    assert find_leftovers(UID, [shared]) == [str(shared / "theirs")]
    assert delete_files(UID, [own], [shared]) == 3
    assert list(own.iterdir()) == []
    assert [path.name for path in shared.iterdir()] == ["others"]


@needs_root
def test_attack__a_link_to_somewhere_else(tmp_path):
    """Root deletes the link, not what it points to, and does not walk through a slot folder that became a link."""
    precious, own = tmp_path / "precious", tmp_path / "work"
    precious.mkdir()
    (precious / "file").write_text("x")
    own.mkdir()
    (own / "link").symlink_to(precious)
    (tmp_path / "became").symlink_to(precious)

    delete_files(UID, [own, tmp_path / "became"], [])

    assert (precious / "file").read_text() == "x"
    assert list(own.iterdir()) == []


def test_cli__says_who_is_missing(capsys):
    assert main(["runner", "scrub", "--user", "no-such-user"]) == 3
    assert "no such user" in capsys.readouterr().err
