"""Ask an arm what it resolves to: its Python runs the probe, once a GPU, and what it answers is read as values."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from perfgate.errors import EngineError
from perfgate.machine.tools import Tool
from perfgate.resolution.arms import Source
from perfgate.resolution.table import CONFIGS, STAND_INS, TOOLKITS, Gpu, ListedModel
from perfgate.resolution.values import ArmReading, Case, Resolution, TunedTable
from perfgate.storage.schema import adapt

T = TypeVar("T")

PROBE = Path(__file__).with_name("probe")
# The folder of the probe leaves the path before anything else is imported: an arm finds no module of perfgate's.
_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(PROBE.parent)!r}); import probe.answer as answer; sys.path.pop(0); "
    "sys.exit(answer.main())"
)
_PYTHON = Tool(
    timeout_s=900.0, missing=EngineError, failed=EngineError, hint="give a Python with torch, Triton and transformers"
)
_ONE_HOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Environment:
    """The first line of an answer."""

    sglang: str
    torch: str
    triton: str
    stand_ins: tuple[str, ...]


_Tables = Annotated[tuple[TunedTable, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelLine:
    """Each further line of an answer."""

    model: str
    gpu: str
    flags: dict[str, Any]
    choices: dict[str, Annotated[_Tables | Any, Field(union_mode="left_to_right")]]
    unverified: dict[str, str]


def ask_arms(sources: Sequence[Source], models: Sequence[ListedModel], gpus: Sequence[Gpu]) -> list[Resolution]:
    """What each arm resolves to for each model on each GPU; the arms are asked at the same time.

    Raise EngineError where an arm's Python does not answer: it cannot be run, or lacks torch, Triton or transformers.
    """
    with tempfile.TemporaryDirectory(prefix="perfgate-resolve-") as made, ThreadPoolExecutor(len(sources)) as pool:
        home = Path(made, "home")
        home.mkdir()
        rows = [_describe_gpu(gpu, models, Path(made)) for gpu in gpus]
        answers = list(pool.map(lambda source: _ask(source, rows, home), sources))
    return [_gather(source, lines) for source, lines in zip(sources, answers, strict=True)]


def _describe_gpu(gpu: Gpu, models: Sequence[ListedModel], folder: Path) -> dict[str, Any]:
    described = [_describe_model(model, gpu, folder / model.name) for model in models]
    return {**asdict(gpu), "id": gpu.name, "name": gpu.device, "count": _ONE_HOST, "models": described}


def _describe_model(model: ListedModel, gpu: Gpu, folder: Path) -> dict[str, Any]:
    """A model in the form that the probe takes, and a folder of its own that holds its config.json and nothing else."""
    folder.mkdir(exist_ok=True)
    shutil.copyfile(CONFIGS / f"{model.name}.json", folder / "config.json")
    size = model.count_gpus(gpu.name)
    hosts = size // _ONE_HOST
    args = ["--nnodes", str(hosts), "--node-rank", "0", "--dist-init-addr", "127.0.0.1:20000"] if hosts > 1 else []
    known = {"name": model.name, "folder": str(folder), "module": model.module, "architecture": model.architecture}
    return known | {"tp": size, "args": [*args, *model.args]}


def _ask(source: Source, gpus: Sequence[dict[str, Any]], home: Path) -> list[str]:
    request = {
        "gpus": gpus,
        "requires": source.requires,
        "toolkits": {version: asdict(toolkit) for version, toolkit in TOOLKITS.items()},
        "triton": source.triton,
        "stand_ins": STAND_INS,
    }
    # Nothing of this process steers the engine, and no nvidia-smi is found: an empty folder is its home and its path.
    settings: dict[str, object] = {"HOME": home, "PATH": home, "CUDA_HOME": home}
    settings |= {"HF_HUB_OFFLINE": 1, "TRANSFORMERS_OFFLINE": 1}
    if source.folder is not None:
        settings["PYTHONPATH"] = source.folder
    python = shutil.which(source.python) or source.python
    clean = ["/usr/bin/env", "-i", f"--chdir={home}", *(f"{name}={value}" for name, value in settings.items())]
    done = _PYTHON.call(
        [*clean, python, "-c", _PROGRAM], name=f"{source.name}, asked what it resolves to", content=json.dumps(request).encode()
    )
    return done.text.splitlines()


def _gather(source: Source, lines: Sequence[str]) -> Resolution:
    environment = next(iter(_parse(_Environment, source, lines[:1])))
    readings: dict[Case, ArmReading] = {(line.model, line.gpu): _clean(line) for line in _parse(_ModelLine, source, lines[1:])}
    version = "" if source.is_tree else environment.sglang
    return Resolution(
        name=source.name,
        version=version,
        torch=environment.torch,
        triton=environment.triton,
        readings=readings,
        stand_ins=environment.stand_ins,
    )


def _parse(kind: type[T], source: Source, lines: Sequence[str]) -> list[T]:
    try:
        read = [adapt(kind).validate_json(line) for line in lines]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise EngineError(f"{source.name}: its answer cannot be read ({where}: {first['msg']}); is it SGLang?") from None
    if not read:
        raise EngineError(f"{source.name}: gave no answer; run its Python by itself to see why")
    return read


def _clean(line: _ModelLine) -> ArmReading:
    """A reading whose words are printable and short, whatever the arm said."""
    return ArmReading(
        choices={key: _clean_value(value) for key, value in line.choices.items()},
        flags={_clean_word(key): _clean_value(value) for key, value in line.flags.items()},
        unverified={_clean_word(key): _clean_word(value) for key, value in line.unverified.items()},
    )


def _clean_value(value: Any) -> Any:
    if isinstance(value, str):
        return _clean_word(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_clean_value, value))
    if isinstance(value, TunedTable):
        return TunedTable(**{name: _clean_value(one) for name, one in asdict(value).items()})
    return value


def _clean_word(word: str) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", word)[:240]
