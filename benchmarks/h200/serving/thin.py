"""Copy the result folder of a session or a matrix so that it fits into a repository.

    python benchmarks/h200/serving/thin.py RESULT_DIR OUT_DIR

Left out: generated texts, what warm-up windows tell of single requests (nothing judges it; a gate that no sum of the
load generator holds keeps what it is computed from), the server's settings in all windows but the first. ITLs and TTFTs
are rounded to a microsecond. A window of 16,384 tokens shrinks from 130 to about 30 kB. What the load generator summed
up stays as it wrote it. The script ends with an error if an outcome differs, or a ratio of the arms or a cell's level
moves by more than a fiftieth of a percent. Logs stay behind, but for the lines in which a server tells what an injected
slow-down spent, how long a part of its start took, or that a process of it died.
Telemetry, servers' settings, answers to the fixed prompts, the
experts that tokens chose and the stored noise that the session was judged by come along unchanged. Of a profile with
GPU kernels only these stay, with how they were launched: nothing else is read where kernels ran. Both indexes get the
digests of the new files, and an event says what was done.
`perfgate pack OUT_DIR` then puts what is left into one file, of less than half the size.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
import sys
from math import inf, log, log1p
from pathlib import Path
from typing import Any

from perfgate.check import judge
from perfgate.core import Judgement
from perfgate.engines.table import ENGINES
from perfgate.gate.case import KEPT
from perfgate.results.answers import ANSWER_DIR, ANSWERS_FILE
from perfgate.results.expert_use import INDEX_FILE as USE_FILE
from perfgate.results.expert_use import RAW_DIR as USE_DIR
from perfgate.results.machine_samples import TELEMETRY_FILE
from perfgate.results.matrix import MATRIX_FILE, TEXT_FILE, load_matrix
from perfgate.results.profiling.profiles import PROFILES_FILE
from perfgate.results.raw.pack import GZIP_MAGIC
from perfgate.results.readings import PROCESSES_RESTARTED
from perfgate.results.records import EVENTS_FILE, INDEX_FILE, LOG_DIR, SCENARIO_FILE, SESSION_FILE
from perfgate.results.results import load_results
from perfgate.results.server_info import SERVER_DIR
from perfgate.serving.injection.injection_log import MEASURED, PROOF
from perfgate.verdict.cells import CellResult, judge_cells

DECIMALS = 6
TOLERANCE = 0.0002
DETAILS = {"itls", "ttfts", "input_lens", "output_lens", "errors"}
UNSUMMED = "p99_ttft_short_ms"
"""A gate on it voids a session one of whose windows, warm-up included, does not tell single requests."""
ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCH = {"grid", "block", "registers per thread", "shared memory"}
NOTE = {"event": "thinned", "message": "made smaller for the repository by thin.py"}


def main(source: Path, target: Path) -> None:
    """Write the copy and compare the two verdicts, or the two tables of levels."""
    names = (MATRIX_FILE, TEXT_FILE) if (source / MATRIX_FILE).exists() else (SESSION_FILE, SCENARIO_FILE)
    (target / "windows").mkdir(parents=True)
    for name in names:
        shutil.copyfile(source / name, target / name)
    lines = [json.loads(line) for line in (source / INDEX_FILE).read_text().splitlines()]
    is_judged = any(line["role"] != "warmup" for line in lines)
    keeps = DETAILS if is_judged and UNSUMMED in (source / names[1]).read_text() else set()
    for line in lines:
        drops = find_drops(is_first=line is lines[0], role=line["role"]) - keeps
        packed = thin_window(gzip.decompress((source / line["file"]).read_bytes()), drops)
        (target / line["file"]).write_bytes(packed)
        line["sha256"] = hashlib.sha256(packed).hexdigest()
    (target / INDEX_FILE).write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    last = json.loads((source / EVENTS_FILE).read_text().splitlines()[-1])
    note = json.dumps({**NOTE, "at_s": last["at_s"]}, separators=(",", ":"))
    (target / EVENTS_FILE).write_text((source / EVENTS_FILE).read_text() + note + "\n")
    keep_lines(source / LOG_DIR, target / LOG_DIR)
    for name in (ANSWERS_FILE, TELEMETRY_FILE, USE_FILE):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    for name in (ANSWER_DIR, KEPT, SERVER_DIR, USE_DIR):
        if (source / name).exists():
            shutil.copytree(source / name, target / name)
    thin_profiles(source, target)
    moved = (compare_cells if MATRIX_FILE in names else compare)(source, target)
    if moved > TOLERANCE:
        raise SystemExit(f"{source}: rounding moves a change by {100 * moved:.2f} %; keep the original")
    size_mb = sum(file.stat().st_size for file in target.rglob("*") if file.is_file()) / 1e6
    print(f"{target}: {len(lines)} windows, {size_mb:.1f} MB, no change moved by more than {100 * moved:.3f} %")


def thin_profiles(source: Path, target: Path) -> None:
    """Copy the traces of a session, and their index with the digests of what was copied."""
    if not (source / PROFILES_FILE).exists():
        return
    profiles = [json.loads(line) for line in (source / PROFILES_FILE).read_text().splitlines()]
    for trace in (trace for profile in profiles for trace in profile["traces"]):
        content = thin_trace((source / trace["file"]).read_bytes())
        (target / trace["file"]).parent.mkdir(parents=True, exist_ok=True)
        (target / trace["file"]).write_bytes(content)
        trace["sha256"] = hashlib.sha256(content).hexdigest()
    (target / PROFILES_FILE).write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in profiles))


def thin_trace(packed: bytes) -> bytes:
    """Leave the GPU's events of a trace that has kernels, and any other trace as it is; both are packed JSON."""
    if not packed.startswith(GZIP_MAGIC):
        return packed
    trace = json.loads(gzip.decompress(packed))
    on_gpu = [event for event in trace["traceEvents"] if event.get("cat") in ON_GPU]
    if not on_gpu:
        return packed
    for event in on_gpu:
        event["args"] = {key: value for key, value in event.get("args", {}).items() if key in LAUNCH}
    text = json.dumps({**trace, "traceEvents": on_gpu}, separators=(",", ":"))
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def keep_lines(source: Path, target: Path) -> None:
    """Copy what the servers told of slow-downs that were put into them, which the true size of an effect is read from, of their
    start, and of processes that died.
    """
    phases = [re.compile(pattern) for engine in ENGINES.values() for pattern in engine.phases.values()]
    died = [re.compile(engine.work[PROCESSES_RESTARTED]) for engine in ENGINES.values() if PROCESSES_RESTARTED in engine.work]
    for file in sorted(source.glob("server-*.log")):
        lines = file.read_text(errors="replace").splitlines()
        told = [
            line for line in lines if MEASURED in line or PROOF in line or any(one.search(line) for one in (*phases, *died))
        ]
        if told:
            target.mkdir(exist_ok=True)
            (target / file.name).write_text("".join(f"{line}\n" for line in told))


