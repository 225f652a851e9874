"""What a server start spent its time on, by its own log, and the settings that it resolved to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from perfgate.core import Arm
from perfgate.errors import ServerError
from perfgate.results.server_info import ServerInfo, store_info
from perfgate.serving.engine.conversation import open_http
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.machine_code import VARIABLE, combine, read_codes
from perfgate.serving.engine.server import Server

INFO_TIMEOUT_S = 30.0
MAX_TEXT = 400
# A server of several ranks logs each phase once a rank; they run side by side, so the first one's time is the start's.
_RANK = re.compile(r"TP(\d+)")
# "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", by NCCL, and what engines say where their own all-reduce is not set up.
_TRANSPORT = re.compile(r"NCCL INFO Channel \d+\S* : \S+ -> \S+ (?:\[\w+\] )?via ([\w/]+)")
_REFUSED = re.compile(r"Setup Custom allreduce failed.*|Custom ?[Aa]ll[Rr]educe\w* is disabled because.*")


def describe_start(server: Server) -> dict[str, Any]:
    """What a start that got ready took, by phases, and what its cache holds."""
    facts: dict[str, Any] = {"ready_s": round(server.ready_s, 3), **read_phases(server.launch, server.log)}
    if (cache := read_cache(server.launch)) is not None:
        facts |= {"compiled_kernels": cache.kernels, "compiled_digest": cache.digest}
    return facts


def keep_info(server: Server, folder: Path, *, arm: Arm, start: int) -> None:
    """Keep what a ready server resolved to, where it tells that. Raise ServerError if it did not take a switch."""
    settings = read_info(server)
    if found := (settings or {}) | read_sums(server.launch, server.log):
        store_info(folder, ServerInfo(arm=arm, start=start, settings=found))
    if settings is not None:
        require_switches(server.launch, settings)


def read_sums(launch: Launch, log: Path) -> dict[str, str]:
    """How a server over several GPUs sums over them, by its log; nothing of a server on one.

    `nccl_transports` are the ways by which NCCL reaches the other GPUs, such as "P2P/CUMEM" or "SHM/direct/direct";
    `custom_all_reduce` is there only where the engine's own all-reduce could not be set up, in its words.
    """
    if launch.layout.server_gpus < 2:
        return {}
    text = log.read_text(encoding="utf-8", errors="replace")
    transports = " + ".join(sorted(set(_TRANSPORT.findall(text)))) or "unknown"
    refused = _REFUSED.search(text)
    return {"nccl_transports": transports} | ({} if refused is None else {"custom_all_reduce": refused[0][:MAX_TEXT]})


def require_switches(launch: Launch, settings: Mapping[str, str]) -> None:
    """Hold the switches that perfgate knows and gave against the settings: an option that is gone is taken for a longer one.

    Raise ServerError for the first that is not on.
    """
    known = {fact.place for fact in launch.engine.facts if fact.kind == "option"}
    words = launch.argv(0)
    for option, following in zip(words, (*words[1:], "--"), strict=True):
        name = option.removeprefix("--").replace("-", "_")
        if option in known and following.startswith("--") and settings.get(name) != "True":
            told = f"{name} is {settings[name]}" if name in settings else f"there is no {name}"
            raise ServerError(
                f"the server was started with {option}, and by its own settings {told}: it took the option for another one, or "
                "left it out; use a version that perfgate knows, or a newer perfgate"
            )


def read_phases(launch: Launch, log: Path) -> dict[str, float]:
    """Seconds by phase, as the engine's rows name them; a phase that the log does not tell of is absent.

    A phase that comes in parts (graphs of prefill and of decode) is their sum.
    """
    found: dict[str, float] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        rank = _RANK.search(line)
        if rank and int(rank[1]):
            continue
        for name, pattern in launch.engine.phases.items():
            if told := re.search(pattern, line):
                found[name] = found.get(name, 0.0) + float(told[1])
    return {name: round(seconds, 3) for name, seconds in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """How many compiled kernels lie in an arm's Triton cache, and a digest of their machine code, names aside."""

    kernels: int
    digest: str


def read_cache(launch: Launch) -> Cache | None:
    """What the arm's own Triton cache holds; None where the arm has none of its own.

    Arms of one digest run the same kernels.
    """
    codes = read_codes(launch.env)
    if codes is None:
        return None
    digests = [digest for found in codes.values() for digest in found]
    return Cache(kernels=len(digests), digest=combine(digests))


def count_cached(launch: Launch) -> dict[str, int]:
    """How many compiled kernels lie in an arm's Triton cache before a start, as `cached_kernels`; 0 means a cold start.

    None where the arm has no cache of its own: what it finds compiled is unknown then.
    """
    place = launch.env.get(VARIABLE)
    return {} if place is None else {"cached_kernels": sum(1 for _ in Path(place).rglob("*.cubin"))}


def read_info(server: Server) -> dict[str, str] | None:
    """The settings that a ready server says it runs with, flat; None where the engine offers no such page.

    Texts are cut at 400 characters, lists and tables are written as text. Of two engines the settings are those of the one that
    decodes, and as `prefill.NAME` what the other has otherwise. Raise ServerError when the server has died; an answer that is
    none counts as no page, since nothing is judged by it.
    """
    path = server.launch.engine.info_path
    if path is None:
        return None
    try:
        with open_http(INFO_TIMEOUT_S) as client:
            answers = [client.get(url + path) for url in server.engine_urls]
        contents = [answer.json() for answer in answers if answer.status_code == httpx.codes.OK]
    except (httpx.HTTPError, ValueError):
        server.raise_if_dead()
        return None
    if len(contents) < len(answers) or not all(isinstance(content, dict) for content in contents):
        return None
    *others, told = map(flatten, contents)
    apart = {f"prefill.{name}": value for other in others for name, value in other.items() if told.get(name) != value}
    return told | apart


def flatten(content: Mapping[str, Any]) -> dict[str, str]:
    """The settings as texts by name; what changes from moment to moment, such as the state of the scheduler, is left out."""
    return {
        name: str(value)[:MAX_TEXT]
        for name, value in sorted(content.items())
        if name != "internal_states" and not isinstance(value, Mapping)
    }


def find_line(log: Path, pattern: str) -> str | None:
    """The first line of a log that matches; None when there is none, or no log."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.strip() for line in lines if re.search(pattern, line)), None)
