"""A machine that fails under the gate: real processes, signals, limits, and a GPU driver that says what a test wants."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e.commands import find_leftovers
from tests.fakes.sick_gpu import build_library
from tests.faults.fault import Answer, Fault, Kind, Where
from tests.faults.gating import SLOWED, Disturb, Gate, at, leave_alone, run_gate, signal_processes

INVALID = ("INVALID",)
FOREIGN = "used the GPU; stop them"


def with_gpu(folder: Path, **values: object) -> dict[str, str]:
    """The environment of a gate whose GPU says `values` from the beginning; each server holds 1 GiB of its memory."""
    set_gpu(folder, **{"memory_each": 2**30, **values})
    library = build_library(folder)
    return {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML": str(folder / "gpu"), "FAKE_USES_GPU": "1"}


def set_gpu(folder: Path, **values: object) -> None:
    part = folder / "gpu.part"
    part.write_text("".join(f"{key} {value}\n" for key, value in values.items()))
    part.replace(folder / "gpu")


def on_gpu(disturb: Disturb = leave_alone, **values: object) -> Callable[[Path], Answer]:
    """Build a fault's run on a GPU that says `values`, or that `disturb` makes say others."""

    def run(folder: Path) -> Answer:
        gate = Gate(folder=folder, options=SLOWED, env=with_gpu(folder, **values))
        return gate.run(disturb=disturb)

    return run


def say(**values: object) -> Disturb:
    return lambda gate, _process: set_gpu(gate.folder, **values)


def share_gpu(folder: Path) -> Answer:
    """Two gates begin on one GPU at the same time, of which one has the lock; the driver shows the processes of both."""
    env = with_gpu(folder)
    others = folder / "second"
    others.mkdir()
    gates = (Gate(folder=folder, options=SLOWED, env=env), Gate(folder=others, options=SLOWED, env=env))
    processes = [gate.start() for gate in gates]
    while any(process.poll() is None for process in processes):
        found = (one for gate in gates for one in find_leftovers(gate.state))
        pids = [pid for pid, command in found if "--port" in command]
        set_gpu(folder, memory_each=2**30, **({"pids": " ".join(map(str, pids))} if pids else {}))
        time.sleep(0.02)
    ended = [(process.communicate(timeout=300)[1], process.returncode) for process in processes]
    answers = [gate.read(code, err) for gate, (err, code) in zip(gates, ended, strict=True)]
    return Answer(
        got=" and ".join(sorted(answer.got for answer in answers)),
        told=tuple(line for answer in answers for line in answer.told),
        lost=tuple(lost for answer in answers for lost in answer.lost),
    )


def take_port(folder: Path) -> Answer:
    """Another process binds the port after it was found free."""
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", 0))
        port = rival.getsockname()[1]
        gate = Gate(folder=folder, options=SLOWED, env={"FAKE_PORT": str(port)})
        return gate.run()


def hold_memory(gate: Gate, _process: subprocess.Popen[str]) -> None:
    """The youngest server may have no more memory than it has, as in a container that is full."""
    found = sorted(pid for pid, command in find_leftovers(gate.state) if "--port" in command)
    if found:
        resource.prlimit(found[-1], resource.RLIMIT_AS, (1, 1))


def row(
    name: str,
    made: str,
    run: Callable[[Path], Answer],
    words: str = "",
    expected: tuple[str, ...] = INVALID,
    *,
    is_long: bool = True,
) -> Fault:
    return Fault(
        name=name, kind=Kind.SICK, made=made, where=Where.FAKE, expected=expected, words=words, run=run, is_long=is_long
    )


def kill_server(instant: int) -> Disturb:
    return at(instant, signal_processes("--port", signal.SIGKILL))


KILLED = "server ended by itself with exit code -9"

