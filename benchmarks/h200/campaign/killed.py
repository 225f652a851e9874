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
import signal
import subprocess
import sys
import time
from pathlib import Path

from perfgate.machine.processes import list_processes, list_session

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


def find_family(pid: int) -> list[int]:
    """The living processes below `pid`, those of the sessions that they lead included."""
    found, open_ = set(), [pid]
    table = [one for one in list_processes() if one.is_alive]
    while open_:
        parent = open_.pop()
        below = {one.pid for one in table if one.parent == parent} | {one for one in list_session(parent) if one != pid}
        open_ += below - found
        found |= below
    return sorted(found)


def read_title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def find_output(pid: int) -> str:
    """The file that a process writes to, by which its server is known."""
    try:
        return str(Path(f"/proc/{pid}/fd/1").readlink())
    except OSError:
        return ""


def kill_rank(pid: int) -> tuple[int, str]:
    """SIGKILL the last rank of the candidate below `pid`; who it was. Raise RuntimeError where it has no ranks."""
    family = find_family(pid)
    ranks = {one: title for one in family if "scheduler_TP" in (title := read_title(one)) and "candidate" in find_output(one)}
    if not ranks:
        raise RuntimeError(f"no tensor rank of a candidate below process {pid}: {[read_title(one) for one in family]}")
    rank = max(ranks, key=lambda one: ranks[one])
    os.kill(rank, signal.SIGKILL)
    return rank, ranks[rank]


def measure(words: list[str], folder: Path, caches: Path | None) -> dict[str, object]:
    """Run the session, kill the rank, wait for the end; what `killed.json` says."""
    before, cached = list_memory(), [] if caches is None else ["--caches", str(caches.parent)]
    command = [sys.executable, "-m", "perfgate", "run", *words, "--out", str(folder), *cached]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.txt").open("w+b") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        ends = time.monotonic() + WAIT_S
        while process.poll() is None and not is_candidate_measured(folder):
            if time.monotonic() > ends:
                process.terminate()
            time.sleep(POLL_S)
        family = find_family(process.pid)
        rank, title = kill_rank(process.pid) if process.poll() is None else (0, "")
        killed = time.monotonic()
        code = process.wait(WAIT_S)
        ended_s = time.monotonic() - killed
        output.seek(0)
        said = output.read().decode(errors="replace").splitlines()
    left = [f"{pid} {read_title(pid)}" for pid in family if Path(f"/proc/{pid}").exists() and read_title(pid)]
    return {
        "argv": words, "killed": [rank, title], "exit_code": code, "ended_after_s": round(ended_s, 1), "said": said[-25:],
        "left": left, "memory_before_mib": before, "memory_after_mib": list_memory(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--caches", type=Path)
    options, words = parser.parse_known_args()
    told = measure(words, options.out, options.caches)
    options.out.mkdir(exist_ok=True)
    (options.out / "killed.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
