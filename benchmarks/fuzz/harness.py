"""Coverage-guided fuzzing of one reader: `python benchmarks/fuzz/harness.py TARGET CORPUS_DIR [libFuzzer options]`.

Every finding is written to `crash-*` in the current folder and named with its traceback; the run goes on, so that one finding
does not hide the next.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path
from random import Random

import atheris

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

with atheris.instrument_imports(include=["perfgate", "tomllib", "zipfile", "gzip", "prometheus_client"]):
    from tests.fuzz.mutation import damage
    from tests.fuzz.seeds import MEMORY
    from tests.fuzz.targets import LARGEST, TARGETS, Target, probe

seen: set[tuple[str, str]] = set()


def find_target(name: str) -> Target:
    """The reader of that name; StopIteration where there is none."""
    return next(target for target in TARGETS if target.name == name)


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Every other time by what the file means, else by bytes as libFuzzer does."""
    if seed % 2:
        return damage(data, Random(seed))[:max_size]  # noqa: S311 - a seed is the point
    mutated: bytes = atheris.Mutate(data, max_size)
    return mutated


def report(error: Exception, data: bytes) -> None:
    """Say each kind of finding once, and keep its input."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "perfgate/" in frame.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    if (type(error).__name__, place) in seen:
        return
    seen.add((type(error).__name__, place))
    Path(f"crash-{len(seen)}").write_bytes(data)
    print(f"FINDING {type(error).__name__} at {place}: {error!s:.120}", flush=True)


def main() -> None:
    """Fuzz until libFuzzer's own limits end it."""
    target = find_target(sys.argv.pop(1))
    folder = Path(tempfile.mkdtemp(prefix="perfgate-fuzz-", dir=MEMORY), "probe")

    def run(data: bytes) -> None:
        try:
            probe(target, data, folder)
        except Exception as error:  # noqa: BLE001 - any error that is not perfgate's own is what is looked for
            report(error, data)

    atheris.Setup([*sys.argv, f"-max_len={LARGEST}"], run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
