"""CPU time told apart by whose processes spent it, from made books and from the kernel's own."""

import os
import subprocess
import sys
import time

import pytest

from perfgate.machine.host_load import compare_times, find_busiest_share, find_own, read_run_queue, read_times
from perfgate.machine.processes import Process, list_processes, read_thread_time

TICKS = os.sysconf("SC_CLK_TCK")


def write_books(folder, *, cpu, processes, running=3):
    """Write /proc as the kernel does: CPU seconds of the machine, then (pid, parent, session, seconds) of each process."""
    folder.mkdir(exist_ok=True)
    words = " ".join(str(round(part * TICKS)) for part in cpu)
    (folder / "stat").write_text(f"cpu  {words} 0 0\ncpu0 {words} 0 0\nprocs_running {running}\n")
    for pid, parent, session, seconds in processes:
        (folder / str(pid)).mkdir(exist_ok=True)
        fields = ["S", parent, 0, session, *[0] * 7, round(seconds * TICKS), *[0] * 10]
        (folder / str(pid) / "stat").write_text(f"{pid} (a) b) {' '.join(map(str, fields))}\n")
    return folder


def test_compare_times__own_foreign_and_stolen(tmp_path):
    own = [(100, 1, 50, 0.0), (200, 100, 200, 0.0), (201, 1, 200, 0.0)]
    before = read_times(100, write_books(tmp_path / "a", cpu=(0, 0, 0, 1, 0, 0, 0, 0), processes=[*own, (300, 1, 300, 0.0)]))
    grown = [(100, 1, 50, 1.0), (200, 100, 200, 10.0), (201, 1, 200, 4.0), (300, 1, 300, 20.0)]
    after = read_times(100, write_books(tmp_path / "b", cpu=(30, 0, 5, 51, 5, 0, 0, 10), processes=grown))

    assert compare_times(before, after) == pytest.approx(
        {"own_cpu_share": 0.15, "foreign_cpu_share": 0.20, "stolen_cpu_share": 0.10}
    )


def test_compare_times__no_books(tmp_path):
    empty = write_books(tmp_path / "sandbox", cpu=(0,) * 8, processes=[])

    assert read_times(1, empty) is None
    assert read_times(1, tmp_path / "absent") is None
    assert compare_times(None, None) == {}


def test_read_run_queue__absent(tmp_path):
    assert read_run_queue(tmp_path) is None
    assert read_run_queue(write_books(tmp_path, cpu=(1,) * 8, processes=[], running=5)) == 5


def test_find_busiest_share__a_second_wherever_it_begins():
    """Busy from 0.6 s to 1.6 s, and idle otherwise."""
    used = [(at / 5, min(max(at / 5 - 0.6, 0.0), 1.0)) for at in range(16)]

    assert find_busiest_share(used) == pytest.approx(1.0)
    assert find_busiest_share([(at_s, run_s / 2) for at_s, run_s in used]) == pytest.approx(0.5)


def test_find_busiest_share__no_second_and_none_told():
    assert find_busiest_share([]) is None
    assert find_busiest_share([(0.0, 0.0), (0.9, 0.9)]) is None
    assert find_busiest_share([(0.0, None), (1.0, 1.0), (2.0, None)]) is None


def test_read_thread_time__grows_with_work_and_is_none_of_what_ended():
    begun, used = time.thread_time(), read_thread_time(os.getpid())
    while time.thread_time() < begun + 0.1:
        pass
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert read_thread_time(os.getpid()) - used >= 0.09
    assert read_thread_time(ended.pid) is None


def test_find_own__follows_parents_and_sessions():
    def build(pid, parent, session):
        return Process(pid=pid, parent=parent, session=session, cpu_s=0.0, is_alive=True)

    # 10 is the gate, 20 its server, 21 the server's child, 22 a helper whose parent died, 30 a child within the gate's session.
    family = [build(10, 1, 5), build(20, 10, 20), build(21, 20, 20), build(22, 1, 20), build(30, 10, 5)]
    others = [build(5, 1, 5), build(40, 5, 5), build(50, 1, 50)]

    assert {process.pid for process in find_own(10, [*family, *others])} == {10, 20, 21, 22, 30}


def test_read_times__counts_what_a_child_burns():
    before = read_times(os.getpid())
    subprocess.run([sys.executable, "-c", "while __import__('time').process_time() < 0.5: pass"], check=True)
    after = read_times(os.getpid())

    assert before is not None
    assert after is not None
    assert after.own_s - before.own_s >= 0.4


def test_list_processes__finds_this_one():
    [mine] = [process for process in list_processes() if process.pid == os.getpid()]

    assert (mine.parent, mine.session) == (os.getppid(), os.getsid(0))
