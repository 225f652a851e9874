"""A start's readiness and its memory are metrics that a scenario may gate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from perfgate.core import Run
from perfgate.machine.processes import measure_memory
from perfgate.results.footprint import add_footprint, read_starts
from perfgate.results.results import load_results
from perfgate.serving.measure import measure
from tests.fakes.requests import KeptProgress, build_request, use_fake_processes

RUN = Run(
    source="window",
    values={"median_itl_ms": 3.0},
    workload={},
    requested=1,
    completed=1,
    input_tokens=1,
    output_tokens=1,
    duration_s=1.0,
)


def test_read_starts__only_what_a_clock_can_tell():
    events = [
        {"event": "server_ready", "start": 1, "ready_s": 31.5, "capture_s": 4, "weights_s": "2", "idle_gpu_memory_mib": 9},
        {"event": "server_ready", "start": 2, "ready_s": -1.0},
        {"event": "server_ready", "start": "3", "ready_s": 1.0},
        {"event": "server_started", "start": 4, "ready_s": 1.0},
    ]

    assert read_starts(events) == {1: {"ready_s": 31.5, "capture_s": 4.0, "idle_gpu_memory_mib": 9.0}}


@pytest.mark.parametrize(
    ("is_alone", "more"), [(True, {"gpu_memory_mib": 2.0, "ready_s": 12.0, "capture_s": 3.0}), (False, {})]
)
def test_add_footprint__memory_of_the_gpu_and_readiness_are_a_servers_own_only_where_it_is_alone(is_alone, more):
    telemetry = {"server_memory_bytes": 3 * 2**20, "gpu_memory_used_bytes": 2 * 2**20}

    found = add_footprint(RUN, {"ready_s": 12.0, "capture_s": 3.0}, telemetry, is_alone=is_alone)

    assert found.values == {"median_itl_ms": 3.0, "server_memory_mib": 3.0, **more}


def test_add_footprint__what_was_not_read_is_absent():
    assert add_footprint(RUN, {}, {}, is_alone=True) == RUN


def test_measure_memory__this_session():
    assert measure_memory(os.getsid(0)) >= 10 * 2**20


HOLDER = """
import mmap, os, signal, sys, tempfile
size = 64 * 2**20
if sys.argv[1] == "file":
    file = tempfile.TemporaryFile()
    file.truncate(size)
    held = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED, mmap.PROT_READ)
    found = sum(held[at] for at in range(0, size, 4096))
else:
    held = bytearray(b"a") * size
for _ in range(4 if sys.argv[1] == "forked" else 0):
    if os.fork() == 0:
        # It inherits what the parent holds, and writes nothing to it.
        signal.pause()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("kind", "least", "most"), [("file", 0, 40), ("own", 64, 104), ("forked", 64, 124)])
def test_measure_memory__counts_once_what_processes_hold_and_no_page_of_a_file(kind, least, most):
    command = [sys.executable, "-c", HOLDER, kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as holder:
        assert holder.stdout.readline() == "held\n"
        found = measure_memory(holder.pid)
        os.killpg(holder.pid, signal.SIGKILL)

    assert least * 2**20 <= found <= most * 2**20


def test_measure_memory__all_that_is_resident_where_the_kernel_tells_no_shares(tmp_path, monkeypatch):
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    (folder / "stat").write_text(f"{os.getpid()} (python) S 1 7 7" + " 0" * 46)
    (folder / "status").write_text("Name:\tpython\nVmRSS:\t    2048 kB\n")
    monkeypatch.setattr("perfgate.machine.processes.PROC", tmp_path)
    monkeypatch.setattr("perfgate.machine.processes.list_session", lambda _: [os.getpid()])

    assert measure_memory(7) == 2 * 2**20


def test_measure__every_window_carries_the_footprint_of_its_server(tmp_path, monkeypatch):
    use_fake_processes(monkeypatch, tmp_path)
    measure(build_request(tmp_path / "out", **{'resident = "both"': 'resident = "one"'}), KeptProgress())
    _, session = load_results(tmp_path / "out")

    assert all(window.run.values["ready_s"] > 0 for window in session.windows)
    assert all(window.run.values["server_memory_mib"] > 5 for window in session.windows)
    assert all(window.run.values["idle_server_memory_mib"] > 5 for window in session.windows)
