"""Does what perfgate knows of an engine hold in the version that an arm will run? Asked before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from perfgate.engines.engine import Engine
from perfgate.engines.insides import EngineFact
from perfgate.engines.sglang_insides import GSM8K, INJECT, LOAD_GENERATOR, MOE_PLUGIN, PLUGINS
from perfgate.engines.table import ENGINES
from perfgate.errors import EngineError
from perfgate.machine.tools import Tool
from perfgate.results.records import ArmRecord
from perfgate.scenario.schema import Scenario
from perfgate.serving.injection.injection import VARIABLE as INJECTION
from perfgate_moe.engines.switch import OFF
from perfgate_moe.engines.switch import VARIABLE as MOE_VARIABLE

PROBE = Path(__file__).with_name("source_probe.py")
_PYTHON = Tool(
    timeout_s=120.0, missing=EngineError, failed=EngineError, hint="give the Python of an environment with the engine"
)


def verify_facts(scenario: Scenario, arms: Iterable[tuple[ArmRecord, str]]) -> tuple[str, ...]:
    """What could not be verified of the versions that the arms run, a line each; none for versions whose source was read.

    An arm comes with the Python that runs it.

    Raise EngineError for what a version lacks and the session needs: an option on its command line, the load generator, a hook
    that an arm asks for, or the evaluation that the scenario asks for.
    """
    engine = ENGINES[scenario.server.engine]
    told = [_verify_arm(scenario, engine, record, python) for record, python in arms]
    return tuple(dict.fromkeys(line for lines in told for line in lines))


def _verify_arm(scenario: Scenario, engine: Engine, record: ArmRecord, python: str) -> tuple[str, ...]:
    insides, version = engine.insides, record.facts.get(engine.package, "")
    unread = insides.describe_unread(version)
    if unread is None:
        return ()
    uses = set(_list_uses(scenario, engine, record))
    # Of an option that is true or false the opposite has a name of its own.
    words = {word.partition("=")[0].replace("--no-", "--", 1) for word in (*engine.args, *record.argv)}
    missing = list_lost(engine, python)
    if needed := [fact for fact in missing if fact.use in uses or (fact.kind == "option" and fact.place in words)]:
        lost = ", and no ".join(f"{fact.place}, which {fact.use} needs" for fact in needed)
        versions = f"{insides.first} to {insides.last}"
        raise EngineError(f"{engine.package} {version} has no {lost}; use {versions}, or a newer perfgate")
    return tuple(_tell(engine, f"{engine.package} {version}", unread, missing))


def _list_uses(scenario: Scenario, engine: Engine, record: ArmRecord) -> Iterator[str]:
    """What this session asks of an arm that facts name as their use: without such a fact it would measure something else."""
    if engine.has_client:
        yield LOAD_GENERATOR
    if scenario.equivalence.gsm8k.path is not None:
        yield GSM8K
    asked = {INJECT: INJECTION in record.env, MOE_PLUGIN: record.env.get(MOE_VARIABLE, "") not in OFF}
    yield from (use for use, is_asked in asked.items() if is_asked)
    if any(asked.values()):
        yield PLUGINS


def list_lost(engine: Engine, python: str) -> tuple[EngineFact, ...]:
    """The facts of an engine that the source installed beside `python` does not show, whatever its version."""
    insides, package = engine.insides, engine.package
    asked = {
        "package": package,
        "arguments": insides.arguments,
        "has_field_options": insides.has_field_options,
        "paths": insides.paths,
        "words": insides.words,
        "facts": [[fact.kind, fact.place] for fact in engine.facts],
    }
    name = f"{python}, asked for the source of {package}"
    done = _PYTHON.call([python, str(PROBE)], name=name, content=json.dumps(asked).encode())
    try:
        missing = {tuple(pair) for pair in json.loads(done.text)}
    except ValueError as error:
        raise EngineError(f"{name}: is no Python ({error})") from error
    return tuple(fact for fact in engine.facts if (fact.kind, fact.place) in missing)


def _tell(engine: Engine, name: str, unread: str, missing: Collection[EngineFact]) -> Iterator[str]:
    known = len(engine.facts)
    yield (
        f"{name} {unread}: {known - len(missing)} of {known} facts hold in its source; what its log lines and metrics mean was "
        "not verified"
    )
    for fact in missing:
        yield f"{name}: {fact.place} is not in its source, so {fact.use} may be missing or wrong"
