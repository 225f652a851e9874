"""Does what perfgate knows of an engine hold in the version that an arm will run? Asked before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterator, Mapping
from pathlib import Path

from perfgate.core import Arm
from perfgate.engines.engine import Engine
from perfgate.engines.insides import EngineFact, Insides, order_version
from perfgate.engines.table import ENGINES
from perfgate.errors import EngineError
from perfgate.machine.tools import Tool
from perfgate.results.records import ArmRecord
from perfgate.scenario.schema import Scenario

PROBE = Path(__file__).with_name("source_probe.py")
GSM8K = "GSM8K"
_PYTHON = Tool(
    timeout_s=120.0, missing=EngineError, failed=EngineError, hint="give the Python of an environment with the engine"
)


def verify_facts(scenario: Scenario, arms: Mapping[Arm, ArmRecord], pythons: Mapping[Arm, str]) -> tuple[str, ...]:
    """What could not be verified of the versions that the arms run, a line each; none for versions whose source was read.

    Raise EngineError for what a version lacks and the session needs: an option on its command line, or the evaluation that the
    scenario asks for.
    """
    engine = ENGINES[scenario.server.engine]
    told = [_verify_arm(scenario, engine, record, pythons[arm]) for arm, record in arms.items()]
    return tuple(dict.fromkeys(line for lines in told for line in lines))


def _verify_arm(scenario: Scenario, engine: Engine, record: ArmRecord, python: str) -> tuple[str, ...]:
    insides, version = engine.insides, record.facts.get(engine.package, "")
    if insides is None or not order_version(version):
        return ()
    words = {word.partition("=")[0] for word in (*engine.args, *record.argv)}
    is_newer = insides.is_newer(version)
    # What a wheel of a known version lacks may stand in a working tree of it, so that is looked for as well.
    known = [fact for fact in insides.find_gone(version) if _is_needed(fact, scenario, words)]
    missing = _look(engine.package, insides, python, insides.facts if is_newer else known)
    for fact in (fact for fact in missing if _is_needed(fact, scenario, words)):
        versions = f"{insides.first} to {insides.last}" if fact.gone is None else f"a version before {fact.gone}"
        raise EngineError(
            f"{engine.package} {version} has no {fact.place}, which {fact.use} needs; use {versions}, or a newer perfgate"
        )
    return tuple(_tell(engine.package, insides, version, missing)) if is_newer else ()


def list_lost(engine: Engine, python: str) -> tuple[EngineFact, ...]:
    """The facts of an engine that the source installed beside `python` does not show, whatever its version."""
    return () if engine.insides is None else _look(engine.package, engine.insides, python, engine.insides.facts)


def _is_needed(fact: EngineFact, scenario: Scenario, words: Container[str]) -> bool:
    is_asked = fact.use == GSM8K and scenario.equivalence.gsm8k.path is not None
    return is_asked or (fact.kind == "option" and fact.place in words)


def _tell(package: str, insides: Insides, version: str, missing: Collection[EngineFact]) -> Iterator[str]:
    lost = [fact for fact in missing if fact.gone is None]
    known = sum(fact.gone is None for fact in insides.facts)
    yield (
        f"{package} {version} is newer than {insides.last}, the last that perfgate knows: {known - len(lost)} of {known} facts "
        "hold in its source; what its log lines and metrics mean was not verified"
    )
    for fact in lost:
        yield f"{package} {version}: {fact.place} is not in its source, so {fact.use} may be missing or wrong"


def _look(package: str, insides: Insides, python: str, facts: Collection[EngineFact]) -> tuple[EngineFact, ...]:
    """Those of `facts` that the installed source does not show."""
    if not facts:
        return ()
    asked = {
        "package": package,
        "arguments": insides.arguments,
        "words": insides.words,
        "facts": [[fact.kind, fact.place] for fact in facts],
    }
    name = f"{python}, asked for the source of {package}"
    done = _PYTHON.call([python, str(PROBE)], name=name, content=json.dumps(asked).encode())
    try:
        missing = {tuple(pair) for pair in json.loads(done.text)}
    except ValueError as error:
        raise EngineError(f"{name}: is no Python ({error})") from error
    return tuple(fact for fact in facts if (fact.kind, fact.place) in missing)
