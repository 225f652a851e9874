"""Replay verdicts from recorded sessions, by perfgate's rule and by the rules that people use today.

Usage: python -m benchmarks.error_rates.replay LIST.toml --out results.json.xz
`recordings.py` says what the list holds. A folder that is missing or void is left out, and said to be.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

from benchmarks.error_rates.co_tenant_study import read_co_tenants, study_co_tenants
from benchmarks.error_rates.rates import SEED
from benchmarks.error_rates.recordings import read_list, read_recordings
from benchmarks.error_rates.studies import LIMIT, study_all
from benchmarks.verdict.record import write_packed
from perfgate import __version__
from perfgate.errors import InputError, PerfgateError
from perfgate.storage.rounding import round_floats
from perfgate.verdict.policy import RULE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, metavar="LIST.toml")
    parser.add_argument("--out", type=Path, required=True, metavar="results.json.xz")
    parser.add_argument("--limit", type=int, default=LIMIT, help="most replays of one length; more are sampled")
    given = parser.parse_args()
    began = time.perf_counter()
    try:
        found, skipped = read_recordings(read_list(given.list))
        if not found:
            raise InputError(f"{given.list}: none of its folders can be used; the first: {skipped[0].reason}")
        result = study_all(found, skipped, given.limit)
        folders = [*(one.entry.folder for one in found), *(one.entry.folder for one in skipped)]
        result["co_tenants"] = study_co_tenants(read_co_tenants(given.list), folders)
    except PerfgateError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    made = {
        "command": f"python -m benchmarks.error_rates.replay {given.list} --out {given.out}",
        "perfgate": __version__,
        "rule": RULE,
        "python": platform.python_version(),
        "limit": given.limit,
        "seed": SEED,
        "wall_s": time.perf_counter() - began,
    }
    write_packed(given.out, round_floats({"made": made, **result}))
    for one in skipped:
        print(f"left out: {one.entry.folder.name}: {one.reason}", file=sys.stderr)
    print(f"{sum(case['replays'] for case in result['cases'])} replays of {len(found)} folders, written to {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
