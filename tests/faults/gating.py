"""Run `perfgate gate` as a process of its own, disturb it, and look for what it left behind or lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfgate.machine.processes import is_alive
from tests.e2e.commands import find_leftovers, wait_for_leftovers
from tests.fakes.commands import copy_without_break, read_lines, wait_for_lines
from tests.fakes.recorded import ROOT
from tests.fakes.requests import build_text
from tests.faults.checking import run_check
from tests.faults.fault import Answer

SLOWED = ("--candidate-env", "FAKE_SLOW=2.0")
"""A candidate that must be found slower, however the gate that measured it was disturbed."""

# Two blocks, no calibration: what is tested is what happens to the machine, not how small a loss is found.
SHORT = {"calibrate_first = true": "calibrate_first = false", "looks = [2, 3, 4, 6]": "looks = [2]"}
Disturb = Callable[["Gate", "subprocess.Popen[str]"], None]


def leave_alone(_gate: Gate, _process: subprocess.Popen[str]) -> None:
    """Disturb nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One gate with the fake engine: where it works, what its environment adds, what its scenario says otherwise."""

    folder: Path
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    name: str = "out"
    timeout_s: float = 300.0

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def out(self) -> Path:
        return self.folder / self.name

    def start(self, *more: str) -> subprocess.Popen[str]:
        path = self.folder / f"{self.name}.toml"
        path.write_text(build_text(**{**SHORT, **self.changes}))
        command = ("gate", str(path), "--out", str(self.out), "--profile", "never", *self.options, *more)
        return subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.run_perfgate", *command],
            cwd=ROOT,
            env={**os.environ, "PERFGATE_STATE": str(self.state), "FAKE_PROCESSES": "1", **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *more: str, disturb: Disturb = leave_alone) -> Answer:
        """Run to the end, disturbed on the way."""
        process = self.start(*more)
        disturb(self, process)
        _, err = process.communicate(timeout=self.timeout_s)
        return self.read(process.returncode, err)

    def read(self, code: int, err: str) -> Answer:
        """What the command said, and what is left of it."""
        lines = tuple(line for line in err.splitlines() if not line.startswith("["))
        lost = [*(["a traceback"] if "\nTraceback" in f"\n{err}" else []), *find_lost(self.state, self.out), *self.find_held()]
        if not (self.out / "verdict.json").exists():
            return Answer(got=f"exit {code}", told=lines, lost=tuple(lost))
        verdict = json.loads((self.out / "verdict.json").read_text())
        codes = {"PASS": 0, "IMPROVED": 0, "REGRESSION": 1, "INCONCLUSIVE": 3, "INVALID": 3}
        if code not in {codes[verdict["outcome"]], -signal.SIGKILL}:
            lost.append(f"{verdict['outcome']} with exit code {code}")
        return Answer(got=verdict["outcome"], told=(*verdict["reasons"], *verdict["warnings"], *lines), lost=tuple(lost))

    def find_held(self) -> list[str]:
        """Servers that still hold memory of the fake GPU, where the gate has one."""
        holders = Path(f"{self.env.get('FAKE_NVML', '')}.holders")
        pids = holders.read_text().split() if holders.exists() else []
        return [f"GPU memory of process {pid}" for pid in pids if is_alive(pid)]


def find_lost(state: Path, out: Path) -> list[str]:
    """Processes, ports and locks that are left, windows that are lost or counted twice."""
    left = [f"process {pid}: {command}" for pid, command in wait_for_leftovers(state)]
    if (out / ".lock").exists() and is_locked(out / ".lock"):
        left.append("the folder's lock")
    events = read_events(out)
    left += [f"port {event['port']}" for event in events if is_taken(event.get("port"))]
    return [*left, *find_miscounted(out, events)]


def read_events(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_lines(out, "events.jsonl") if (out / "events.jsonl").exists() else []
    return found


def is_locked(path: Path) -> bool:
    import fcntl

    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def is_taken(port: int | None) -> bool:
    with socket.socket() as probe:
        return port is not None and probe.connect_ex(("127.0.0.1", port)) == 0


def find_miscounted(out: Path, events: list[dict[str, Any]]) -> list[str]:
    """Windows whose file is named twice or by no line, and places that count twice.

    A session that was cut off may leave one file without a line: it was stored, and its line was not written any more.
    """
    index = read_lines(out, "windows.jsonl") if (out / "windows.jsonl").exists() else []
    resumed = [event for event in events if event["event"] == "resumed"]
    forgiven = 0 if any(event["event"] == "session_ended" for event in events) else 1
    gone = {file for event in resumed for file in event["superseded"]}
    stray = {file for event in resumed for file in event["unindexed"]}
    files = Counter(line["file"] for line in index)
    stored = {f"windows/{path.name}" for path in (out / "windows").glob("[0-9]*.gz")}
    places = Counter((line["block"], line["arm"], line["index"]) for line in index if line["file"] not in gone)
    return [
        *(f"{file} is indexed {count} times" for file, count in files.items() if count > 1),
        *(f"{file} is lost" for file in sorted(files.keys() - stored)),
        *(f"{file} has no line" for file in sorted(stored - files.keys() - stray)[forgiven:]),
        *(f"{place} counts {count} times" for place, count in places.items() if count > 1),
    ]


def run_gate(
    *options: str, disturb: Disturb = leave_alone, env: dict[str, str] | None = None, **changes: str
) -> Callable[[Path], Answer]:
    """Build a fault's run: one gate, disturbed."""

    def run(folder: Path) -> Answer:
        return Gate(folder=folder, options=options, env=env or {}, changes=changes).run(disturb=disturb)

    return run


