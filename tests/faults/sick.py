"""A machine that fails under the gate: real processes, signals, limits, and a GPU driver that says what a test wants."""

from __future__ import annotations

import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.commands import find_leftovers
from tests.fakes.sick_gpu import build_library
from tests.faults.fault import Answer, Fault, Kind, Where
from tests.faults.gating import SLOWED, Disturb, Gate, at, run_gate, send, signal_processes, stop_and_resume

INVALID, REFUSED, RESUMED = ("INVALID",), ("exit 2",), ("resumed: REGRESSION",)
KILLED, INTERRUPTED = (-signal.SIGKILL,), (130,)
# From before the first server to after the last window.
INSTANTS = {
    1: "before the first server",
    4: "as a server loads",
    9: "in the first block",
    17: "between blocks",
    24: "at the end",
}


def with_gpu(folder: Path, **values: object) -> dict[str, str]:
    """The environment of a gate whose GPU says `values` from the beginning."""
    set_gpu(folder, **values)
    library = build_library(folder)
    return {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML": str(folder / "gpu"), "FAKE_USES_GPU": "1"}


def set_gpu(folder: Path, **values: object) -> None:
    part = folder / "gpu.part"
    part.write_text("".join(f"{key} {value}\n" for key, value in values.items()))
    part.replace(folder / "gpu")


def on_gpu(disturb: Disturb = lambda _gate, _process: None, **values: object) -> Callable[[Path], Answer]:
    """Build a fault's run on a GPU that says `values`, or that `disturb` makes say others."""

    def run(folder: Path) -> Answer:
        gate = Gate(folder=folder, options=SLOWED, env=with_gpu(folder, **values))
        return gate.run(disturb=disturb)

    return run


def say(**values: object) -> Disturb:
    return lambda gate, _process: set_gpu(gate.folder, **values)


def share_gpu(folder: Path) -> Answer:
    """A second gate starts its servers on the same GPU while the first one measures; the driver shows both gates' processes."""
    one = Gate(folder=folder, options=SLOWED, env=with_gpu(folder), name="one")
    second = folder / "second"
    second.mkdir()
    two = Gate(folder=second, options=SLOWED, name="two")

    def disturb(gate: Gate, process: subprocess.Popen[str]) -> None:
        other = two.start()
        while process.poll() is None and other.poll() is None:
            pids = [pid for state in (gate.state, two.state) for pid, command in find_leftovers(state) if "--port" in command]
            set_gpu(folder, **({"pids": " ".join(map(str, pids))} if pids else {}))
            time.sleep(0.02)
        set_gpu(folder)
        other.communicate(timeout=300)

    return one.run(disturb=at(6, disturb))


def share_folder(folder: Path) -> Answer:
    """Two gates are told to write into one folder at once."""
    gate = Gate(folder=folder, options=SLOWED)
    first = gate.start()
    at(6, lambda _gate, _process: None)(gate, first)
    late = gate.start("--resume")
    _, err = late.communicate(timeout=300)
    first.communicate(timeout=300)
    refused = [line for line in err.splitlines() if line.startswith("perfgate:")]
    lost = gate.read(first.returncode, "").lost
    return Answer(
        got=f"exit {late.returncode}", told=tuple(refused), lost=lost if first.returncode == 1 else ("the first gate",)
    )


def take_port(folder: Path) -> Answer:
    """Somebody binds the port after it was found free."""
    with socket.socket() as rival:
        rival.bind(("127.0.0.1", 0))
        port = rival.getsockname()[1]
        gate = Gate(folder=folder, options=SLOWED, env={"FAKE_PORT": str(port)})
        return gate.run()


def fill_disk(gate: Gate, process: subprocess.Popen[str]) -> None:
    """The gate's files may grow no further: what a full disk does, at an instant of our choice."""
    limit = (gate.out / "windows.jsonl").stat().st_size + 10
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))


def stall_disk(gate: Gate, _process: subprocess.Popen[str]) -> None:
    """Every sync of a file takes until the share comes back, as on a network file system whose server is away."""
    (gate.folder / "away").write_text("")
    time.sleep(3.0)
    (gate.folder / "away").unlink()


def find_compiler() -> str:
    return shutil.which("cc") or pytest.skip("needs a C compiler for the slow disk")


def stall_share(folder: Path) -> Answer:
    library = folder / "slow_disk.so"
    source = Path(__file__).with_name("slow_disk.c")
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    env = {"LD_PRELOAD": str(library), "SLOW_DISK": str(folder / "away")}
    return Gate(folder=folder, options=SLOWED, env=env).run(disturb=at(9, stall_disk))


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


