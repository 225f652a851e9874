"""What a job leaves is gone: real processes of another user, real files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.errors import RunnerError
from perfgate.runner import scrub as cleaning_of_slots
from perfgate.runner.scrub import delete_files, end_processes, end_sessions, find_leftovers, find_user

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


@pytest.mark.parametrize(("name", "reason"), [("no-such-user", "no such user"), ("root", "is root, or the user who runs this")])
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
def test_attack__folders_deeper_than_a_walk_gets(tmp_path):
    """Root's clean-up has no depth at which it breaks, and leaves the slot closed for ever."""
    own, here = tmp_path / "work", Path.cwd()
    own.mkdir()
    os.chdir(own)
    try:
        for _ in range(3000):
            Path("d").mkdir()
            os.chdir("d")
    finally:
        os.chdir(here)

    assert delete_files(UID, [own], []) == 1
    assert list(own.iterdir()) == []


@pytest.mark.parametrize("look", [find_leftovers, lambda uid, folders: delete_files(uid, [], folders)])
def test_find_leftovers__what_others_delete_meanwhile(tmp_path, monkeypatch, look):
    """Root reads folders that every program of the machine writes; one that ends there stops no clean-up."""
    for name in ("a", "b"):
        (tmp_path / name).touch()
    listed = list(tmp_path.iterdir())
    (tmp_path / "a").unlink()
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(listed))

    assert not look(UID, [tmp_path])


def test_attack__a_manager_that_outlives_the_job(tmp_path, monkeypatch):
    """The wish to linger would have systemd start what the job wrote, at every boot and outside of the slot's unit."""
    (tmp_path / "ghr0").touch()
    monkeypatch.setattr(cleaning_of_slots, "LINGER", tmp_path)
    monkeypatch.setattr(cleaning_of_slots, "BOOTED", tmp_path / "no systemd")

    end_sessions("ghr0", UID)
    end_sessions("ghr0", UID)

    assert list(tmp_path.iterdir()) == []


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


def test_cli__says_who_is_missing(tmp_path, monkeypatch, capsys):
    (tmp_path / "r.toml").write_text('repositories = ["o/r"]\n[slots.0]\nuser = "no-such-user"\ngpu = "GPU-0000"\n')
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(tmp_path / "r.toml"))

    assert main(["runner", "scrub", "--slot", "0"]) == 3
    assert "no such user" in capsys.readouterr().err


def test_attack__a_full_disk_and_a_note_of_refusal(tmp_path, monkeypatch, capsys):
    """What fills the disk goes first: a mark that finds no room keeps root from no file of the job."""
    home = tmp_path / "slots" / "0"
    home.mkdir(parents=True)
    (home / "ballast").write_text("x")
    (home / "refused").write_text("a fork")
    (tmp_path / "no room").touch()
    settings = f'folder = "{tmp_path}/slots"\nstate = "{tmp_path}/no room"\n[slots.0]\nuser = "ghr0"\ngpu = "GPU-0000"\n'
    (tmp_path / "r.toml").write_text(f'repositories = ["o/r"]\n{settings}')
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(tmp_path / "r.toml"))
    monkeypatch.setattr("perfgate.cli.machine.runner_slot.find_user", lambda _: UID)
    monkeypatch.setattr("perfgate.cli.machine.runner_slot.end_sessions", lambda *_: None)

    assert main(["runner", "scrub", "--slot", "0"]) == 3
    assert "quarantine-0.json: cannot be written" in capsys.readouterr().err
    assert list(home.iterdir()) == []
