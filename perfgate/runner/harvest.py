"""Seeds renew themselves: what a job of the main branch compiled is left behind, and root takes it if GitHub says whose it was.

A job says which run it belongs to, which proves nothing. So root asks GitHub which job ran on the runner that this slot
had registered, under a name that was used for one job only. The answer is about the runner, and no job can change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic.dataclasses import dataclass as record_class

from perfgate.errors import RunnerError
from perfgate.runner.admission import Rules
from perfgate.runner.scrub import delete_tree, read_left_value
from perfgate.runner.settings import Repository
from perfgate.storage.schema import FOREIGN, Identifier, find

OFFER = "offer"
CLAIM = "claim.json"
FILES = "files"
MAX_CLAIM_BYTES = 4096
# Started by GitHub's clock or by a user with write access, on the main branch's files.
ORIGINS = ("schedule", "workflow_dispatch")


@record_class(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class Claim:
    """Which run a job says it belongs to."""

    repository: Repository
    run_id: Identifier
    run_attempt: Identifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What GitHub says of that run, and the names of the runners that its jobs ran on."""

    run: Mapping[str, Any]
    runners: tuple[str, ...]


def offer(source: Path, home: Path, claim: Claim) -> Path:
    """Leave the compile cache at `source` for the clean-up of this slot. Raise RunnerError when it cannot be left."""
    target = home / OFFER
    try:
        target.mkdir()
        source.rename(target / FILES)
        (target / CLAIM).write_bytes(orjson.dumps(claim))
    except OSError as error:
        raise RunnerError(f"{source}: cannot be offered ({error.strerror}); it has to lie on the disk of {home}") from None
    return target


def build_claim(environment: Mapping[str, str]) -> Claim:
    """The claim of the job that runs now. Raise RunnerError outside of one."""
    names = ("GITHUB_REPOSITORY", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT")
    repository, *numbers = (environment.get(name, "") for name in names)
    try:
        return Claim(repository=repository, run_id=int(numbers[0]), run_attempt=int(numbers[1]))
    except ValueError:
        raise RunnerError("no job runs here: GITHUB_REPOSITORY, GITHUB_RUN_ID and GITHUB_RUN_ATTEMPT say which") from None


def read_claim(home: Path) -> Claim | None:
    """Read what the last job of a slot claims; None when it offered nothing. Raise RunnerError for what is no claim."""
    return read_left_value(home / OFFER / CLAIM, MAX_CLAIM_BYTES, Claim, "claim")


def find_fault(claim: Claim, origin: Origin, registered: str, rules: Rules, workflows: Iterable[str]) -> str | None:
    """Why a cache must not become a seed; None when the job that made it ran the main branch's code alone."""
    run, here = origin.run, claim.repository
    file = str(run.get("path")).partition("@")[0].removeprefix(".github/workflows/")
    checks = (
        (here not in rules.repositories, f"{here} may not use this machine"),
        (find(run, "repository.full_name") != here, "the run is of another repository"),
        (find(run, "head_repository.full_name") != here, "the run's code comes from a fork"),
        (run.get("event") not in ORIGINS, f"the run was started by {str(run.get('event'))[:40]}"),
        (f"refs/heads/{run.get('head_branch')}" != rules.main, "the run is not of the main branch"),
        (file not in workflows, f"workflow {file[:80]} makes no seeds"),
        (origin.runners.count(registered) != 1, f"no job of the run was on {registered}"),
    )
    return next((reason for is_wrong, reason in checks if is_wrong), None)


def harvest(home: Path, registered: str, ask: Callable[[Claim], str | None], keep: Callable[[Path], Path]) -> str:
    """Take what the last job of a slot offers, if `ask` finds no fault in its claim; say what became of it.

    The caller has made sure that no process of the job lives any more, so what is looked at is what is taken. The offer is gone
    afterwards either way.
    """
    if (home / OFFER).is_symlink() or (home / OFFER / FILES).is_symlink():
        raise RunnerError("offered cache refused: it is a link")
    try:
        claim = read_claim(home)
        if claim is None:
            return "nothing offered"
        if fault := ask(claim):
            raise RunnerError(f"offered cache refused: {fault}")
        return f"seeded {keep(home / OFFER / FILES)} by {registered}"
    finally:
        delete_tree(home / OFFER)
