"""Locks between real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.errors import InputError, RunnerError
from perfgate.machine.lock import list_holders
from perfgate.runner.slots import Wish, hold
from tests.fakes.sick_gpu import build_library, run_with_gpu

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys
from pathlib import Path
from perfgate.runner.slots import Wish, hold
devices, count, exclusive, folder = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3] == "True", Path(sys.argv[4])
with hold(Wish(devices=tuple(d for d in devices if d), count=count, is_exclusive=exclusive, timeout_s=60), folder) as held:
    print(",".join(held.devices), flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another(folder, devices="a,b", count=1, *, exclusive=False):
    """A process that holds what it got until this block ends; yields its devices, or the process while it waits."""
    command = [sys.executable, "-c", HOLDER, devices, str(count), str(exclusive), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(timeout=300)


def wish(devices=("a", "b"), count=1, *, exclusive=False):
    return Wish(devices=devices, count=count, is_exclusive=exclusive, timeout_s=0)


def test_hold__each_gets_a_gpu_of_its_own(tmp_path):
    with another(tmp_path) as first:
        theirs = first.stdout.readline().strip()
        with hold(wish(), tmp_path) as held:
            assert {theirs, *held.devices} == {"a", "b"}


def test_hold__nothing_is_free(tmp_path):
    with another(tmp_path, count=2) as first:
        first.stdout.readline()
        with (
            pytest.raises(RunnerError, match=rf"no free slot in time; held by .*gpu-a: process {first.pid}"),
            hold(wish(), tmp_path),
        ):
            pass


def test_hold__several_gpus_or_none(tmp_path):
    with another(tmp_path, devices="a") as first:
        first.stdout.readline()
        with pytest.raises(RunnerError), hold(wish(count=2), tmp_path):
            pass
        with hold(wish(), tmp_path) as held:
            assert held.devices == ("b",)


def test_hold__a_quiet_host_has_no_other_session(tmp_path):
    with another(tmp_path) as first:
        first.stdout.readline()
        told = f"held by gpu-a: process {first.pid}; host: process {first.pid}$"
        with pytest.raises(RunnerError, match=told), hold(wish(exclusive=True), tmp_path):
            pass
    with another(tmp_path, exclusive=True) as first:
        assert first.stdout.readline().strip() == "a,b"
        with pytest.raises(RunnerError), hold(wish(), tmp_path):
            pass


def test_hold__small_ones_do_not_starve_a_large_one(tmp_path):
    """While the large one waits, no small one gets in before it."""
    with another(tmp_path) as small:
        small.stdout.readline()
        with another(tmp_path, exclusive=True) as large:
            while "gate" not in list_holders(tmp_path):
                time.sleep(0.02)
            with pytest.raises(RunnerError), hold(wish(), tmp_path):
                pass
            small.stdin.close()
            assert large.stdout.readline().strip() == "a,b"


def test_hold__a_killed_holder_frees_its_gpu(tmp_path):
    with another(tmp_path, count=2) as first:
        first.stdout.readline()
        first.send_signal(signal.SIGKILL)
        first.wait()

        with hold(wish(count=2), tmp_path) as held:
            assert held.devices == ("a", "b")


def test_hold__without_gpus_the_host_alone(tmp_path):
    with hold(wish(devices=()), tmp_path) as held:
        assert held.devices == ()
        assert list(list_holders(tmp_path)) == ["host"]
    assert list_holders(tmp_path) == {}


def test_hold__more_than_there_are(tmp_path):
    with pytest.raises(InputError, match="3 GPUs wanted where 2 may be used"), hold(wish(count=3), tmp_path):
        pass


def test_attack__a_link_in_place_of_a_lock(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "gate.lock").symlink_to(tmp_path / "victim")

    with pytest.raises(RunnerError, match="cannot be opened"), hold(wish(), tmp_path):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_lock__the_exit_code_is_the_commands(tmp_path, monkeypatch, code, expected):
    monkeypatch.setenv("PERFGATE_LOCKS", str(tmp_path))

    assert main(["runner", "lock", "--", sys.executable, "-c", code]) == expected


def test_lock__options_of_the_command_are_its_own(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PERFGATE_LOCKS", str(tmp_path))

    assert main(["runner", "lock", "--", "echo", "--gpus", "9"]) == 0
    assert capfd.readouterr().out == "--gpus 9\n"


def test_lock__stays_with_the_command_when_its_parent_dies(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PERFGATE_LOCKS": str(tmp_path)}
    command = [sys.executable, "-m", "perfgate", "runner", "lock", "--exclusive", "--"]
    child = [sys.executable, "-c", "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"]
    with subprocess.Popen(
        [*command, *child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        parent.stdout.readline()
        parent.kill()
        parent.wait()

        with pytest.raises(RunnerError), hold(wish(), tmp_path):
            pass
        parent.stdin.close()
        with hold(Wish(devices=("a",), timeout_s=30), tmp_path) as held:
            assert held.devices == ("a",)


def test_lock__passes_on_the_wish_to_end(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PERFGATE_LOCKS": str(tmp_path)}
    child = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); time.sleep(60)"
    command = [sys.executable, "-m", "perfgate", "runner", "lock", "--", sys.executable, "-c", child]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        process.stdout.readline()
        process.terminate()

        assert process.wait(timeout=300) == 5


def test_lock__no_such_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PERFGATE_LOCKS", str(tmp_path))

    assert main(["runner", "lock", "--", "/no/such/command"]) == 2
    assert "cannot be run" in capsys.readouterr().err


LOCK = """
import sys
from perfgate.cli import main
set_gpu(name="NVIDIA H20", memory_total=102625181696, count={count})
sys.exit(main(["runner", "lock", *{options!r}, "--timeout", "0", "--", sys.executable, "-c", {code!r}]))
"""
SHOW = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), *sorted(os.listdir(os.environ['PERFGATE_LOCKS'])))"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.mark.parametrize(
    "case",
    [
        (2, [], "", "GPU-0000", 1),
        (2, ["--hardware", "h20"], "", "GPU-0000", 1),
        (2, ["--hardware", "h20-x2"], "", "None", 2),
        (2, ["--hardware", "h20-x2"], "1,0", "1,0", 2),
        (4, ["--hardware", "h20-x2"], "", "0,1", 2),
        (4, ["--gpus", "2"], "3,1", "3,1", 2),
        (4, ["--gpus", "2"], "3,1,2", "1,2", 2),
        (2, ["--exclusive"], "", "None", 0),
    ],
)
def test_lock__a_server_over_several_gpus_sees_them_by_number(library, tmp_path, case):
    """As many as a slot of the label holds. Several go by number."""
    count, options, before, visible, taken = case
    (tmp_path / "locks").mkdir()
    code = LOCK.format(count=count, options=options, code=SHOW)
    inherited = {"CUDA_VISIBLE_DEVICES": before} if before else {}
    done = run_with_gpu(library, tmp_path, code, PERFGATE_LOCKS=str(tmp_path / "locks"), **inherited)

    assert done.returncode == 0, done.stderr
    seen, *locks = done.stdout.split()
    assert (seen, len([name for name in locks if name.startswith("gpu-")])) == (visible, taken)


@pytest.mark.parametrize(
    ("count", "options", "reason"),
    [
        (1, ["--hardware", "h20-x2"], "2 GPUs wanted where 1 may be used"),
        (2, ["--hardware", "h20-x2", "--gpus", "2"], "--gpus: --hardware says how many a slot has; give one of the two"),
    ],
)
def test_lock__gpus_that_a_slot_has_not(library, tmp_path, count, options, reason):
    code = LOCK.format(count=count, options=options, code=SHOW)
    done = run_with_gpu(library, tmp_path, code, PERFGATE_LOCKS=str(tmp_path))

    assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
