"""The one reader of the process table."""

import os
import subprocess
import sys

from perfgate.machine.processes import is_alive, list_ancestors, read_process, read_session


def test_is_alive__a_process_without_a_waiting_parent_is_not():
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        ended.stdout.read()
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        is_zombie_alive = is_alive(str(ended.pid))

    assert not is_zombie_alive
    assert is_alive(str(os.getpid()))
    assert not is_alive("")


def test_read_process__a_name_that_looks_like_fields(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (a) Z 1 (b) S 3 4 5 {'0 ' * 7}{os.sysconf('SC_CLK_TCK')} 0 0 0 0\n")

    process = read_process(7, tmp_path)

    assert (process.parent, process.session, process.cpu_s, process.is_alive) == (3, 5, 1.0, True)


def test_read_process__half_a_line(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (name) S")

    assert read_process(7, tmp_path) is None
    assert read_process(8, tmp_path) is None


def test_list_ancestors__ends_at_the_first_process():
    ancestors = list(list_ancestors(os.getpid()))

    assert ancestors[0] == os.getppid()
    assert read_session(os.getpid()) == os.getsid(0)