def stop_and_resume(
    disturb: Disturb,
    codes: Iterable[int],
    *again: Disturb,
    build: Callable[[Path], Gate] = lambda folder: Gate(folder=folder, options=SLOWED),
    mend: Callable[[Path], None] = lambda _: None,
) -> Callable[[Path], Answer]:
    """Build a fault's run: a gate that is stopped, ends with one of `codes`, and goes on to the undisturbed verdict.

    Each of `again` stops a gate that goes on. `build` says which gate, `mend` undoes the fault before it goes on.
    """

    def run(folder: Path) -> Answer:
        gate = build(folder)
        stops = [stop(gate, act, codes) for act in (disturb, *again)]
        mend(folder)
        # Killed behind its last line, a gate may have come to its verdict all the same.
        is_judged = (gate.out / "verdict.json").exists()
        resumed = stops[-1] if is_judged else gate.run(*resuming(gate))
        lost = [*(lost for one in stops for lost in one.lost), *resumed.lost, *compare_undisturbed(gate)]
        told = (line for one in stops for line in one.told)
        return Answer(got=f"resumed: {resumed.got}", told=(*told, *resumed.told), lost=tuple(lost))

    return run


def resuming(gate: Gate) -> tuple[str, ...]:
    """What to say to go on; a folder without a session is begun anew."""
    return ("--resume",) if (gate.out / "session.json").exists() else ()


def stop(gate: Gate, disturb: Disturb, codes: Iterable[int]) -> Answer:
    """Start or go on, disturb, and expect one of `codes`."""
    process = gate.start(*resuming(gate))
    disturb(gate, process)
    _, err = process.communicate(timeout=gate.timeout_s)
    stopped = gate.read(process.returncode, err)
    if process.returncode in codes:
        return stopped
    return replace(stopped, lost=(*stopped.lost, f"it was stopped with exit code {process.returncode}"))


def compare_undisturbed(gate: Gate) -> list[str]:
    """The verdict is the one of the same windows without a break, byte for byte."""
    if not (gate.out / "verdict.json").exists():
        return ["no verdict"]
    copy = copy_without_break(gate.out, gate.folder / "undisturbed")
    written = (copy / "verdict.json").read_bytes()
    (copy / "verdict.json").unlink()
    again = run_check(gate.state, copy, "--output", gate.folder / "again.json")
    same = (gate.folder / "again.json").exists() and (gate.folder / "again.json").read_bytes() == written
    return [] if same else [f"undisturbed it says {again.got} {again.told[:1]}"]


def at(lines: int, act: Disturb) -> Disturb:
    """Disturb once the folder tells of so many windows and events."""

    def disturb(gate: Gate, process: subprocess.Popen[str]) -> None:
        wait_for_lines(process, gate.out, lines)
        act(gate, process)

    return disturb


def send(number: signal.Signals) -> Disturb:
    """Send the gate itself a signal."""
    return lambda _gate, process: process.send_signal(number)


def signal_processes(words: str, number: signal.Signals, which: int = -1) -> Disturb:
    """Send a signal to one of the gate's processes whose command line holds `words`; the youngest by default."""

    def act(gate: Gate, _process: subprocess.Popen[str]) -> None:
        found = sorted(pid for pid, command in find_leftovers(gate.state) if words in command)
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found[which], number)

    return act
