"""Seed one change at a time into a copy of the installed engine's scheduler, and compare the copies with an unchanged one.

    python -m benchmarks.scheduler.run nothing loop sync log
    python -m benchmarks.scheduler.run nothing --times 120 --busy

Needs valgrind and the CPU engine, no GPU. A seed is run under callgrind and without; each run is a line of runs.jsonl.gz, and
what is there already counts, so that a run that was cut off goes on. With `--busy` a loop that does nothing else runs beside
it, as a neighbour would. Each run of a seed is held against one of the unchanged copy, and of that copy each second run against
the one before it; results.json has what each comparison found, computed from the runs. Where a seed was not run under
callgrind, its events alone are compared, and the line says so.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from perfgate.resolution.arms import find_source
from perfgate.resolution.values import Kind
from perfgate.scheduler.ask import count_instructions, drive, find_valgrind, gather, prepare
from perfgate.scheduler.judge import RULES, compare_work, subtract
from perfgate.scheduler.report import describe_gap
from perfgate.scheduler.values import CostComparison, HostWork
from perfgate.stats.binomial import bound_rate

RUNS, RESULTS = (Path(__file__).with_name(name) for name in ("runs.jsonl.gz", "results.json"))
KINDS = ("events", "instructions")
PLACE = "srt/managers/scheduler.py"
ANCHOR = (
    "        if batch.forward_mode.is_decode():\n"
    "            self.batch_result_processor.process_batch_result_decode(batch, result)\n"
)
"""Lines that every step runs once, the same in the releases 0.5.15.post1 to 0.5.23."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSeed:
    """Lines that every step runs besides its own, and the key that must be lost by them; none where nothing must."""

    lines: tuple[str, ...]
    key: str = ""


SEEDS = {
    "nothing": SchedulerSeed(lines=()),
    # A turn of an empty loop is 105 instructions, and 196 beyond the 256 numbers that Python keeps; a step for 16 sequences is
    # 2.23 million: 3 % of a step, 2.3 %, which is just beyond the margin, and 0.8 %.
    "loop": SchedulerSeed(lines=("for _ in range(465):", "    pass"), key="scheduler.decode_step.instructions"),
    "middle loop": SchedulerSeed(lines=("for _ in range(380):", "    pass"), key="scheduler.decode_step.instructions"),
    "short loop": SchedulerSeed(lines=("for _ in range(175):", "    pass")),
    "sync": SchedulerSeed(lines=("self.device_module.synchronize()",), key="scheduler.decode_step.host_reads"),
    "read": SchedulerSeed(lines=("self.req_to_token_pool.req_to_token[0, 0].item()",), key="scheduler.decode_step.host_reads"),
    "log": SchedulerSeed(
        lines=('logger.info(f"Step {self.forward_ct}: {len(batch.reqs)} requests, {len(self.waiting_queue)} wait")',),
        key="scheduler.decode_step.log_records",
    ),
}


def find_engine() -> Path:
    """The installed engine's package. Raise SystemExit where there is none."""
    spec = find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("no sglang is installed here: perfgate engine install")
    return Path(spec.submodule_search_locations[0])


def plant(seed: SchedulerSeed, folder: Path) -> Path:
    """A tree of the installed engine with the seed in it: one file is written, all others are links."""
    source, target = find_engine(), folder / "sglang"
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
def keep_busy(*, is_busy: bool) -> Iterator[None]:
    """A neighbour that uses one core."""
    if not is_busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            yield
        finally:
            neighbour.kill()


def count_cpu_s(since: os.times_result) -> float:
    """CPU time of the processes that ended since then, in seconds."""
    now = os.times()
    return round(now.children_user + now.children_system - since.children_user - since.children_system, 1)


def run_seed(name: str, kind: str) -> dict[str, Any]:
    """One run of a seeded tree, as a line of the results."""
    begun_s, used = time.monotonic(), os.times()
    with tempfile.TemporaryDirectory(prefix="perfgate-seed-") as made:
        folder = prepare(Path(made))
        (folder / "tree").mkdir()
        source = find_source(str(plant(SEEDS[name], folder / "tree")), sys.executable, option="seed")
        if kind == "instructions":
            (lines,) = count_instructions([source], folder, find_valgrind())
        else:
            lines = list(drive([source], folder, ("cpu", "events"))[0].readings)
    windows = {key: runs[0] for key, runs in gather(source, "", [lines]).runs.items()}
    return {
        "seed": name,
        "kind": kind,
        "load": round(os.getloadavg()[0], 1),
        "cpu_s": count_cpu_s(used),
        "wall_s": round(time.monotonic() - begun_s, 1),
        "windows": windows,
    }


