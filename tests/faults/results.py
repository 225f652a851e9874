"""What runs of seeded faults said: a line for each fault, the newest run of it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from perfgate.verdict.policy import RULE
from tests.fakes.recorded import ROOT
from tests.faults.fault import Answer, Fault, find_line

VARIABLE = "PERFGATE_FAULTS"
"""Names the file that a run of the tests appends to; without it nothing is kept."""

RECORDED = Path(__file__).with_name("results.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of one fault: what the gate said, the line by which it was caught, and what was run when.

    `commit` is the tree that was run, with a `+` where the gate or its tests were changed since; `rule` is the verdict's rule.
    """

    name: str
    expected: str
    got: str
    caught: bool
    by: str
    lost: str
    day: str
    commit: str = ""
    rule: str = ""


def build_result(fault: Fault, answer: Answer) -> Result:
    return Result(
        name=fault.name,
        expected=" or ".join(fault.expected),
        got=answer.got,
        caught=fault.is_caught_by(answer),
        by=find_line(answer, fault.words) or (answer.told or ("",))[0],
        lost="; ".join(answer.lost),
        day=datetime.now(UTC).strftime("%Y-%m-%d"),
        commit=read_commit(),
        rule=RULE,
    )


@cache
def read_commit() -> str:
    """The commit that is run, short, with a `+` for changes that are not committed; empty outside a repository."""

    def ask(*words: str) -> str:
        done = subprocess.run(
            ["git", *words],  # noqa: S607 - whichever git made the working tree
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = ask("status", "--porcelain", "--", "perfgate", "tests", f":!{RECORDED.relative_to(ROOT)}")
    return ask("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def keep(result: Result) -> None:
    """Append to the file that the environment names, if it names one."""
    if name := os.environ.get(VARIABLE):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        with Path(name).open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def load(*paths: Path) -> dict[str, Result]:
    """The last result of each fault."""
    lines = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
    return {found["name"]: Result(**found) for found in map(json.loads, lines)}
