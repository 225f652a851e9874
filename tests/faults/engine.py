"""Faults in a real SGLang server on the CPU: slowed by injections and arguments, broken by a plug-in.

All gates share one machine state, so that the noise of this machine is calibrated once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfgate.machine.processes import list_session
from perfgate.scenario.catalog import read_scenario_text
from tests.e2e.commands import build_environment, find_leftovers
from tests.e2e.conftest import CHANGES
from tests.fakes.recorded import ROOT
from tests.faults.fault import Answer, Fault, Kind, Where
from tests.faults.gating import Disturb, Gate, at, leave_alone, send, signal_processes, stop_and_resume

PLUGIN = Path(__file__).with_name("plug-in")
EQUAL_RUNS = 25
TWO_RANKS = {
    'name = "cpu-moe"': 'name = "cpu-moe-ranks"',
    '"--max-running-requests", "16",': '"--max-running-requests", "16", "--tp-size", "2",',
    'OMP_NUM_THREADS = "1"': 'OMP_NUM_THREADS = "1", SGLANG_CPU_OMP_THREADS_BIND = "0|1"',
}
"""Two tensor ranks, each on a core of its own: SGLang's CPU engine refuses more ranks than NUMA nodes without such a list."""
STATE = Path(os.environ.get("PERFGATE_FAULT_STATE") or Path(tempfile.gettempdir()) / "perfgate-fault-state")


def write_scenario(folder: Path, gates: str, changes: Mapping[str, str]) -> Path:
    """cpu-moe with small windows, as the end-to-end tests run it, and a third and fourth block where two do not decide.

    With further `gates` it has a name of its own, so that the noise of what they gate is calibrated, too.
    """
    text, _ = read_scenario_text("cpu-moe")
    if gates:
        text = text.replace('name = "cpu-moe"', 'name = "cpu-moe-further"') + gates
    for before, after in {**CHANGES, "looks = [2, 3, 4, 6]": "looks = [2, 3, 4]", **changes}.items():
        if before not in text:
            raise ValueError(f"cpu-moe does not say {before!r}")
        text = text.replace(before, after)
    path = folder / "small.toml"
    path.write_text(text)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class RealGate(Gate):
    """A gate with real servers: the command as its users start it. `gates` are sections that the scenario gets besides.

    `rewrites` are texts of the scenario with what stands in their place.
    """

    gates: str = ""
    rewrites: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 1500.0

    @property
    def state(self) -> Path:
        return STATE

    def start(self, *more: str) -> subprocess.Popen[str]:
        path = write_scenario(self.folder, self.gates, self.rewrites)
        command = ("gate", str(path), "--out", str(self.out), "--profile", "never")
        return subprocess.Popen(
            [sys.executable, "-m", "perfgate", *command, *self.options, *more],
            cwd=ROOT,
            env=build_environment(self.state),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def run_engine(*options: str, fault: str = "", disturb: Disturb = leave_alone, **scenario: Any) -> Callable[[Path], Answer]:
    """Build a fault's run: one gate with real servers, the candidate's broken by `fault` where it is named.

    `scenario` is what RealGate takes of its scenario.
    """

    def run(folder: Path) -> Answer:
        broken = (f"--candidate-env=SEEDED_FAULT={fault}", f"--candidate-env=PYTHONPATH={PLUGIN}") if fault else ()
        return RealGate(folder=folder, options=(*options, *broken), **scenario).run(disturb=disturb)

    return run


def kill_second_rank(gate: Gate, _process: subprocess.Popen[str]) -> None:
    """SIGKILL the second tensor rank of the younger server, found by its session: a rank hides its environment."""
    server = max(pid for pid, command in find_leftovers(gate.state) if "launch_server" in command)
    titles = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in list_session(server)}
    (rank,) = (pid for pid, title in titles.items() if b"scheduler_TP1" in title)
    os.kill(rank, signal.SIGKILL)


def build_slowed(folder: Path) -> Gate:
    return RealGate(folder=folder, options=("--candidate-inject", "step:2.0"))


