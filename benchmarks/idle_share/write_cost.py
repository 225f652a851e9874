"""Write docs/evidence/cost.md: what each scenario of a GPU costs, and how much of it is measuring.

    python -m benchmarks.idle_share.write_cost

Everything is computed from the committed result folders, most of them in the history, and from `cpu.json`, which `live.py`
wrote, as it writes `h200.json` on a machine with that GPU:

    python -m benchmarks.idle_share.live --scenario benchmarks/h200/serving/closed-c16.toml --model MODEL --windows 6 \
        --peer-windows 3 --out benchmarks/idle_share/h200.json
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.error_rates.recordings import Block, list_blocks
from benchmarks.h200.serving.routed_noise import H100, ROUTED
from benchmarks.history import restore_all
from benchmarks.idle_share.scenarios import HEAD, BlockCost, SessionBlocks, list_price, list_shapes, price_scenarios
from benchmarks.idle_share.shares import Idle, split_parts, summarize
from perfgate.core import Outcome, Role
from perfgate.evidence import Timing
from perfgate.gate.case import load_case
from perfgate.results.footprint import read_cold_starts
from perfgate.results.records import EVENTS_FILE
from perfgate.storage.journal import read_lines

ROOT = Path(__file__).parents[2]
LIVE = Path(__file__).with_name("cpu.json")
# Not every checkout has been to such a machine.
GPU_LIVE = Path(__file__).with_name("h200.json")
PAGE = ROOT / "docs" / "evidence" / "cost.md"
MINUTE_S = 60.0
UNDECIDED = (Outcome.INCONCLUSIVE, Outcome.INVALID)
INTRODUCTION = """# What a verdict costs

`python -m benchmarks.idle_share.write_cost` makes this page from the sessions of
[H200s](../../benchmarks/h200/serving/routed/README.md) and
[H100s](../../benchmarks/h100/serving/README.md), most of them in the git history, and from
{files}.

## GPU-minutes of a scenario

A block starts a server of each arm, measures both and stops them. Its GPU-minutes are its minutes of the clock, multiplied by
the number of GPUs that the session holds. The table has each shipped scenario whose model is a shape, in a row for each kind of
GPU that it ran on, and medians over the recorded blocks. The first look comes after {looks} blocks.

The first block of a session mostly takes longer than later ones. A block is cold where one of its servers found no compiled
kernel in its cache; a look is cold with such a block in it. Whole blocks count, also of sessions that were cut off or void.
A session counts for the scenario that it names, even where arguments of that scenario changed since. `-` says that no such
block or look was recorded.

A scenario of a published checkpoint costs what its shape does and the loading of the checkpoint, which was not measured.

{prices}
## GPU-minutes of a verdict
"""
VERDICTS = """Of {sessions} sessions with a window that counts, {decided} came to a verdict: {counts}.
The blocks that a verdict needed took {minutes:.1f} GPU-minutes in the median.
"""
SHARES = """All these sessions together took {minutes:.0f} GPU-minutes, with blocks that were cut off or came after the verdict:
{measuring:.0%} in windows that count, {warming:.0%} in windows that warm up, {starting:.0%} in starts of servers,
{rest:.0%} in the rest.
"""
ALONE = """With one process of `bench_serving` for each window, the same windows would take {more:.0%} more: the GPU waits
{extra:.1f} s longer for each. Both ways were measured at one server ({hardware}, SGLang {sglang}, at the end of this page).
"""
WAITING = """## Waiting between windows

The measured part of a block runs from the start of its first counted window to the end of its last one. The GPU waits while
the load generator prepares a window, and while perfgate flushes the cache, reads the machine and stores the window.

`bench_serving` waits one second before each load, reads the tokenizer again and draws the same prompts again.
The worker waits 0.05 s and keeps the tokenizer and the prompts; it sends the same requests at the same times.
"""
BOTH_WAYS = """## The worker and one process a run

