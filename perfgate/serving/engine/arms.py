"""An arm is one side of a comparison: a Python environment, extra server arguments, extra environment variables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfgate.core import Fingerprint
from perfgate.engines.table import CACHE_PLACES, ENGINES
from perfgate.errors import InputError
from perfgate.machine.fingerprint import read_nccl
from perfgate.machine.links import read_links
from perfgate.results.records import ArmRecord
from perfgate.scenario.schema import Scenario
from perfgate.serving.engine.launch import Launch
from perfgate.serving.injection.injection import VARIABLE, parse_injection


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

        An arm over several GPUs has facts of its own: how many, how they are linked, and NCCL's version.
        """
        launch = replace(self, caches=None).build_launch(scenario, model)
        env = {**launch.engine.env, **launch.env}
        links = read_links(launch.devices)
        facts = {**fingerprint.facts, **links, **({"nccl": read_nccl(self.python)} if links else {})}
        return ArmRecord(label=label, python=self.python, argv=launch.argv(0), env=env, facts=facts)


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
    try:
        parse_injection(text)
    except ValueError as error:
        raise InputError(f"--inject {error}") from None
    return {VARIABLE: text}