GPU = (
    row(
        "GPU hot from the start", "the driver says thermal slow-down", on_gpu(reasons=0x40), "the GPU throttled", is_long=False
    ),
    row("GPU gets hot", "the same from the middle on", on_gpu(at(12, say(reasons=0x40))), "the GPU throttled"),
    row("power brake", "the driver says power brake slow-down", on_gpu(reasons=0x80), "the GPU throttled"),
    row(
        "foreign process arrives", "process 4242 computes from the middle on", on_gpu(at(12, say(pids=4242))), "foreign process"
    ),
    row("foreign process was there", "process 4242 computes from the start", on_gpu(pids=4242), "foreign process"),
    row("GPU is lost", "the driver answers no more", on_gpu(at(12, say(clock_error=15))), "of the GPU were lost"),
    row("driver does not answer", "NVML fails to start", on_gpu(init_error=15), "NVML failed", is_long=False),
    row("GPU memory is left", "1 GiB still held after the servers", on_gpu(at(12, say(memory_used=2**30))), "still held"),
    row("two gates on one GPU", "a second gate starts servers on it", share_gpu, "foreign process"),
)
PROCESSES = (
    row("server killed while loading", "SIGKILL", run_gate(*SLOWED, disturb=kill_server(2)), "ended by itself"),
    row("server killed while it serves", "SIGKILL", run_gate(*SLOWED, disturb=kill_server(9)), "", is_long=False),
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
            *SLOWED, disturb=at(9, signal_processes("--port", signal.SIGSTOP)), **{"timeout_s = 120.0": "timeout_s = 2.0"}
        ),
        "",
    ),
    row(
        "server out of memory",
        "its address space may grow no further",
        run_gate(*SLOWED, disturb=at(9, hold_memory), **{"timeout_s = 120.0": "timeout_s = 5.0"}),
        "",
    ),
    row(
        "server that dies at its start",
        "exit code 7",
        run_gate("--candidate-env", "FAKE_ENGINE=die"),
        "no memory for the weights",
    ),
    row(
        "server never ready",
        "HTTP 503 for ever",
        run_gate("--candidate-env", "FAKE_ENGINE=never_ready", **{"ready_timeout_s = 300.0": "ready_timeout_s = 1.0"}),
        "not ready after 1 s",
    ),
    row(
        "server that ignores SIGTERM",
        "and is slower",
        run_gate(
            "--candidate-env",
            "FAKE_ENGINE=deaf",
            "--candidate-env",
            "FAKE_SLOW=3.0",
            **{"stop_timeout_s = 2.0": "stop_timeout_s = 0.2"},
        ),
        "is worse",
        ("REGRESSION",),
    ),
    row(
        "server that leaves a child",
        "deaf to SIGTERM, too",
        run_gate(
            "--candidate-env",
            "FAKE_ENGINE=child",
            "--candidate-env",
            "FAKE_SLOW=3.0",
            **{"stop_timeout_s = 2.0": "stop_timeout_s = 0.2"},
        ),
        "is worse",
        ("REGRESSION",),
    ),
    row(
        "load generator killed",
        "SIGKILL",
        run_gate(*SLOWED, disturb=at(9, signal_processes("client_worker", signal.SIGKILL))),
        "load generator",
    ),
    row(
        "load generator hangs",
        "it never ends",
        run_gate(env={"FAKE_BENCH": "hang"}, **{"timeout_s = 120.0": "timeout_s = 1.0"}),
        "no answer within 1 s",
    ),
    row(
        "load generator fails",
        "exit code 1 in the third window",
        run_gate(env={"FAKE_BENCH": "fail_third"}),
        "exited with 1",
        is_long=False,
    ),
    row("load generator writes garbage", "HTML", run_gate(env={"FAKE_BENCH": "garbage"}), "is no result"),
    row(
        "unsteady machine",
        "each window half as fast as the one before",
        run_gate(env={"FAKE_BENCH": "unsteady"}),
        "never got steady",
    ),
    row("port taken", "bound after it was found free", take_port, "Address already in use", is_long=False),
)
GATES = (
    *(
        row(
            f"gate killed {when}",
            "SIGKILL, then --resume",
            stop_and_resume(at(lines, send(signal.SIGKILL)), KILLED),
            "",
            RESUMED,
            is_long=lines != 9,
        )
        for lines, when in INSTANTS.items()
    ),
    row(
        "SIGTERM from the runner",
        "in a block, then --resume",
        stop_and_resume(at(9, send(signal.SIGTERM)), INTERRUPTED),
        "stopped by SIGTERM",
        RESUMED,
    ),
    row(
        "terminal closed",
        "SIGHUP, then --resume",
        stop_and_resume(at(17, send(signal.SIGHUP)), INTERRUPTED),
        "stopped by SIGHUP",
        RESUMED,
    ),
    row(
        "Ctrl-C",
        "SIGINT, then --resume",
        stop_and_resume(at(4, send(signal.SIGINT)), INTERRUPTED),
        "stopped by SIGINT",
        RESUMED,
    ),
    row(
        "disk full",
        "files may grow no further, then --resume",
        stop_and_resume(at(12, fill_disk), (2,)),
        "File too large",
        RESUMED,
    ),
    row("NFS stall", "every sync waits for three seconds", stall_share, "is worse", ("REGRESSION",)),
    row("two gates in one folder", "the second one is refused", share_folder, "writes there", REFUSED),
)
SICK = (*GPU, *PROCESSES, *GATES)
