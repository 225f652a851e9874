"""Let arms drive their host parts, all at the same time: for CPU time and events, and under callgrind."""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path

from pydantic import ValidationError

from perfgate.engines.sglang_releases import STAND_IN, STAND_IN_NAME
from perfgate.errors import EngineError, InputError
from perfgate.machine.tools import Tool
from perfgate.resolution.arms import Source
from perfgate.scheduler.values import HostWork
from perfgate.serving.engine.server import find_free_port
from perfgate.serving.model.tiny_model import write_tiny_model
from perfgate.storage.schema import adapt

PROBE = Path(__file__).with_name("probe")
# The folder of the probe leaves the path before anything else is imported: an arm finds no module of perfgate's.
_PROGRAM = f"import sys; sys.path.insert(0, {str(PROBE.parent)!r}); import probe.drive as drive; sys.path.pop(0); drive.main()"
_PYTHON = Tool(timeout_s=1800.0, missing=EngineError, failed=EngineError, hint="give a Python with torch and the engine")
_HINT = "install valgrind (apt-get install valgrind)"

MODEL, MODEL_FILE = "tiny-qwen3-moe", "qwen3_moe"
ARGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "bfloat16", "--disable-cuda-graph"),
    *("--context-length", "1024", "--max-total-tokens", "65536", "--max-running-requests", "16"),
    *("--mem-fraction-static", "0.3", "--random-seed", "1"),
)
LOAD = {"batch": 16, "steps": 40, "windows": 2, "requests": 48, "output": 8, "words": 48, "queued": 48}
"""A window is as many steps as lie between two lines of the engine's log, so that each holds one."""

# Addresses, hashes and threads are what could differ between two runs of the same code.
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PATH": "/usr/bin:/bin",  # the engine asks lscpu
}
_CALLGRIND = ("--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no", "--quiet", "--callgrind-out-file=/dev/null")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLine:
    """What one window of a part did, a unit."""

    part: str
    unit: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveAnswer:
    """What a driven engine answers: its windows in their order, or why there are none."""

    sglang: str = ""
    readings: tuple[WindowLine, ...] = ()
    error: str = field(default="")


def measure_arms(base: Source, candidate: Source) -> tuple[HostWork, HostWork]:
    """What the host parts of both arms cost for the same load.

    Raise InputError where this machine has no valgrind or is no x86-64, EngineError where an arm cannot be driven.
    """
    valgrind = find_valgrind()
    sources = (base, candidate)
    groups = group_arms(sources)
    with tempfile.TemporaryDirectory(prefix="perfgate-scheduler-") as made, ThreadPoolExecutor(2 * len(groups)) as pool:
        folder = prepare(Path(made))
        # What a group stands on is imported by one process, so that a second core is free meanwhile.
        counting = [pool.submit(count_instructions, group, folder, valgrind) for group in groups]
        runs = [_drive_all(groups, folder, pool)]
        if count_events(runs[0][0]) != count_events(runs[0][1]):
            # A difference is one of the arms only where each repeats itself.
            runs.append(_drive_all(groups, folder, pool))
        counted = list(chain.from_iterable(one.result() for one in counting))
    first, second = (
        gather(source, runs[0][number].sglang, [counted[number]], [run[number].readings for run in runs])
        for number, source in enumerate(sources)
    )
    return first, second


def _drive_all(groups: Sequence[Sequence[Source]], folder: Path, pool: ThreadPoolExecutor) -> list[DriveAnswer]:
    """CPU time and events of each arm. Raise EngineError as `drive` does."""
    return list(chain.from_iterable(pool.map(lambda group: drive(group, folder, ("cpu", "events")), groups)))


def group_arms(sources: Sequence[Source]) -> list[list[Source]]:
    """Arms side by side that one Python serves: its packages are imported once for all of a group."""
    return [list(group) for _, group in groupby(sources, key=lambda source: source.python)]