def row(  # noqa: PLR0917 - a row of the table below
    kind: Kind, name: str, made: str, run: Callable[[Path], Answer], words: str, expected: tuple[str, ...] = ()
) -> Fault:
    wanted = expected or (("REGRESSION",) if kind is Kind.SLOW else ("INVALID",))
    return Fault(name=name, kind=kind, made=made, where=Where.ENGINE, expected=wanted, words=words, run=run, is_long=True)


ENGINE = (
    row(
        Kind.SLOW,
        "host sleep in a real scheduler",
        "--candidate-inject host:20000",
        run_engine("--candidate-inject", "host:20000"),
        "is worse",
    ),
    row(
        Kind.SLOW,
        "slower steps in a real server",
        "--candidate-inject step:2.0",
        run_engine("--candidate-inject", "step:2.0"),
        "is worse",
    ),
    row(
        Kind.SLOW,
        "slower steps of two tensor ranks",
        "--tp-size 2, --candidate-inject step:2.0",
        run_engine("--candidate-inject", "step:2.0", rewrites=TWO_RANKS),
        "is worse",
    ),
    row(
        Kind.SLOW,
        "smaller batch limit in a real server",
        "--max-running-requests 4",
        run_engine("--candidate-arg=--max-running-requests=4"),
        "is worse",
    ),
    row(
        Kind.SLOW,
        "JIT cache miss in a real server",
        "a model traced anew every 20 batches",
        run_engine(fault="jit"),
        "is worse",
    ),
    row(
        Kind.WRONG,
        "kernel that returns zeros",
        "plug-in around FusedMoE.forward",
        run_engine(fault="zeros"),
        "its answers are wrong",
    ),
    row(
        Kind.WRONG,
        "kernel that drops an expert",
        "plug-in around FusedMoE.forward",
        run_engine(fault="drop_expert"),
        "its answers are wrong",
    ),
    row(
        Kind.WRONG,
        "early EOS in a real server",
        "plug-in: requests end after three tokens",
        run_engine(fault="early"),
        "3 tokens came back where 32 were asked for",
    ),
    row(
        Kind.WRONG,
        "flushing that does nothing",
        "plug-in around Scheduler.flush_cache",
        run_engine(fault="keep_cache"),
        "of random prompts came from the prefix cache",
    ),
    row(
        Kind.WRONG,
        "skipped layer in a real server",
        "plug-in: the second of two layers does nothing",
        run_engine(fault="skip_layer"),
        "the arms route differently: they have not the same routed layers",
    ),
    row(
        Kind.WRONG,
        "other quantisation in a real server",
        "plug-in: all weights rounded to 3 bits",
        run_engine(fault="round"),
        "its answers are wrong",
    ),
    row(
        Kind.SLOW,
        "memory growth in a real server",
        "every batch keeps 4 MiB; server_memory_mib gates",
        run_engine(fault="leak", gates="\n[gates.server_memory_mib]\n"),
        "Server memory is worse",
    ),
    row(
        Kind.SICK,
        "real server killed",
        "SIGKILL to the younger server once 13 lines are written",
        run_engine(disturb=at(13, signal_processes("--port", signal.SIGKILL))),
        "server ended by itself with exit code -9",
    ),
    row(
        Kind.SICK,
        "one of two tensor ranks killed",
        "--tp-size 2, SIGKILL to the younger server's second rank once 13 lines are written",
        run_engine(disturb=at(13, kill_second_rank), rewrites=TWO_RANKS),
        "server ended by itself with exit code",
    ),
    row(
        Kind.SICK,
        "gate killed over real servers",
        "SIGKILL once 13 lines are written, then --resume; the candidate's steps are slowed by step:2.0",
        stop_and_resume(at(13, send(signal.SIGKILL)), (-signal.SIGKILL,), build=build_slowed),
        "is worse",
        ("resumed: REGRESSION",),
    ),
    *(
        row(Kind.SAME, f"A/A in real servers {run}", "equal arms", run_engine(), "", ("PASS", "IMPROVED", "INCONCLUSIVE"))
        for run in range(1, EQUAL_RUNS + 1)
    ),
)
