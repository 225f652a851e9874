"""Write docs/evidence/fault-table.md from what the runs of all faults said.

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
HEAD = """# Seeded faults, and what the gate said

Every row is a fault that was put in on purpose and a run of `perfgate gate` or `perfgate check`, as a process of its own.
A fault is caught when the outcome is the expected one, the reason is the fault's own, and no process, port, lock, GPU memory or
window was left, lost or counted twice.

- *Recorded H200 windows* were measured on an NVIDIA H200 (`benchmarks/h200/serving/routed`) and doctored as the row says,
  unless it says that they were measured so. `perfgate check` judges them as it is shipped.
- *Fake engine* is a server of the tests that tells the times it is told to. These rows start the gate by
  `tests/fakes/run_perfgate.py`, which changes three things in it: the fake engine stands in SGLang's place (`ENGINES`), SGLang
  need not be installed (`require_engine`), and in the row "port taken" it is not tested whether the port is free
  (`find_free_port`). The load generator and, where a row says so, the GPU's driver and the disk are fakes, too.
- *Real engine on the CPU* is SGLang, started by `perfgate gate` as it is shipped, with the model of `cpu-moe`.

Rows with a fake driver or disk need a C compiler. Without one they are skipped, and the line here is of their last run.
The last column tells the day, the commit (`+`: with changes that were not committed) and the version of the rule of that run.

The page is written by `python -m tests.faults.render` from `tests/faults/results.jsonl`, which runs of the tests fill:

```sh
python -m pytest tests/faults            # the short ones, as `make test-all` runs them
PERFGATE_FAULTS=build/faults.jsonl python -m pytest tests/faults -m "long or not long"
python -m tests.faults.render build/faults.jsonl
```

"""

NOTES = {
    Kind.SLOW: """The time to ready gates in `cpu-moe-start`, the server's memory in `cpu-moe-memory`, its growth there and
in `soak`. The rows that seed a slow start or a growth of memory put that gate into another scenario, as a user would who
wants it.
""",
    Kind.SAME: """The recorded A/A rows share blocks: 20 blocks make ten disjoint pairs, so these rows are ten independent
draws and not as many as there are rows.
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
    parts = [HEAD, f"| kind | faults | run | of them by rule {RULE} | caught | bar |\n|:--|--:|--:|--:|--:|--:|\n"]
    parts += [render_count(kind, [fault for fault in listed if fault.kind is kind], results) for kind in Kind]
    for kind in Kind:
        note = f"{NOTES[kind]}\n" if kind in NOTES else ""
        parts.append(f"\n## {kind.value.capitalize()}\n\n{note}")
        parts.append("| fault | made of | on | expected | got | caught by | last run |\n|:--|:--|:--|:--|:--|:--|:--|\n")
        parts += [render_row(fault, results.get(fault.name)) for fault in listed if fault.kind is kind]
    return "".join(parts)


def render_count(kind: Kind, faults: list[Fault], results: Mapping[str, Result]) -> str:
    run = [results[fault.name] for fault in faults if fault.name in results]
    caught = sum(result.caught for result in run)
    current = sum(result.rule == RULE for result in run)
    return f"| {kind.value} | {len(faults)} | {len(run)} | {current} | {caught} | {BARS[kind] * 100:.0f} % |\n"


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