Imports and the tokenizer are work of the host; a GPU does not make them shorter.
Where the load average is above the number of cores, both ways wait for a core and take longer than on a quiet machine.
"""
LIVE_TEXT = """One server of scenario `{scenario}`, SGLang {sglang} on {hardware}, in one run of
`python -m benchmarks.idle_share.live` (load average {load:.1f}):

{table}
One process a run waits {ratio:.1f} times as long.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one session cost. `windows` are all of them, warm-up included.

    `session` has the blocks that ended whole. `decided` is how many of them the verdict needed, and
    `decided_minutes` the GPU-minutes that these took; None for a session that never came to one.
    """

    name: str
    session: SessionBlocks
    outcome: Outcome
    decided: int | None
    decided_minutes: float | None
    windows: int
    timing: Timing
    idle: Idle


def main() -> None:
    """Write the page."""
    gpu = json.loads(GPU_LIVE.read_text()) if GPU_LIVE.exists() else None
    PAGE.write_text(
        build_page([*read_costs(restore_all(ROUTED)), *read_costs(restore_all(H100))], json.loads(LIVE.read_text()), gpu)
    )


def read_costs(parent: Path) -> list[Cost]:
    """Read every result folder below `parent` whose times are known."""
    return [cost for path in sorted(parent.glob("*/session.json")) if (cost := read_cost(path.parent)) is not None]


def read_cost(folder: Path) -> Cost | None:
    """What the session in `folder` cost; None where it does not say when things happened, or measured nothing that counts."""
    case = load_case(folder)
    scenario, session, verdict = case.scenario, case.session, case.verdict
    if session.timing is None or all(window.role is Role.WARMUP for window in session.windows):
        return None
    blocks = tuple(list_block_costs(folder, list_blocks(folder, scenario, session)))
    decided = None if verdict.outcome in UNDECIDED else verdict.blocks
    return Cost(
        name=folder.name,
        session=SessionBlocks(
            scenario=scenario.name,
            hardware=next(iter(session.fingerprints.values())).hardware,
            gpus=session.gpus,
            blocks=blocks,
        ),
        outcome=verdict.outcome,
        decided=decided,
        decided_minutes=None if decided is None else sum(block.gpu_minutes for block in blocks[:decided]),
        windows=len(session.windows),
        timing=session.timing,
        idle=summarize(split_parts(session, resident=scenario.blocks.resident)),
    )


def list_block_costs(folder: Path, blocks: Iterable[Block]) -> Iterator[BlockCost]:
    """What each of these blocks of the session in `folder` took."""
    cold = {start.start for start in read_cold_starts(read_lines(folder / EVENTS_FILE))}
    for block in blocks:
        yield BlockCost(
            number=block.number,
            gpu_minutes=block.machine_s / MINUTE_S,
            is_cold=any(window.start in cold for window in block.windows),
        )


def build_page(costs: Sequence[Cost], live: dict[str, Any], gpu: dict[str, Any] | None = None) -> str:
    """The page as text; `live` was measured without a GPU, `gpu` with one."""
    files = {LIVE: live, **({GPU_LIVE: gpu} if gpu else {})}
    # Of the machine that the sessions ran on, where both ways were measured there.
    compared = next((one for one in (gpu, live) if one and "process_per_run" in one), {})
    extra_s = find_extra(compared)
    shapes = list_shapes()
    lives = [describe_live(one) for one in files.values() if "worker" in one]
    parts = [
        INTRODUCTION.format(
            files=" and ".join(f"`{file.relative_to(ROOT)}`" for file in files),
            looks=" or ".join(str(blocks) for blocks in sorted({shape.blocks.looks[0] for shape in shapes})),
            prices=build_table(HEAD, map(list_price, price_scenarios(shapes, [cost.session for cost in costs]))),
        ),
        *describe_verdicts(costs),
        describe_shares(costs),
        *([describe_alone(costs, extra_s, compared["environment"])] if extra_s else []),
        WAITING,
        build_table(
            ("session", "windows", "load of a window", "preparing it", "between two", "idle share"),
            (list_idle(cost) for cost in costs),
        ),
        *([BOTH_WAYS, *lives] if lives else []),
    ]
    return "\n".join(parts)


def build_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose first column is left-aligned."""
    rule = [":--", *("--:" for _ in head[1:])]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def find_extra(live: dict[str, Any]) -> float | None:
    """How much longer the GPU waits for each window with one process a run, in seconds; None where it was not measured."""
    if not {"worker", "process_per_run"} <= live.keys():
        return None
    alone, ours = (live[way]["idle"] for way in ("process_per_run", "worker"))
    return float(sum(alone[part] - ours[part] for part in ("preparing_s", "between_s")))


