"""What a session saw of others who used its GPU or its host: which windows they touched, and which were called disturbed.

    python benchmarks/h200/serving/co_tenants.py RESULT_DIR [BURSTS.json]

BURSTS.json says when a process that did not belong to the session lived (`process_from`, `process_to`, seconds since 1970), as
the program that started it noted. A session's clock starts in the second that `begun_utc` names, so windows that a process came
within a second of are counted as neither touched nor clean.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from statistics import median

from perfgate.check import judge
from perfgate.evidence.records import read_record
from perfgate.evidence.results import load_results

UNSURE_S = 1.0
HEAD = "| process on the GPU | windows | called foreign | clean by its telemetry |\n|:--|:--|:--|:--|"


def tell_bursts(folder: Path, bursts: Path) -> None:
    """One line for the windows that a process touched, one for those that it did not."""
    _, session = load_results(folder)
    begun = datetime.fromisoformat(read_record(folder).begun_utc).timestamp()
    lives = [(one["process_from"], one["process_to"]) for one in json.loads(bursts.read_text())]
    counts = {"during the window": [0, 0], "not": [0, 0], "within a second of it": [0, 0]}
    for window in session.windows:
        first, last = begun + window.begun_s, begun + window.ended_s
        touched = any(low < last - UNSURE_S and high > first + UNSURE_S for low, high in lives)
        clean = all(low > last + UNSURE_S or high < first - UNSURE_S for low, high in lives)
        key = "during the window" if touched else "not" if clean else "within a second of it"
        counts[key][0] += 1
        counts[key][1] += window.telemetry.get("foreign_processes", 0) > 0
    print(HEAD)
    for key, (windows, foreign) in counts.items():
        print(f"| {key} | {windows} | {foreign} | {windows - foreign} |")


def tell_host(folder: Path) -> None:
    """The share of CPU time that went to others, and what each arm's windows showed beside it."""
    _, session = load_results(folder)
    for window in session.windows:
        share = window.telemetry.get("foreign_cpu_share", float("nan"))
        values = window.run.values
        print(
            f"{window.arm.value:10} {window.role.value:9} others {share:6.1%}  "
            f"median ITL {values['median_itl_ms']:.2f} ms  P99 ITL {values['p99_itl_ms']:6.2f} ms  "
            f"{values['output_tok_per_s']:.0f} tok/s"
        )
    shares = [window.telemetry["foreign_cpu_share"] for window in session.windows if "foreign_cpu_share" in window.telemetry]
    print(f"others at the median {median(shares):.1%}, at most {max(shares):.1%}")


def main(folder: Path, bursts: Path | None) -> None:
    scenario, session = load_results(folder)
    if bursts is None:
        tell_host(folder)
    else:
        tell_bursts(folder, bursts)
    print(f"verdict by its own noise: {judge(session, scenario, None).outcome.value}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
