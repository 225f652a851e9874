"""A gate that is stopped, or whose disk fails, and that goes on where it was stopped."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.commands import count_lines
from tests.faults.fault import Answer, Fault
from tests.faults.gating import SLOWED, Disturb, Gate, at, leave_alone, send, stop_and_resume
from tests.faults.kinds.sick import row, with_gpu

REFUSED, RESUMED = ("exit 2",), ("resumed: REGRESSION",)
KILLED, INTERRUPTED, STOPPED = (-signal.SIGKILL,), (130,), (2,)
WORSE = "Output throughput is worse"
LINES = 40
"""What a session of two blocks writes: ten windows and nine events in each, one event before them and one behind."""

# The gate is killed once so many lines are written.
INSTANTS = {
    1: "before the first server",
    4: "as servers load",
    9: "in the first warm-up",
    13: "in a measured window",
    17: "after the first block's last window",
    20: "between blocks",
    24: "as the second block's servers are ready",
    36: "after the last window",
    39: "before the session's end is written",
}


def after(lines: int, act: Disturb) -> Disturb:
    """Disturb once a gate that goes on has written so many lines more."""

    def disturb(gate: Gate, process: subprocess.Popen[str]) -> None:
        at(count_lines(gate.out) + lines, act)(gate, process)

    return disturb


def kill_everywhere(folder: Path) -> Answer:
    """Kill a gate at each line that it writes, then go on; the answer is the one of all of them."""
    answers = []
    for lines in range(1, LINES + 1):
        place = folder / f"{lines:02d}"
        place.mkdir()
        # Behind the last line a gate may have come to its verdict before it could be killed.
        codes = KILLED if lines < LINES else (*KILLED, 1)
        answer = stop_and_resume(at(lines, send(signal.SIGKILL)), codes)(place)
        answers.append((lines, answer))
    wrong = [f"line {lines}: {one.got}" for lines, one in answers if one.got not in RESUMED]
    lost = [f"line {lines}: {lost}" for lines, one in answers for lost in one.lost]
    return Answer(got=answers[0][1].got, told=answers[0][1].told, lost=(*wrong, *lost))


def use_gpu(folder: Path) -> Gate:
    return Gate(folder=folder, options=SLOWED, env=with_gpu(folder))


def build_disk(source: str, folder: Path) -> str:
    """Compile what makes a disk fail, or skip the row."""
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler for the sick disk")
    library = folder / f"{source}.so"
    path = Path(__file__).with_name(f"{source}.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, path, "-ldl"], check=True)
    return str(library)


def limit_files(gate: Gate, process: subprocess.Popen[str]) -> None:
    """The gate's files may grow no further, as under a quota."""
    limit = (gate.out / "windows.jsonl").stat().st_size + 10
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))


def with_disk(file: str = "") -> Callable[[Path], Gate]:
    """A gate whose disk can be full; it is from the start, for one file alone, where that is named."""

    def build(folder: Path) -> Gate:
        if file:
            (folder / "full").write_text("")
        limited = {"FULL_DISK_FILE": file} if file else {}
        env = {"LD_PRELOAD": build_disk("full_disk", folder), "FULL_DISK": str(folder / "full"), **limited}
        return Gate(folder=folder, options=SLOWED, env=env)

    return build


def fill_disk(gate: Gate, _process: subprocess.Popen[str]) -> None:
    (gate.folder / "full").write_text("")


def empty_disk(folder: Path) -> None:
    (folder / "full").unlink()


def stall_disk(gate: Gate, _process: subprocess.Popen[str]) -> None:
    """Every sync of a file takes until the share comes back, as on a network file system whose server is away."""
    (gate.folder / "away").write_text("")
    # On a busy machine the next sync may be a while away.
    deadline = time.monotonic() + 60
    while not (gate.folder / "away.stalled").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2.0)
    (gate.folder / "away").unlink()


def stall_share(folder: Path) -> Answer:
    env = {"LD_PRELOAD": build_disk("slow_disk", folder), "SLOW_DISK": str(folder / "away")}
    answer = Gate(folder=folder, options=SLOWED, env=env).run(disturb=at(9, stall_disk))
    stalled = (folder / "away.stalled").exists()
    return answer if stalled else Answer(got=answer.got, told=answer.told, lost=(*answer.lost, "no sync was held up"))


def share_folder(folder: Path) -> Answer:
    """Two gates are told to write into one folder at once."""
    gate = Gate(folder=folder, options=SLOWED)
    first = gate.start()
    at(6, leave_alone)(gate, first)
    late = gate.start("--resume")
    _, err = late.communicate(timeout=300)
    first.communicate(timeout=300)
    refused = [line for line in err.splitlines() if line.startswith("perfgate:")]
    lost = gate.read(first.returncode, "").lost
    return Answer(
        got=f"exit {late.returncode}", told=tuple(refused), lost=lost if first.returncode == 1 else ("the first gate",)
    )


def stopping(name: str, number: signal.Signals, lines: int, words: str) -> Fault:
    run = stop_and_resume(at(lines, send(number)), INTERRUPTED)
    return row(name, f"{number.name} once {lines} lines are written, then --resume", run, words, RESUMED)


def filling(name: str, made: str, lines: int) -> Fault:
    run = stop_and_resume(at(lines, fill_disk), STOPPED, build=with_disk(), mend=empty_disk)
    return row(name, f"{made}: ENOSPC to every write until --resume", run, "No space left on device", RESUMED)


KILL = send(signal.SIGKILL)
STOPS = (
    *(
        row(
            f"gate killed {when}",
            f"SIGKILL once {lines} lines are written, then --resume",
            stop_and_resume(at(lines, KILL), KILLED),
            WORSE,
            RESUMED,
            is_long=lines != 13,
        )
        for lines, when in INSTANTS.items()
    ),
    row(
        "gate killed at every line",
        f"{LINES} gates, each killed at another line, then --resume",
        kill_everywhere,
        WORSE,
        RESUMED,
    ),
    row(
        "gate killed as it goes on",
        "SIGKILL in block 1, in the block that --resume began anew, and in block 2",
        stop_and_resume(at(13, KILL), KILLED, after(12, KILL), after(30, KILL)),
        WORSE,
        RESUMED,
    ),
    row(
        "gate killed on a GPU",
        "SIGKILL in block 1, then --resume; its servers hold GPU memory",
        stop_and_resume(at(13, KILL), KILLED, build=use_gpu),
        WORSE,
        RESUMED,
    ),
    stopping("SIGTERM from the runner", signal.SIGTERM, 9, "stopped by SIGTERM"),
    stopping("terminal closed", signal.SIGHUP, 17, "stopped by SIGHUP"),
    stopping("Ctrl-C", signal.SIGINT, 4, "stopped by SIGINT"),
    row(
        "file size limit",
        "files may grow no further, then --resume",
        stop_and_resume(at(12, limit_files), STOPPED),
        "File too large",
        RESUMED,
    ),
    filling("disk full in the first block", "in a measured window", 12),
    filling("disk full in the second block", "in its warm-up", 25),
    row(
        "disk full at the verdict",
        "ENOSPC to verdict.json alone, then --resume",
        stop_and_resume(leave_alone, STOPPED, build=with_disk("verdict.json"), mend=empty_disk),
        "No space left on device",
        RESUMED,
    ),
    row("NFS stall", "every sync waits for three seconds", stall_share, WORSE, ("REGRESSION",)),
    row("two gates in one folder", "the second one is refused", share_folder, "writes there; wait for its end", REFUSED),
)