def read_runs() -> list[dict[str, Any]]:
    """All runs so far."""
    if not RUNS.exists():
        return []
    with gzip.open(RUNS, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_works(lines: Sequence[Mapping[str, Any]], name: str, kinds: Sequence[str]) -> list[HostWork]:
    """The runs of a seed, each with its windows of each kind."""
    found = [[line["windows"] for line in lines if line["seed"] == name and line["kind"] == kind] for kind in kinds]
    return [
        HostWork(name=name, version="", runs={key: (tuple(values),) for one in group for key, values in one.items()})
        for group in zip(*found, strict=False)
    ]


def compare_seed(lines: Sequence[Mapping[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """What the comparisons of a seed found: with the unchanged copy, or of that one with itself."""
    has_both = all(any(line["seed"] == one and line["kind"] == KINDS[1] for line in lines) for one in (name, "nothing"))
    kinds = KINDS if has_both else KINDS[:1]
    works, unchanged = read_works(lines, name, kinds), read_works(lines, "nothing", kinds)
    pairs = zip(works[::2], works[1::2], strict=False) if name == "nothing" else zip(unchanged, works, strict=False)
    for base, candidate in pairs:
        found = describe_comparison(name, compare_work(base, candidate, {}), base)
        apart = {} if kinds == KINDS[:1] else {"apart": round(measure_distance(base, candidate), 5)}
        yield {"seed": name, "kinds": list(kinds)} | found | apart


def measure_distance(base: HostWork, candidate: HostWork) -> float:
    """By how much the instructions of any window differ, at most, as a share of the base's."""
    keys = [key for key in base.runs if key.endswith(".instructions")]
    levels = [level for key in keys for level in base.runs[key][0]]
    changes = [more for key in keys for more in subtract(base.runs[key], candidate.runs[key])]
    return max(abs(more) / level for level, more in zip(levels, changes, strict=True))


def describe_comparison(name: str, comparison: CostComparison, base: HostWork) -> dict[str, Any]:
    """What was found, and whether it is what was predicted; what was not run counts for neither."""
    lost = list_lost(comparison)
    unverified = [describe_gap(gap) for gap in comparison.unverified if gap.key in base.runs]
    predicted = SEEDS[name].key
    is_right = not unverified and (predicted in lost if predicted else not lost)
    return {"lost": lost, "unverified": unverified, "predicted": predicted, "as_predicted": is_right}


def list_lost(comparison: CostComparison) -> dict[str, float]:
    """How much more the candidate does of each key that is lost: a share of the base, or, of events, a number."""
    return {
        one.key: round(one.more / one.base, 5) if RULES[one.key].margin_ratio is not None else round(one.more, 3)
        for one in comparison.differences
        if one.kind is Kind.LOST
    }


def summarize(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all runs cost, what their comparisons found, and how often one of unchanged copies may be wrong."""
    found = [one for name in SEEDS for one in compare_seed(lines, name)]
    costs = {kind: [line["cpu_s"] for line in lines if line["kind"] == kind] for kind in KINDS}
    unchanged = [one for one in found if one["seed"] == "nothing"]
    wrong = sum(not one["as_predicted"] for one in unchanged)
    return {
        "runs": {kind: len(costs[kind]) for kind in KINDS},
        "cpu_s": costs,
        "false_alarms": {"pairs": len(unchanged), "found": wrong, "at_most": round(bound_rate(wrong, len(unchanged)), 4)},
        "comparisons": found,
    }


def main() -> int:
    """Run what is missing; exit code 1 where a comparison is not as predicted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="+", choices=SEEDS)
    parser.add_argument("--times", type=int, default=1, help="runs of each seed and kind, those that are there included")
    parser.add_argument("--kind", choices=KINDS, help="this kind of run alone")
    parser.add_argument("--busy", action="store_true", help="keep one core busy meanwhile")
    given = parser.parse_args()
    lines = read_runs()
    for name, kind in product(given.seeds, [given.kind] if given.kind else KINDS):
        done = sum(line["seed"] == name and line["kind"] == kind for line in lines)
        for _ in range(given.times - done):
            with keep_busy(is_busy=given.busy):
                lines.append(run_seed(name, kind) | {"busy": given.busy})
            with gzip.open(RUNS, "at", encoding="utf-8") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    told = summarize(lines)
    RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    found = told["comparisons"]
    print(json.dumps(found, indent=1))
    return int(not all(one["as_predicted"] for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