def describe_verdicts(costs: Sequence[Cost]) -> Iterator[str]:
    """After how many blocks the sessions came to a verdict, and what it cost; nothing where none did."""
    decided = [cost for cost in costs if cost.decided_minutes is not None]
    counts = sorted(Counter(cost.decided or 0 for cost in decided).items())
    if decided:
        yield VERDICTS.format(
            sessions=len(costs),
            decided=len(decided),
            counts=", ".join(f"{sessions} after {blocks} block{'s' * (blocks > 1)}" for blocks, sessions in counts),
            minutes=median(cost.decided_minutes or 0.0 for cost in decided),
        )


def describe_shares(costs: Sequence[Cost]) -> str:
    """What all sessions together spent their GPUs on."""
    took_s = sum_gpu_seconds(costs, "took_s")
    shares = {part: sum_gpu_seconds(costs, f"{part}_s") / took_s for part in ("measuring", "warming", "starting")}
    return SHARES.format(minutes=took_s / MINUTE_S, rest=1 - sum(shares.values()), **shares)


def describe_alone(costs: Sequence[Cost], extra_s: float, environment: Mapping[str, str]) -> str:
    """What the same windows would cost, each with a load generator of its own, for which the GPU waits `extra_s` longer."""
    longer_s = sum(cost.session.gpus * cost.windows * extra_s for cost in costs)
    return ALONE.format(more=longer_s / sum_gpu_seconds(costs, "took_s"), extra=extra_s, **environment)


def sum_gpu_seconds(costs: Iterable[Cost], part: str) -> float:
    """The seconds of a part of Timing, over all GPUs of all sessions."""
    return sum(cost.session.gpus * float(getattr(cost.timing, part)) for cost in costs)


def list_idle(cost: Cost) -> list[str]:
    """A row of the table of waiting."""
    idle = cost.idle
    seconds = [f"{value:.2f} s" for value in (idle.load_s, idle.preparing_s, idle.between_s)]
    return [cost.name, str(idle.windows), *seconds, f"{idle.share:.0%}"]


def describe_live(live: dict[str, Any]) -> str:
    """What both ways took on one machine."""
    hardware = live["environment"]["hardware"]
    ways = {"perfgate's worker": live["worker"], "one process a run": live["process_per_run"]}
    idle = {name: Idle(**way["idle"]) for name, way in ways.items()}
    worker, peer = idle.values()
    head = (
        "load generator",
        "windows",
        "load of a window",
        "preparing it",
        "between two",
        "idle share",
        "CPU time of a window",
    )
    rows = (
        [
            name,
            str(found.windows),
            *(f"{value:.2f} s" for value in (found.load_s, found.preparing_s, found.between_s)),
            f"{found.share:.0%}",
            f"{ways[name]['cpu_s']:.1f} s" if "cpu_s" in ways[name] else "not taken",
        ]
        for name, found in idle.items()
    )
    return LIVE_TEXT.format(
        scenario=live["scenario"],
        sglang=live["environment"]["sglang"],
        hardware=f"{hardware} without a GPU" if hardware.startswith("cpu-") else hardware,
        load=live["load_average"][0],
        table=build_table(head, rows),
        ratio=peer.waiting_s / worker.waiting_s,
    )


if __name__ == "__main__":
    main()
