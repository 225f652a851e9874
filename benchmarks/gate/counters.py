"""Measure what equal arms on the CPU engine say of each counter that a scenario of theirs can move.

    python -m benchmarks.gate.counters /tmp/counters --blocks 20

Each scenario is served as it ships, but for shorter windows: a pair of fresh servers is a block, and no time of it is judged.
What was cut off goes on; after a session that ended with fewer blocks another one is measured. `counters.json` beside this file
keeps what each block says by itself, and all of them together.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfgate.evidence import Session
from perfgate.results.results import load_results
from perfgate.scenario.catalog import read_scenario_text
from perfgate.scenario.schema import Scenario
from perfgate.verdict.counters import count_blocks
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.series import read_blocks
from perfgate.verdict.validity.pairing import Block

RESULTS = Path(__file__).with_name("counters.json")
SCENARIOS = ("cpu-moe-prefix", "cpu-moe-kept", "cpu-moe-pool")
# Half the requests of a window or less: the pool is too small for them all the same, and prefixes are asked for again.
CHANGES = {
    r"steady_ratio = [\d.]+": "steady_ratio = 0.95",
    r"num_prompts = \d+": "num_prompts = 64",
    r"max_discards = \d+": "max_discards = 8",
}


def write_scenario(name: str, folder: Path) -> Path:
    """The scenario with short windows."""
    text, _ = read_scenario_text(name)
    for pattern, replacement in CHANGES.items():
        text, count = re.subn(pattern, replacement, text)
        if count != 1:
            raise SystemExit(f"{name}: {pattern!r} stands in it {count} times, not once")
    path = folder / f"{name}.toml"
    path.write_text(text.replace('"--gsp-prompts-per-group", "32"', '"--gsp-prompts-per-group", "16"'), encoding="utf-8")
    return path


def measure(name: str, folder: Path, blocks: int) -> list[Path]:
    """Serve the blocks, in as many sessions as they take, or go on; returns their folders.

    How `perfgate calibrate` ends says nothing of counters; SystemExit where a session has no block.
    """
    scenario, sessions, missing = write_scenario(name, folder), list[Path](), blocks
    while missing > 0:
        out = folder / f"{name}-{len(sessions) + 1}"
        command = [sys.executable, "-m", "perfgate", "calibrate", str(scenario), "--blocks", str(missing)]
        command += ["--out", str(out), "--to", str(folder / "baselines"), *(["--resume"] if out.exists() else [])]
        subprocess.run(command, check=False)
        sessions.append(out / "aa")
        found = len(load_blocks(sessions[-1])[-1])
        if not found:
            raise SystemExit(f"{out}: no block was measured")
        missing -= found
    return sessions


def load_blocks(folder: Path) -> tuple[Scenario, Session, tuple[Block, ...]]:
    """A session with its scenario and its whole blocks."""
    scenario, session = load_results(folder)
    return scenario, session, read_blocks(session, fix_policy(session, scenario, None))


def count(folders: Sequence[Path]) -> dict[str, Any]:
    """States of each counter over the blocks one by one, over all together, and the values that windows had."""
    loaded = [load_blocks(folder) for folder in folders]
    scenario, session, _ = loaded[0]
    facts = next(iter(session.fingerprints.values())).facts
    blocks = [block for *_, some in loaded for block in some]
    each = [one for block in blocks for one in count_blocks([block], scenario)]
    told: dict[str, Any] = {}
    for one in count_blocks(blocks, scenario):
        states = Counter(found.state.value for found in each if found.counter == one.counter)
        values = Counter(window.telemetry[one.counter] for block in blocks for window in (*block.base, *block.candidate))
        seen = {str(round(value, 6)): windows for value, windows in sorted(values.items())}
        told[one.counter] = {"blocks": dict(states), "together": one.state.value, "windows_by_value": seen}
    return {
        "sglang": facts["sglang"],
        "hardware": facts["hardware"],
        "blocks": len(blocks),
        "load": round(os.getloadavg()[0], 1),
        "counters": told,
    }


def main() -> None:
    """Measure and write down each scenario as soon as it is through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--blocks", type=int, default=20)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in given.scenarios:
        told = count(measure(name, given.folder, given.blocks))
        found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**found, name: told}, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
