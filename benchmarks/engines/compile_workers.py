"""What torch's pool of compile workers looks like in a server's memory, counted in three ways.

    python -m benchmarks.engines.compile_workers --workers 8

Needs torch. Prints MiB of this session's processes: before the pool, with it, and after it was put to rest as torch does after
60 idle seconds. `resident` is the sum of what is resident, `own` that of anonymous and shared memory, `shares` the same with
each page that processes share counted once, as `perfgate.machine.processes.measure_memory` does.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from perfgate.machine.processes import PROC, list_session, measure_memory

WAYS = {"resident": r"^VmRSS:\s+(\d+) kB$", "own": r"^Rss(?:Anon|Shmem):\s+(\d+) kB$"}
SETTLE_S = 3.0


def count(leader: int) -> dict[str, int]:
    """MiB by each way of counting, and how many processes there are."""
    statuses = []
    for pid in list_session(leader):
        with suppress(OSError):
            statuses.append((PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace"))
    sums = {
        way: sum(int(kib) for text in statuses for kib in re.findall(pattern, text, re.MULTILINE)) // 1024
        for way, pattern in WAYS.items()
    }
    return {"processes": len(statuses), **sums, "shares": measure_memory(leader) // 2**20}


def main() -> None:
    """Start the pool, give each worker something to do, put it to rest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    if os.getsid(0) != os.getpid():
        os.setsid()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(options.workers)
    from torch._inductor.async_compile import AsyncCompile

    told = {"before": count(os.getpid())}
    pool = AsyncCompile.process_pool()
    for job in [pool.submit(Path.cwd) for _ in range(2 * options.workers)]:
        job.result()
    time.sleep(SETTLE_S)
    told["workers"] = count(os.getpid())
    pool.quiesce()
    time.sleep(SETTLE_S)
    told["at rest"] = count(os.getpid())
    pool.shutdown()
    for when, found in told.items():
        print(f"{when:8} {', '.join(f'{way} {value:,}' for way, value in found.items())}")


if __name__ == "__main__":
    main()
