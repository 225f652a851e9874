"""Run one Python command of this repository on a GPU machine, and keep what it printed, how it ended and how long it took.

    python -m benchmarks.h200.campaign.keep -m perfgate kernels check --impl sglang --matrix exam --device cuda --out FOLDER

The last --out is this program's. FOLDER gets `output.txt` and `run.json`. A command that ends with an error is a result like
any other, because a reproduction of a defect is meant to; only one that cannot be started fails. One that begins with
`--python PATH` runs under that Python. --caches DIR keeps what it compiles.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path

from perfgate.serving.engine.arms import list_caches

LIMIT_S = 480.0  # of a call's ten minutes; what compiles Marlin alone takes 270
PACKAGES = ("sglang", "torch", "triton")


def keep(words: Sequence[str], folder: Path, caches: Path | None) -> Mapping[str, object]:
    """Run the command and write both files; what `run.json` says. One that hangs is ended after LIMIT_S.

    With the command ends what it has spawned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **list_caches(caches)}
    command = words[1:] if words[:1] == ["--python"] else [sys.executable, *words]
    code: int | str
    begun = time.monotonic()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = f"ended after {LIMIT_S:.0f} s"
        finally:
            # What a command has spawned would go on beside the next measurement.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    versions = {one.name: one.version for one in distributions() if one.name in PACKAGES}
    told = {"argv": list(words), "exit_code": code, "seconds": round(time.monotonic() - begun, 1), "versions": versions}
    (folder / "run.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--caches", type=Path)
    # A command may have an --out of its own: the last one begins what is this program's.
    ends = max((place for place, word in enumerate(sys.argv) if word == "--out"), default=len(sys.argv))
    words, options = sys.argv[1:ends], parser.parse_args(sys.argv[ends:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    print(json.dumps(keep(words, options.out, options.caches)))


if __name__ == "__main__":
    main()
