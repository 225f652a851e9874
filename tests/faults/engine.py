"""Faults in a real SGLang server on the CPU: slowed by injections and arguments, broken by a plug-in.

All gates share one machine state, so that the noise of this machine is calibrated once.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from perfgate.scenario import read_scenario_text
from tests.e2e.commands import run_perfgate
from tests.e2e.conftest import CHANGES
from tests.faults.fault import Answer, Fault, Kind, Where
from tests.faults.gating import find_lost

PLUGIN = Path(__file__).with_name("seeded_plugin.py")
EQUAL_RUNS = 30
STATE = Path(os.environ.get("PERFGATE_FAULT_STATE") or Path(tempfile.gettempdir()) / "perfgate-fault-state")


def write_scenario(folder: Path) -> Path:
    """cpu-moe with small windows, as the end-to-end tests run it, and a third and fourth block where two do not decide."""
    text, _ = read_scenario_text("cpu-moe")
    for before, after in {**CHANGES, "looks = [2, 3, 4, 6]": "looks = [2, 3, 4]"}.items():
        text = text.replace(before, after)
    path = folder / "small.toml"
    path.write_text(text)
    return path


def write_plugin(folder: Path) -> Path:
    """A folder that makes the plug-in visible to a server which has it on PYTHONPATH."""
    place = folder / "plug-in"
    facts = place / "seeded_fault-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: seeded-fault\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[sglang.srt.plugins]\nseeded_fault = seeded_plugin:register\n")
    (place / PLUGIN.name).write_bytes(PLUGIN.read_bytes())
    return place


def run_engine(*options: str, fault: str = "") -> Callable[[Path], Answer]:
    """Build a fault's run: one gate with real servers."""

    def run(folder: Path) -> Answer:
        place = write_plugin(folder)
        broken = (f"--candidate-env=SEEDED_FAULT={fault}", f"--candidate-env=PYTHONPATH={place}") if fault else ()
        out = folder / "out"
        command = ("gate", write_scenario(folder), "--out", out, "--profile", "never", *options, *broken)
        ended = run_perfgate(STATE, *command, timeout_s=1500)
        lost = find_lost(STATE, out)
        if not (out / "verdict.json").exists():
            return Answer(got=f"exit {ended.code}", told=tuple(ended.err.splitlines()[-3:]), lost=tuple(lost))
        verdict = json.loads((out / "verdict.json").read_text())
        return Answer(got=verdict["outcome"], told=(*verdict["reasons"], *verdict["warnings"]), lost=tuple(lost))

    return run


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
    row(Kind.WRONG, "early EOS in a real server", "plug-in: requests end after three tokens", run_engine(fault="early"), "3"),
    row(
        Kind.WRONG,
        "flushing that does nothing",
        "plug-in around Scheduler.flush_cache",
        run_engine(fault="keep_cache"),
        "cache",
    ),
    *(
        row(Kind.SAME, f"A/A in real servers {run}", "equal arms", run_engine(), "", ("PASS", "IMPROVED", "INCONCLUSIVE"))
        for run in range(1, EQUAL_RUNS + 1)
    ),
)
