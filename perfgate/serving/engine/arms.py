"""An arm is one side of a comparison: a Python environment, extra server arguments, extra environment variables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfgate.core import ABSENT, Fingerprint
from perfgate.engines.arguments import TRANSFER, read_option
from perfgate.engines.table import CACHE_PLACES, ENGINES
from perfgate.errors import EngineError, InputError
from perfgate.machine.fingerprint import read_nccl, read_versions
from perfgate.machine.links import read_links
from perfgate.results.records import ArmRecord
from perfgate.scenario.injections import parse_injection
from perfgate.scenario.schema import Scenario
from perfgate.serving.engine.launch import BALANCER, Launch
from perfgate.serving.injection.injection import VARIABLE

CARRIERS = {"nixl": "nixl", "mooncake": "mooncake", "mooncake_tcp": "mooncake"}
"""The Python module that each way of carrying keys and values from one server to another needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpec:
    """What the user asks of an arm. The empty spec is the scenario as it stands, in the Python that runs perfgate.

    `caches` is a folder of compile caches that no other arm's servers write; a candidate's gets the base's choices
    (`tuned_choices`). Where it lies changes nothing of what is measured, so it is no part of the record, and two arms that
    differ in it alone are equal.
    """

    python: str = sys.executable
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    caches: Path | None = None

    def build_launch(self, scenario: Scenario, model: Path) -> Launch:
        """Complete the spec by the scenario to what starts a server."""
        return Launch(
            engine=ENGINES[scenario.server.engine],
            python=self.python,
            model=model,
            args=(*scenario.server.args, *self.args),
            env={**list_caches(self.caches), **scenario.server.env, **self.env},
            ready_timeout_s=scenario.server.ready_timeout_s,
            stop_timeout_s=scenario.server.stop_timeout_s,
        )

    def build_record(self, scenario: Scenario, model: Path, fingerprint: Fingerprint, label: str) -> ArmRecord:
        """Describe the arm for the result folder; the port is chosen at each start, so it stands as 0.

        An arm over several GPUs has facts of its own: how many, how they are linked, and NCCL's version. One whose prefill and
        decode are apart has those of what lies between them; EngineError is raised where that is missing.
        """
        launch = replace(self, caches=None).build_launch(scenario, model)
        env = {**launch.engine.env, **launch.env}
        links = read_links(launch.devices)
        facts = {**fingerprint.facts, **links, **({"nccl": read_nccl(self.python)} if links else {}), **read_between(launch)}
        return ArmRecord(label=label, python=self.python, argv=launch.argv(0), env=env, facts=facts)


def read_between(launch: Launch) -> dict[str, str]:
    """The versions of what carries keys and values from prefill to decode and of what balances; none where they are one server.

    Raise EngineError where a package is missing.
    """
    if not launch.layout.is_disaggregated:
        return {}
    carrier = read_option(launch.args, TRANSFER) or ""
    if carrier not in CARRIERS:
        raise EngineError(f"{TRANSFER} {carrier}: prefill and decode apart need one of {', '.join(CARRIERS)}")
    versions = read_versions(launch.python, BALANCER.partition(".")[0], CARRIERS[carrier])
    for package, version in versions.items():
        if version == ABSENT:
            name = package.replace("_", "-")
            raise EngineError(f"{launch.python}: {name} is missing, which prefill and decode apart need; install it there")
    return versions


def list_caches(folder: Path | None) -> dict[str, str]:
    """The variables that make compilers keep what they compile below `folder`; none without one."""
    return {} if folder is None else {name: str(folder / place) for name, place in CACHE_PLACES.items()}


def parse_environment(pairs: Iterable[str]) -> dict[str, str]:
    """Read `NAME=VALUE` options. Raise InputError naming the one that is not of that form."""
    result = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"{pair}: expected NAME=VALUE of an environment variable, for example OMP_NUM_THREADS=1")
        result[name] = value
    return result


def build_injection_environment(text: str | None) -> dict[str, str]:
    """Turn `step:0.25` into the variable that the server's plug-in reads. Raise InputError for anything else."""
    if text is None:
        return {}
    parse_injection(text)
    return {VARIABLE: text}