GPU = (
    row(
        "GPU hot from the start",
        "the driver reports thermal slow-down",
        on_gpu(reasons=0x40),
        "the GPU throttled for",
        is_long=False,
    ),
    row("GPU gets hot", "the same from the middle on", on_gpu(at(12, say(reasons=0x40))), "the GPU throttled for"),
    row("power brake", "the driver says power brake slow-down", on_gpu(reasons=0x80), "the GPU throttled for"),
    row("foreign process arrives", "process 4242 computes from the middle on", on_gpu(at(12, say(pids=4242))), FOREIGN),
    row("foreign process was there", "process 4242 computes from the start", on_gpu(pids=4242), FOREIGN),
    row("GPU is lost", "the driver answers no more", on_gpu(at(12, say(clock_error=15))), "of the GPU were lost"),
    row("driver does not answer", "NVML fails to start", on_gpu(init_error=15), "NVML failed: GPU is lost", is_long=False),
    row(
        "GPU memory is left",
        "1 GiB is still held after the servers ended",
        on_gpu(at(12, say(memory_used=2**30))),
        "1024 MiB of GPU memory that were free before the servers started are still held",
    ),
    row(
        "two gates on one GPU",
        "both begin at once: one measures, the other is refused before a server starts",
        share_gpu,
        "two at once would disturb each other",
        ("REGRESSION and exit 3",),
    ),
)
PROCESSES = (
    row("server killed while loading", "SIGKILL", run_gate(*SLOWED, disturb=kill_server(2)), KILLED),
    row("server killed while it serves", "SIGKILL", run_gate(*SLOWED, disturb=kill_server(13)), KILLED, is_long=False),
    row(
        "server hangs",
        "no answer in its fourth window",
        run_gate("--candidate-env", "FAKE_ENGINE=hang:4", **{"timeout_s = 120.0": "timeout_s = 2.0"}),
        "no answer within 2 s",
    ),
    row(
        "server stopped",
        "SIGSTOP",
        run_gate(
            *SLOWED, disturb=at(13, signal_processes("--port", signal.SIGSTOP)), **{"timeout_s = 120.0": "timeout_s = 2.0"}
        ),
        "gave no answer",
    ),
    row(
        "server out of memory",
        "its address space cannot grow",
        run_gate(*SLOWED, disturb=at(9, hold_memory), **{"timeout_s = 120.0": "timeout_s = 5.0"}),
        "MemoryError",
    ),
    row(
        "server dies for want of memory",
        "an allocation fails in its fourth window",
        run_gate("--candidate-env", "FAKE_ENGINE=ram_full:4"),
        "it says: Traceback (most recent call last): | MemoryError",
    ),
    row(
        "server dies for want of GPU memory",
        "CUDA out of memory in its fourth window",
        run_gate("--candidate-env", "FAKE_ENGINE=gpu_full:4"),
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        is_long=False,
    ),
    row(
        "server that dies at its start",
        "exit code 7",
        run_gate("--candidate-env", "FAKE_ENGINE=die"),
        "no memory for the weights",
    ),
    row(
        "server never ready",
        "HTTP 503 to every request",
        run_gate("--candidate-env", "FAKE_ENGINE=never_ready", **{"ready_timeout_s = 300.0": "ready_timeout_s = 1.0"}),
        "not ready after 1 s",
    ),
    row(
        "server that ignores SIGTERM",
        "the server is slower, too",
        run_gate(
            "--candidate-env",
            "FAKE_ENGINE=deaf",
            "--candidate-env",
            "FAKE_SLOW=3.0",
            **{"stop_timeout_s = 2.0": "stop_timeout_s = 0.2"},
        ),
        "Output throughput is worse",
        ("REGRESSION",),
    ),
    row(
        "server that leaves a child",
        "the child ignores SIGTERM; the server is slower",
        run_gate(
            "--candidate-env",
            "FAKE_ENGINE=child",
            "--candidate-env",
            "FAKE_SLOW=3.0",
            **{"stop_timeout_s = 2.0": "stop_timeout_s = 0.2"},
        ),
        "Output throughput is worse",
        ("REGRESSION",),
    ),
    row(
        "load generator killed",
        "SIGKILL",
        run_gate(*SLOWED, disturb=at(9, signal_processes("client_worker", signal.SIGKILL))),
        "the load generator has died",
    ),
    row(
        "load generator hangs",
        "it does not end",
        run_gate(env={"FAKE_BENCH": "hang"}, **{"timeout_s = 120.0": "timeout_s = 1.0"}),
        "the load generator gave no answer within 1 s",
    ),
    row(
        "load generator fails",
        "exit code 1 in the third window",
        run_gate(env={"FAKE_BENCH": "fail_third"}),
        "the load generator failed: bench_serving exited with 1",
    ),
    row(
        "load generator writes garbage",
        "its output is HTML",
        run_gate(env={"FAKE_BENCH": "garbage"}),
        "the load generator's output is no result",
    ),
    row(
        "unsteady machine",
        "each window half as fast as the one before",
        run_gate(env={"FAKE_BENCH": "unsteady"}),
        "never got steady",
    ),
    row("port taken", "bound after it was found free", take_port, "Address already in use", is_long=False),
)
SICK = (*GPU, *PROCESSES)
