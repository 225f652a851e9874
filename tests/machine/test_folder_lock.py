"""A result folder has one writer, also while what a killed gate left still runs."""

import os
import subprocess
import sys

import pytest

from perfgate.errors import EvidenceError
from perfgate.machine.folder_lock import LOCK_FILE, lock_folder

HOLD = """
import sys, time
from pathlib import Path
from perfgate.machine.folder_lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_lock_folder__another_process_writes_there(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(EvidenceError, match=f"process {holder.pid} writes there") as caught, lock_folder(tmp_path):
            pass
        holder.kill()
    with lock_folder(tmp_path):
        is_held_after_its_death = (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"

    assert caught.value.exit_code == 2
    assert is_held_after_its_death
    assert not (tmp_path / LOCK_FILE).exists()


def test_lock_folder__waits_for_what_a_dead_process_left(tmp_path):
    """The reaper inherits the lock: a folder is not free before the servers of a killed gate are gone."""
    linger = "import sys, time, pathlib\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)"
    leave = HOLD.replace("):\n", ") as lock:\n").replace(
        "time.sleep(600)",
        "import os, subprocess\n    subprocess.Popen([sys.executable, '-c', *sys.argv[2:]], pass_fds=(lock,))\n    os._exit(9)",
    )
    subprocess.run([sys.executable, "-c", leave, tmp_path, linger, tmp_path / "go"], check=False, stdout=subprocess.DEVNULL)
    with pytest.raises(EvidenceError, match="writes there"), lock_folder(tmp_path, wait_s=0.0):
        pass
    (tmp_path / "go").touch()
    with lock_folder(tmp_path, wait_s=60.0):
        holder = (tmp_path / LOCK_FILE).read_text()

    assert holder == f"{os.getpid()}\n"


def test_lock_folder__a_disk_that_takes_no_number(tmp_path):
    """What was measured is judged all the same: the lock holds, and the next write tells of the disk."""
    full = HOLD.replace("with lock", "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\nwith lock")
    with subprocess.Popen([sys.executable, "-c", full, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(EvidenceError, match="process unknown writes there"), lock_folder(tmp_path, wait_s=0.0):
            pass
        holder.kill()


def test_lock_folder__cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(EvidenceError, match="choose another folder"), lock_folder(tmp_path / "file" / "out"):
        pass


def test_lock_folder__a_link_that_lies_there_is_not_followed(tmp_path):
    (tmp_path / "another").write_text("kept")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LOCK_FILE).symlink_to(tmp_path / "another")

    with pytest.raises(EvidenceError, match="choose another folder"), lock_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "another").read_text() == "kept"
