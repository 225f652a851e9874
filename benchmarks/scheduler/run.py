"""Seed one change at a time into a copy of the installed engine's scheduler, and compare the copy with the engine.

    python -m benchmarks.scheduler.run nothing --times 60 --busy
    python -m benchmarks.scheduler.run loop sync log

Needs valgrind and the CPU engine, no GPU. Each comparison is one line of results.jsonl; what is there already counts, so that a
run that was cut off goes on. With `--busy` a loop that does nothing else runs beside the arms, as a neighbour would.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perfgate.resolution.arms import find_source
from perfgate.scheduler.ask import measure_arms
from perfgate.scheduler.judge import compare_work, subtract
from perfgate.scheduler.rules import RULES
from perfgate.scheduler.values import CostComparison

RESULTS = Path(__file__).with_name("results.jsonl")
PLACE = "srt/managers/scheduler.py"
ANCHOR = "        self.publish_load_snapshot(force=batch.forward_mode.is_extend())\n"
"""A line that every step runs once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSeed:
    """Lines that every step runs besides its own, and the key that must be lost by them; none where nothing must."""

    lines: tuple[str, ...]
    key: str = ""


SEEDS = {
    "nothing": SchedulerSeed(lines=()),
    # 360 turns of an empty loop are 3 % of a step, 2.23 million instructions for 16 sequences; 120 turns are 1 %.
    "loop": SchedulerSeed(lines=("for _ in range(360):", "    pass"), key="scheduler.decode_step.instructions"),
    "short loop": SchedulerSeed(lines=("for _ in range(120):", "    pass")),
    "sync": SchedulerSeed(lines=("self.device_module.synchronize()",), key="scheduler.decode_step.host_reads"),
    "read": SchedulerSeed(lines=("batch.seq_lens.max().item()",), key="scheduler.decode_step.host_reads"),
    "log": SchedulerSeed(
        lines=('logger.info(f"Step {self.forward_ct}: {len(batch.reqs)} requests, {len(self.waiting_queue)} wait")',),
        key="scheduler.decode_step.log_records",
    ),
}


def plant(seed: SchedulerSeed, folder: Path) -> Path:
    """A tree of the installed engine with the seed in it: one file is written, all others are links."""
    spec = find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("no sglang is installed here: perfgate engine install")
    engine = Path(spec.submodule_search_locations[0])
    source, target = engine, folder / "sglang"
    for name in Path(PLACE).parts:
        target.mkdir()
        for entry in source.iterdir():
            if entry.name != name:
                (target / entry.name).symlink_to(entry)
        source, target = source / name, target / name
    text = source.read_text(encoding="utf-8")
    if text.count(ANCHOR) != 1:
        raise SystemExit(f"{source}: {ANCHOR.strip()!r} does not stand in it once")
    target.write_text(text.replace(ANCHOR, "".join(f"        {line}\n" for line in seed.lines) + ANCHOR), encoding="utf-8")
    return folder


@contextmanager
def keep_busy(is_busy: bool) -> Iterator[None]:
    """A neighbour that uses one core."""
    if not is_busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            yield
        finally:
            neighbour.kill()


def compare_seed(name: str, is_busy: bool) -> dict[str, Any]:
    """One comparison of the engine with a seeded tree, as a line of the results."""
    begun_s, seed = time.monotonic(), SEEDS[name]
    with tempfile.TemporaryDirectory(prefix="perfgate-seed-") as made, keep_busy(is_busy):
        base = find_source(sys.executable, sys.executable, option="base")
        candidate = find_source(str(plant(seed, Path(made))), sys.executable, option="candidate")
        used = os.times()
        comparison = compare_work(*measure_arms(base, candidate), {})
    now = os.times()
    lost = [one.key for one in comparison.differences if one.kind.value == "lost"]
    return {
        "seed": name,
        "busy": is_busy,
        "load": round(os.getloadavg()[0], 1),
        "answer": comparison.answer.value,
        "lost": lost,
        "as_predicted": seed.key in lost if seed.key else not lost,
        "unverified": list(comparison.unverified),
        "differences": [asdict(one) | {"kind": one.kind.value} for one in comparison.differences],
        "shares": list_shares(comparison),
        "cpu_s": round(now.children_user + now.children_system - used.children_user - used.children_system, 1),
        "wall_s": round(time.monotonic() - begun_s, 1),
    }


def list_shares(comparison: CostComparison) -> dict[str, list[float]]:
    """By how much each window's instructions changed, as shares."""
    shares = {}
    for key, rule in RULES.items():
        if rule.margin is not None and comparison.base.runs.get(key) and comparison.candidate.runs.get(key):
            base = comparison.base.runs[key]
            changes = subtract(base, comparison.candidate.runs[key])
            shares[key] = [round(more / level, 6) for more, level in zip(changes, base[0], strict=True)]
    return shares


def main() -> int:
    """Run what is missing; exit code 1 where a line is not as predicted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="+", choices=SEEDS)
    parser.add_argument("--times", type=int, default=1, help="lines of each seed, those that are there included")
    parser.add_argument("--busy", action="store_true", help="keep one core busy meanwhile")
    given = parser.parse_args()
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()] if RESULTS.exists() else []
    for name in given.seeds:
        done = sum(line["seed"] == name and line["busy"] == given.busy for line in lines)
        for _ in range(given.times - done):
            lines.append(compare_seed(name, given.busy))
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            print({key: lines[-1][key] for key in ("seed", "answer", "lost", "as_predicted", "wall_s")}, flush=True)
    return int(not all(line["as_predicted"] for line in lines if line["seed"] in given.seeds))


if __name__ == "__main__":
    raise SystemExit(main())