def count_events(answer: DriveAnswer) -> list[tuple[str, str, dict[str, float]]]:
    """What an arm counted in its windows, without the time that it took."""
    return [
        (line.part, line.unit, {name: value for name, value in line.values.items() if name != "cpu_us"})
        for line in answer.readings
    ]


def prepare(folder: Path) -> Path:
    """Put what a driven engine needs into a folder: the model, a home of its own, stand-ins for packages of kernels."""
    (folder / "home").mkdir()
    (folder / "stand_ins").mkdir()
    (folder / "stand_ins" / STAND_IN_NAME).write_text(STAND_IN, encoding="utf-8")
    write_tiny_model(folder / "model", MODEL)
    return folder


def find_valgrind() -> str:
    """The program that counts. Raise InputError where there is none, or where the request to it is not known."""
    if platform.machine() != "x86_64":
        raise InputError(f"{platform.machine()}: instructions are counted on x86-64 alone; use such a machine")
    found = shutil.which("valgrind")
    if found is None:
        raise InputError(f"valgrind: not found; {_HINT}")
    return found


def count_instructions(sources: Sequence[Source], folder: Path, valgrind: str) -> list[list[WindowLine]]:
    """Instructions of each arm's windows, by a run under callgrind in a prepared folder. Raise EngineError as `drive` does."""
    told = drive(sources, folder, ("instructions",), valgrind=valgrind, load=LOAD | {"queued": 0})
    return [[line for line in one.readings if "instructions" in line.values] for one in told]


def drive(
    sources: Sequence[Source],
    folder: Path,
    meters: Sequence[str],
    *,
    valgrind: str = "",
    load: Mapping[str, int] = LOAD,
) -> list[DriveAnswer]:
    """Drive arms of one Python at the same time, in a prepared folder; under callgrind where `valgrind` is given.

    Raise EngineError, with what the engine said, where one cannot be driven.
    """
    home = folder / "home"
    # The one rank of each binds a port; the one that SGLang would take itself may be gone again by then.
    ports = [str(find_free_port()) for _ in sources]
    arms = [
        {"args": [*ARGS, "--nccl-port", port], "folder": str(source.folder or "")}
        for source, port in zip(sources, ports, strict=True)
    ]
    log = str(folder / f"callgrind-{ports[0]}.log")
    before = (valgrind, *_CALLGRIND, f"--log-file={log}") if valgrind else ()
    places = {"model": str(folder / "model"), "stand_ins": str(folder / "stand_ins")}
    request = {**places, "model_file": MODEL_FILE, "arms": arms, "meters": meters, "log": log, "load": load}
    settings = {**_SETTINGS, "HOME": str(home), "CUDA_HOME": str(home)}
    clean = ["/usr/bin/env", "-i", f"--chdir={home}", *(f"{name}={value}" for name, value in settings.items())]
    python = shutil.which(sources[0].python) or sources[0].python
    name = f"{' and '.join(source.name for source in sources)}, driven without a forward pass"
    done = _PYTHON.call([*clean, *before, python, "-c", _PROGRAM], name=name, content=json.dumps(request).encode())
    try:
        told = adapt(list[DriveAnswer]).validate_json(done.text)
    except ValidationError:
        raise EngineError(f"{name}: its answer cannot be read ({done.last}); is it SGLang?") from None
    for source, one in zip(sources, told, strict=True):
        if one.error:
            raise EngineError(f"{source.name}, driven without a forward pass: {one.error[:300]}")
    return told


def gather(source: Source, version: str, *kinds: Sequence[Sequence[WindowLine]]) -> HostWork:
    """One arm's windows by key: of each kind of run several, of each run the windows in their order."""
    by_key: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for runs in kinds:
        for run in runs:
            windows: dict[str, list[float]] = defaultdict(list)
            for line in run:
                for name, value in line.values.items():
                    windows[f"{line.part}.{line.unit}.{name}"].append(value)
            for key, values in windows.items():
                by_key[key].append(tuple(values))
    return HostWork(name=source.name, version=version, runs={key: tuple(runs) for key, runs in by_key.items()})
