"""Write docs/evidence/fault-table.md from the recorded runs of all faults.

    PERFGATE_FAULTS=build/faults.jsonl python -m pytest tests/faults -m "long or not long"
    python -m tests.faults.render build/faults.jsonl

The lines of the given files are merged into tests/faults/results.jsonl, the newest of each fault, and the page is written anew.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from perfgate.verdict.policy import RULE
from tests.fakes.recorded import ROOT
from tests.faults.catalogue import FAULTS
from tests.faults.fault import Fault, Kind
from tests.faults.results import RECORDED, Result, load

PAGE = ROOT / "docs" / "evidence" / "fault-table.md"
BARS = {Kind.SLOW: 0.95, Kind.WRONG: 1.0, Kind.BROKEN: 1.0, Kind.SICK: 1.0, Kind.SAME: 1.0}
SHOWN = 150
HEAD = """# Seeded faults and the gate's answers

Each row is a fault that was seeded on purpose and one run of `perfgate gate` or `perfgate check` as a separate process.
A fault is caught if the answer is the expected one, the message names the fault, and no process, port, lock, GPU memory or
window was left over, lost or counted twice.

- *Recorded H200 windows* were measured on an NVIDIA H200 (`benchmarks/h200/serving/routed`). The row says how they were edited,
  or that the fault itself was measured. `perfgate check` judges them, unchanged.
- *Fake engine* is a test server with the latencies that the test sets. `tests/fakes/run_perfgate.py` starts the gate with
  three changes: the fake engine replaces SGLang (`ENGINES`), SGLang need not be installed (`require_engine`), and in the row
  "port taken" the gate does not test whether the port is free (`find_free_port`). The load generator is a fake, too, and so are
  the GPU's driver and the disk where a row says so.
- *Real engine on the CPU* is SGLang with the model of `cpu-moe`, started by `perfgate gate`, unchanged.

Rows with a fake driver or disk need a C compiler. Without one they are skipped, and the row here is their last run.
The last column has the day, the commit (`+`: with uncommitted changes) and the version of the rule of that run.

`python -m tests.faults.render` writes this page from `tests/faults/results.jsonl`, which runs of the tests fill:

```sh
python -m pytest tests/faults            # the short ones, as `make test-all` runs them
PERFGATE_FAULTS=build/faults.jsonl python -m pytest tests/faults -m "long or not long"
python -m tests.faults.render build/faults.jsonl
```

"""

NOTES = {
    Kind.SLOW: """A *gap* in a fault's name is an ITL. The time to ready gates in `cpu-moe-start`, the server's memory in
`cpu-moe-memory`, and its growth there and in `soak`. The rows that seed a slow start or a growth of memory add that gate to
another scenario, as a user can.
""",
    Kind.SICK: """*Lines* are those of `events.jsonl` and `windows.jsonl` together.
""",
    Kind.SAME: """The recorded A/A rows share blocks: 20 blocks make ten disjoint pairs, so these rows are only ten independent
samples.
""",
}
"""What must be known to read a table."""


def main(paths: Iterable[str]) -> None:
    """Merge new results into the recorded ones and write the page."""
    found = load(RECORDED, *map(Path, paths))
    kept = [found[fault.name] for fault in FAULTS if fault.name in found]
    RECORDED.write_text("".join(json.dumps(asdict(result)) + "\n" for result in kept))
    PAGE.write_text(render(FAULTS, {result.name: result for result in kept}))


def render(faults: Iterable[Fault], results: Mapping[str, Result]) -> str:
    """The whole page: a count, then a table for each kind."""
    listed = list(faults)
    parts = [HEAD, f"| kind | faults | run | with rule {RULE} | caught | required |\n|:--|--:|--:|--:|--:|--:|\n"]
    parts += [render_count(kind, [fault for fault in listed if fault.kind is kind], results) for kind in Kind]
    for kind in Kind:
        note = f"{NOTES[kind]}\n" if kind in NOTES else ""
        parts.append(f"\n## {kind.value.capitalize()}\n\n{note}")
        parts.append("| fault | change | runs on | expected | answer | message | last run |\n|:--|:--|:--|:--|:--|:--|:--|\n")
        parts += [render_row(fault, results.get(fault.name)) for fault in listed if fault.kind is kind]
    return "".join(parts)


def render_count(kind: Kind, faults: list[Fault], results: Mapping[str, Result]) -> str:
    run = [results[fault.name] for fault in faults if fault.name in results]
    caught = sum(result.caught for result in run)
    current = sum(result.rule == RULE for result in run)
    unmet = ", NOT met" if caught < BARS[kind] * len(faults) else ""
    return f"| {kind.value} | {len(faults)} | {len(run)} | {current} | {caught} | {BARS[kind] * 100:.0f} %{unmet} |\n"


def render_row(fault: Fault, result: Result | None) -> str:
    cells = [fault.name, fault.made, fault.where.value, " or ".join(fault.expected)]
    if result is None:
        return as_line([*cells, "not run yet", "", ""])
    missed = "" if result.caught else f"NOT CAUGHT ({fault.missed or result.lost or 'another answer or reason'}): "
    run = ", ".join(part for part in (result.day, result.commit, f"rule {result.rule}" if result.rule else "") if part)
    return as_line([*cells, result.got, missed + shorten(result.by), run])


def shorten(line: str) -> str:
    """One line without paths of the machine that it was made on."""
    text = re.sub(r"/\S*/(?=[\w.-]+)", "", line.removeprefix("perfgate: "))
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def as_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |\n"


if __name__ == "__main__":
    main(sys.argv[1:])
