"""The tuned plans stored for devices: which one a layer takes, and how a new one comes in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from perfgate_moe.errors import MoeInputError
from perfgate_moe.layer.problem import QUANTS, Problem
from perfgate_moe.layer.tiles import TilePlan, Variant, default_plan, plan_from, small_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A plan and what it gained when it was tuned: SGLang's time over ours, the lower end of its interval; None if unknown."""

    plan: TilePlan
    gain: float | None


def choose(problem: Problem) -> TilePlan:
    """The tuned plan for this device and shape; a default where nothing was tuned."""
    found = tuned(problem)
    return found.plan if found else default_plan(problem)


def tuned(problem: Problem) -> Tuned | None:
    """What was tuned for this device and shape at the nearest number of tokens; None where nothing was, as for float32."""
    table = stored(_device_name(problem)).get(shape_key(problem), {})
    if not table or problem.hidden.element_size() != 2:
        return None
    nearest = min(table, key=lambda tokens: (abs(tokens - problem.tokens), tokens))
    return table[nearest]


def sorted_plan(problem: Problem, variant: Variant) -> TilePlan:
    """The chosen plan with another variant, and with sorting."""
    plan = choose(problem)
    return replace(small_plan(problem) if plan.is_direct or plan.variant is Variant.OWNER else plan, variant=variant)


def shape_key(problem: Problem) -> str:
    """The part of a problem that a tuned plan depends on, besides its number of tokens."""
    return name_shape(
        (problem.experts, problem.top_k, problem.hidden_size, problem.intermediate_size), problem.activation.name, problem.quant
    )


def name_shape(sizes: tuple[int, int, int, int], activation: str, quant: str) -> str:
    """A table's name for E, k, H and I, an activation and the format of the weights, which 16-bit weights do not name."""
    experts, top_k, hidden_size, intermediate_size = sizes
    name = f"E={experts},k={top_k},H={hidden_size},I={intermediate_size},{activation}"
    return name if quant == "none" else f"{name},{quant}"


def table_path(device: str) -> Path:
    """Where the package keeps a device's table."""
    return Path(str(files("perfgate_moe.layer").joinpath("tuned", f"{device.replace(' ', '_')}.json")))


def _device_name(problem: Problem) -> str:
    if problem.hidden.device.type != "cuda":
        return "cpu"
    return str(torch.cuda.get_device_name(problem.hidden.device))


@lru_cache(maxsize=8)
def stored(device: str) -> dict[str, dict[int, Tuned]]:
    """The tuned plans stored for a device: shape -> tokens -> plan and gain; empty if none are."""
    content = read_table(table_path(device))
    return {shape: {int(m): _read(entry) for m, entry in entries.items()} for shape, entries in content["plans"].items()}


def stored_plans(quant: str = "none") -> tuple[TilePlan, ...]:
    """Every tuned plan of every device for weights of one format, each once."""
    devices = sorted(path.stem for path in table_path("any").parent.glob("*.json"))
    tables = (table for device in devices for shape, table in stored(device).items() if _quant_of(shape) == quant)
    return tuple(dict.fromkeys(entry.plan for table in tables for entry in table.values()))


def _quant_of(shape: str) -> str:
    """The format of weights, by a table's name for a shape."""
    last = shape.rpartition(",")[2]
    return last if last in QUANTS else "none"


def _read(entry: dict[str, Any]) -> Tuned:
    ratio = entry.get("upstream_over_ours")
    return Tuned(plan=plan_from(entry), gain=ratio[1] if ratio else None)


def read_table(path: Path) -> dict[str, Any]:
    """A table's content, empty for a file that is not there. MoeInputError for one that is no table."""
    if not path.is_file():
        return {"about": {}, "plans": {}}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise MoeInputError(f"{path}: no JSON ({error}); remove it or give another --out") from error
    if not isinstance(content, dict) or not isinstance(content.get("plans"), dict):
        raise MoeInputError(f"{path}: no table of tuned plans; remove it or give another --out")
    return content


def is_tuned(content: Mapping[str, Any], shape: str, tokens: int, versions: Mapping[str, str]) -> bool:
    """Whether a table holds this cell, tuned with these very versions."""
    entry = content["plans"].get(shape, {}).get(str(tokens), {})
    return bool(entry) and entry.get("versions") == dict(versions)


def store(path: Path, shape: str, result: Mapping[str, Any], versions: Mapping[str, str]) -> None:
    """Put one tuned number of tokens into a table, with how it was found; other cells stay. The file is replaced whole."""
    content = read_table(path)
    about = {name: value for name, value in result.items() if name not in {"plan", "tokens", "samples_us"}}
    entry = {**result["plan"], **about, "versions": dict(versions)}
    cells = content["plans"].setdefault(shape, {})
    cells[str(result["tokens"])] = entry
    content["plans"][shape] = dict(sorted(cells.items(), key=lambda pair: int(pair[0])))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise MoeInputError(f"--out {path}: cannot be written ({error.strerror})") from None
