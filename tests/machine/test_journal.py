"""Files that survive: torn lines, full disks, two writers."""

import json
import os
import subprocess
import sys

import pytest

from perfgate.errors import EvidenceError
from perfgate.storage.journal import (
    LOCK_FILE,
    WindowFiles,
    append_line,
    cut_torn_line,
    is_alive,
    lock_folder,
    read_lines,
)

HOLD = """
import sys, time
from pathlib import Path
from perfgate.storage.journal import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


# No file of the process may grow beyond 64 bytes: what a full disk does, at a place of our choice.
FULL = """
import resource, sys
from pathlib import Path
from perfgate.storage.journal import append_line, write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
folder = Path(sys.argv[1])
def attempt(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        print(error.strerror)
"""


def run_on_full_disk(folder, *lines):
    code = FULL + "\n".join(lines)
    return subprocess.run([sys.executable, "-c", code, folder], check=True, capture_output=True, text=True).stdout


def test_append_line__lines_come_back_in_order(tmp_path):
    append_line(tmp_path / "log", {"a": 1})
    append_line(tmp_path / "log", {"a": 2})

    assert list(read_lines(tmp_path / "log")) == [{"a": 1}, {"a": 2}]


def test_append_line__a_full_disk_leaves_no_half_line(tmp_path):
    told = run_on_full_disk(
        tmp_path,
        "attempt(append_line, folder / 'log', {'a': 1})",
        "attempt(append_line, folder / 'log', {'a': 'x' * 200})",
        "attempt(append_line, folder / 'log', {'a': 2})",
    )

    assert told == "File too large\n"
    assert list(read_lines(tmp_path / "log")) == [{"a": 1}, {"a": 2}]


def test_append_line__an_interruption_leaves_no_half_line(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    append_line(tmp_path / "log", {"a": 1})
    monkeypatch.setattr("perfgate.storage.journal.os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        append_line(tmp_path / "log", {"a": 2})
    monkeypatch.undo()
    append_line(tmp_path / "log", {"a": 3})

    assert list(read_lines(tmp_path / "log")) == [{"a": 1}, {"a": 3}]


def test_write_atomically__a_full_disk_keeps_the_old_content(tmp_path):
    told = run_on_full_disk(
        tmp_path,
        "attempt(write_atomically, folder / 'file', b'old')",
        "attempt(write_atomically, folder / 'file', b'x' * 200)",
    )

    assert told == "File too large\n"
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_cut_torn_line__the_next_line_stands_alone(tmp_path):
    (tmp_path / "log").write_bytes(b'{"a":1}\n{"a":\0\0')
    cut = cut_torn_line(tmp_path / "log")
    append_line(tmp_path / "log", {"a": 2})

    assert cut == 7
    assert list(read_lines(tmp_path / "log")) == [{"a": 1}, {"a": 2}]


def test_cut_torn_line__nothing_to_cut(tmp_path):
    (tmp_path / "log").write_bytes(b'{"a":1}\n')

    assert cut_torn_line(tmp_path / "log") == 0
    assert cut_torn_line(tmp_path / "none") == 0
    assert (tmp_path / "log").read_bytes() == b'{"a":1}\n'


def test_window_files__never_give_a_number_twice(tmp_path):
    first, _ = WindowFiles(tmp_path).add(b"one")
    (tmp_path / "windows" / "0007.jsonl.gz").write_bytes(b"a window whose line was never written")
    later, _ = WindowFiles(tmp_path).add(b"two")

    assert (first, later) == ("windows/0000.jsonl.gz", "windows/0008.jsonl.gz")


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


def test_lock_folder__cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(EvidenceError, match="choose another folder"), lock_folder(tmp_path / "file" / "out"):
        pass


def test_is_alive__a_process_that_nobody_waited_for_is_not():
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        ended.stdout.read()
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        is_zombie_alive = is_alive(str(ended.pid))

    assert not is_zombie_alive
    assert is_alive(str(os.getpid()))
    assert not is_alive("")


def test_read_lines__damage(tmp_path):
    (tmp_path / "log").write_text(json.dumps([1]) + "\n")

    with pytest.raises(EvidenceError, match="log:1: expected a JSON object"):
        list(read_lines(tmp_path / "log"))
