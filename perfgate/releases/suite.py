"""Try a release: a real server of the tiny model on this machine's CPU, asked for one capability after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Literal

import orjson
from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from perfgate.engines.table import ENGINES
from perfgate.errors import EngineError, InputError, PerfgateError
from perfgate.machine.fingerprint import read_fingerprint
from perfgate.releases.capabilities import CAPABILITIES, DELAY_US, Capability, Stand, is_sglang
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.schema import Scenario
from perfgate.serving.client import Client
from perfgate.serving.engine.arms import ArmSpec, build_injection_environment
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.model.location import write_model
from perfgate.serving.progress import Progress
from perfgate.storage.journal import read_json
from perfgate.storage.places import open_folder, write_file
from perfgate.storage.schema import STRICT

SCENARIO = "cpu-moe"
VLLM_ARGS = ("--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", "16", "--enforce-eager")
HINT = "write it again with `perfgate engine try`"
_FACTS = ("python", "torch", "triton", "transformers", "numpy", "cpu_model", "os")

State = Literal["works", "fails", "untried", "inapplicable"]


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class Tried:
    """What became of one capability: `said` is what was seen, or why it failed; `took_s` includes waiting for others' work."""

    name: str
    state: State
    said: str
    took_s: Annotated[float, Field(ge=0)] = 0.0


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class ReleaseRecord:
    """One release on one machine on one day (UTC): what it could do, and what it ran with."""

    schema_version: Literal[1] = 1
    package: Annotated[str, Field(pattern=r"^(sglang|vllm)$")]
    version: str
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    facts: Mapping[str, str]
    rows: Annotated[tuple[Tried, ...], Field(min_length=1)]

    @property
    def failed(self) -> tuple[Tried, ...]:
        """What does not work, or could not be tried."""
        return tuple(row for row in self.rows if row.state in {"fails", "untried"})

    @property
    def name(self) -> str:
        """What its file is called."""
        return f"{self.package}-{self.version.partition(' ')[0]}.json"


def try_release(
    python: str, folder: Path, progress: Progress, capabilities: Sequence[Capability] = CAPABILITIES
) -> ReleaseRecord:
    """Try the release that `python` runs; logs and raw outputs go into `folder`, which is new.

    Raise EngineError for a Python without an engine, InputError for a folder that is there.
    """
    facts = read_fingerprint(python).facts
    scenario = choose_scenario(facts)
    if scenario is None:
        raise EngineError(f"{python}: has no sglang or vllm; `perfgate engine install VERSION DIR` makes one that has sglang")
    package = ENGINES[scenario.server.engine].package
    version = facts[package]
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InputError(f"{folder}: is there already; a release is tried in a new folder") from None
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); choose another folder with --out") from None
    model = write_model(folder / "model", scenario.model.path)
    delay = build_injection_environment(f"host:{DELAY_US}") if is_sglang(ENGINES[scenario.server.engine]) else {}
    launch = ArmSpec(python=python, env=delay).build_launch(scenario, model)
    with Reaper() as reaper, Client(python, launch.engine, folder / "client.log", reaper) as client:
        server = Server(launch, folder / "server.log", reaper)
        stand = Stand(scenario=scenario, server=server, client=client, folder=folder)
        try:
            rows = tuple(_try_all(stand, progress, capabilities))
        finally:
            with suppress(PerfgateError):
                server.stop()
    told = {name: facts[name] for name in _FACTS if name in facts}
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return ReleaseRecord(package=package, version=version, date=date, facts=told, rows=rows)


def choose_scenario(facts: Mapping[str, str]) -> Scenario | None:
    """The tiny model as the engine of an environment serves it on a CPU; None where neither engine is there."""
    scenario = load_scenario(SCENARIO)
    if facts.get("sglang", "absent") != "absent":
        return scenario
    if facts.get("vllm", "absent") == "absent":
        return None
    server = replace(scenario.server, engine="vllm-cpu", args=VLLM_ARGS)
    return replace(scenario, server=server, load=replace(scenario.load, backend="vllm"))


def _try_all(stand: Stand, progress: Progress, capabilities: Sequence[Capability]) -> Iterator[Tried]:
    lost = ""
    for capability in capabilities:
        if not capability.applies(stand.engine):
            yield Tried(name=capability.name, state="inapplicable", said="perfgate does not use it of this engine")
            continue
        progress.wait(f"{capability.name}: {capability.what}")
        row = Tried(name=capability.name, state="untried", said=f"needs {lost}") if lost else _try(capability, stand)
        if capability.is_vital and row.state == "fails":
            lost = capability.name
        progress.step(f"{row.state:8} {row.name}: {row.said}")
        yield row


def _try(capability: Capability, stand: Stand) -> Tried:
    begun = time.monotonic()
    state: State = "works"
    try:
        said = capability.attempt(stand)
    except PerfgateError as error:
        said, state = str(error), "fails"
    # Where the folder lies is nothing to the next reader.
    said = said.replace(f"{stand.folder}/", "")
    return Tried(name=capability.name, state=state, said=said, took_s=round(time.monotonic() - begun, 1))


def store_release(found: ReleaseRecord, folder: Path) -> Path:
    """Write what was found into a folder of such files, one a release; the newest replaces what was there.

    Raise InputError where it cannot be written.
    """
    content = orjson.dumps(asdict(found), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    path = open_folder(folder, "--record") / found.name
    write_file(content, path, "--record")
    return path


def load_releases(folder: Path) -> list[ReleaseRecord]:
    """Read a folder of such files. Raise EvidenceError naming file and field, InputError where no folder is."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; `perfgate engine try --record {folder}` writes into it")
    return [read_json(path, ReleaseRecord, HINT) for path in sorted(folder.glob("*.json"))]
