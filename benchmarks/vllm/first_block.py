"""Print what vLLM served on a GPU in the one whole block of a void session, beside SGLang's equal arms of that lease.

    python -m benchmarks.vllm.first_block

The table of README.md: both engines have one recipe for the weights and one load. Everything comes from stored windows, which
lie in the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.h200.serving.routed_noise import ROUTED, draw, measure_scatter
from benchmarks.history import restore_all
from perfgate.core import Arm
from perfgate.gate.case import load_case
from perfgate.metrics import METRICS
from perfgate.results.footprint import read_starts
from perfgate.results.records import EVENTS_FILE
from perfgate.storage.journal import read_lines
from perfgate.verdict.validity.pairing import fix_rules, group_starts

RESULTS = Path(__file__).with_name("results")
SHOWN = ("output_tok_per_s", "median_itl_ms", "p99_itl_ms", "mean_ttft_ms")
SESSIONS = {"vLLM 0.26.0": (RESULTS, "mxfp4-mixed-c16-aa-1"), "SGLang 0.5.16": (ROUTED, "mxfp4-mixed-c16-aa-14")}
"""What is shown: the folder of sessions, and the session."""
HEAD = ("server", "arm", "windows", *(f"{METRICS[one].title} ({METRICS[one].unit})" for one in SHOWN), "ready after")


def write_table() -> str:
    """A row an arm: the median of its windows that count, and their scatter within a start."""
    rows = (row for name, (home, session) in SESSIONS.items() for row in list_arms(name, restore_all(home) / session))
    return draw(HEAD, rows)


def list_arms(name: str, folder: Path) -> Iterator[Sequence[str]]:
    """A row an arm of a session."""
    ready = read_starts(read_lines(folder / EVENTS_FILE))
    case = load_case(folder)
    starts, rules = group_starts(case.session), fix_rules(case.scenario, {})
    for arm in Arm:
        mine = [start for start in starts if start.arm is arm]
        windows = [window for start in mine for window in start.pick_judged(rules)]
        cells = (
            f"{median(one.run.values[metric] for one in windows):,.1f} (±{100 * measure_scatter(windows, metric):.1f} %)"
            for metric in SHOWN
        )
        yield (name, arm.value, str(len(windows)), *cells, ", ".join(f"{ready[one.number]['ready_s']:.0f} s" for one in mine))


if __name__ == "__main__":
    print(write_table())
