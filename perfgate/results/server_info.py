"""The settings that each server start resolved to, kept in the result folder: what an argument left open may differ too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from perfgate.core import Arm
from perfgate.errors import EvidenceError
from perfgate.results.raw.pack import list_raw, read_raw
from perfgate.storage.journal import write_atomically
from perfgate.storage.schema import parse_json

SERVER_DIR = "servers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """The settings of one start as its server reported them, as texts by name."""

    arm: Arm
    start: int
    settings: Mapping[str, str]


def store_info(folder: Path, info: ServerInfo) -> None:
    """Write a start's settings, whole or not at all."""
    place = folder / SERVER_DIR
    place.mkdir(exist_ok=True)
    content = {"arm": info.arm.value, "start": info.start, "settings": dict(info.settings)}
    write_atomically(place / f"start-{info.start:02d}.json", orjson.dumps(content, option=orjson.OPT_INDENT_2))


def load_infos(folder: Path) -> tuple[ServerInfo, ...]:
    """Read what servers reported, in the order of starts; nothing if none was asked. Raise EvidenceError for a broken one."""
    return tuple(_read(folder / name) for name in list_raw(folder, f"{SERVER_DIR}/start-*.json"))


def _read(path: Path) -> ServerInfo:
    return parse_json(_read_raw(path), ServerInfo, path, "delete it, nothing is judged by it")


def _read_raw(path: Path) -> bytes:
    try:
        return read_raw(path)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror})") from None


def compare_infos(infos: Iterable[ServerInfo]) -> Iterator[tuple[str, str, str]]:
    """Yield each setting that the arms resolved differently, with both values.

    What differs among the starts of one arm, such as a port or a seed, sets no arm apart.
    """
    found: dict[str, dict[Arm, set[str]]] = {}
    seen: set[Arm] = set()
    for info in infos:
        seen.add(info.arm)
        for name, value in info.settings.items():
            found.setdefault(name, {}).setdefault(info.arm, set()).add(value)
    if seen != set(Arm):
        return
    for name, values in sorted(found.items()):
        base, candidate = (values.get(arm, {""}) for arm in Arm)
        if len(base) == len(candidate) == 1 and base != candidate:
            yield name, _only(base), _only(candidate)


def _only(values: set[str]) -> str:
    return next(iter(values))
