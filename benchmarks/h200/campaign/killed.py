"""Kill the last tensor rank of a session's candidate in one of its windows; keep what it said and what was left.

    python -m benchmarks.h200.campaign.killed gpt-oss-20b-shape-mxfp4-tp2-closed-c16 --blocks 2 --out FOLDER

FOLDER gets the session itself and `killed.json`: how `perfgate run` ended and in which words, how long after the kill, its
processes that still lived, and the memory in use on each GPU before the session and after it. --caches DIR is the base's
of the session's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from perfgate.machine.processes import is_alive

WAIT_S = 420.0
POLL_S = 0.2


def list_memory() -> list[int]:
    """MiB in use on each visible GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = ["--id", visible] if visible else []
    query = ["nvidia-smi", *chosen, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()]


def is_candidate_measured(folder: Path) -> bool:
    """Whether a window of the second start, the candidate's, is stored, so that its next one is being measured."""
    windows = folder / "windows.jsonl"
    return windows.exists() and '"start":2,' in windows.read_text(encoding="utf-8", errors="replace")


def find_output(pid: int) -> str:
    """The file that a process writes to, by which its server is known."""
    try:
        return str(Path(f"/proc/{pid}/fd/1").readlink())
    except OSError:
        return ""


def describe(process: psutil.Process) -> str:
    """A process by its number and command; its number alone where it has ended."""
    with suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline()).strip()}"
    return f"{process.pid}"


def kill_rank(family: list[psutil.Process]) -> str:
    """SIGKILL the last rank of the candidate among these; who it was. Raise RuntimeError where it has no ranks."""
    told = {one: describe(one) for one in family}
    ranks = [one for one in family if "scheduler_TP" in told[one] and "candidate" in find_output(one.pid)]
    if not ranks:
        raise RuntimeError(f"no tensor rank of a candidate among {list(told.values())}")
    rank = max(ranks, key=lambda one: told[one].partition(" ")[2])
    rank.kill()
    return told[rank]


def measure(words: list[str], folder: Path, caches: Path | None) -> dict[str, object]:
    """Run the session, kill the rank, wait for the end; what `killed.json` says.

    Raise RuntimeError where the session ended, or took too long, before its candidate was measured.
    """
    before, cached = list_memory(), [] if caches is None else ["--caches", str(caches.parent)]
    command = [sys.executable, "-m", "perfgate", "run", *words, "--out", str(folder), *cached]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.txt").open("w+b") as output:
        process = psutil.Popen(command, stdout=output, stderr=output)
        try:
            ends = time.monotonic() + WAIT_S
            while not is_candidate_measured(folder):
                if process.poll() is not None or time.monotonic() > ends:
                    raise RuntimeError(f"no window of the candidate was measured; {output.name} says why")
                time.sleep(POLL_S)
            family = process.children(recursive=True)
            killed, rank = time.monotonic(), kill_rank(family)
            code = process.wait(WAIT_S)
            ended_s = time.monotonic() - killed
        finally:
            if process.is_running():
                process.terminate()
                process.wait(WAIT_S)
        output.seek(0)
        said = output.read().decode(errors="replace").splitlines()
    return {
        "argv": words, "killed": rank, "exit_code": code, "ended_after_s": round(ended_s, 1), "said": said[-25:],
        "left": [describe(one) for one in family if is_alive(str(one.pid))], "memory_before_mib": before,
        "memory_after_mib": list_memory(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--caches", type=Path)
    options, words = parser.parse_known_args()
    told = measure(words, options.out, options.caches)
    (options.out / "killed.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