def find_drops(role: str, *, is_first: bool) -> set[str]:
    """The keys that a window does without."""
    return {"generated_texts"} | (DETAILS if role == "warmup" else set()) | (set() if is_first else {"server_info"})


def thin_window(raw: bytes, drops: set[str]) -> bytes:
    """Round and drop in each line of one window, and pack it again."""
    lines = [thin_line(json.loads(line), drops) for line in raw.splitlines() if line.strip()]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def thin_line(run: dict[str, Any], drops: set[str]) -> dict[str, Any]:
    """One run of the load generator."""
    line = {key: value for key, value in run.items() if key not in drops}
    if "ttfts" in line:
        line["ttfts"] = [round(ttft_s, DECIMALS) for ttft_s in line["ttfts"]]
    if "itls" in line:
        line["itls"] = [[round(itl_s, DECIMALS) for itl_s in itls] for itls in line["itls"]]
    return line


def compare(source: Path, target: Path) -> float:
    """The largest movement of any metric's ratio of arms between two folders, as a log; infinite where an outcome differs."""
    before, after = (judge_alone(folder) for folder in (source, target))
    if [found.outcome for found in before] != [found.outcome for found in after]:
        return inf
    pairs = zip(before, after, strict=True)
    moved = [
        abs(log1p(one.change) - log1p(two.change)) for one, two in pairs if one.change is not None and two.change is not None
    ]
    # A session that is void tells no change.
    return max(moved, default=0.0)


def compare_cells(source: Path, target: Path) -> float:
    """The largest movement of any level of a matrix's cells, as a log; infinite where a cell differs in what it tells."""
    before, after = ([list_levels(cell) for cell in judge_cells(*load_matrix(folder))] for folder in (source, target))
    if [list(levels) for levels in before] != [list(levels) for levels in after]:
        return inf
    pairs = [(one[name], two[name]) for one, two in zip(before, after, strict=True) for name in one]
    return max((abs(log(one / two)) for one, two in pairs if one and two), default=0.0)


def list_levels(cell: CellResult) -> dict[str, float]:
    """Each metric that all windows of a cell carry, with its level."""
    carried = {metric for window in cell.windows for metric in window.run.values}
    return {metric: level for metric in sorted(carried) if (level := cell.find_level(metric)) is not None}


def judge_alone(folder: Path) -> tuple[Judgement, ...]:
    """What a verdict without a baseline says of each metric."""
    scenario, session = load_results(folder)
    return judge(session, scenario, None).judgements


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
