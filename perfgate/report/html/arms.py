"""How the arms were started: which server arguments, variables and facts differ, and the command that measures them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join

from perfgate.core import Arm
from perfgate.evidence.records import SCENARIO_FILE, ArmRecord, SessionRecord
from perfgate.report import wording
from perfgate.report.table import Table
from perfgate.scenario import Scenario

ABSENT = "not set"
PROGRAM = "program"
INJECTION = "PERFGATE_INJECT"
GENERATED = "generated:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What an engine is started with whoever asks: arguments and variables that no option has to repeat."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def group_arguments(argv: Sequence[str]) -> dict[str, str]:
    """A command line by option: each with all that follows it, what stands before the first as the program."""
    grouped: dict[str, list[str]] = {}
    current = PROGRAM
    for word in argv:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            current = name
            grouped.setdefault(current, []).extend([value] if equals else [])
        else:
            grouped.setdefault(current, []).append(word)
    return {name: join(words) if words else "on" for name, words in grouped.items()}


def list_differences(arms: Mapping[Arm, ArmRecord]) -> Table:
    """Everything in which the arms were started differently, a row each; an arm alone differs from nothing."""
    rows = [row for row in _compare(arms) if len(set(row[1:])) > 1]
    return Table(header=("what", *(arm.value for arm in arms)), rows=rows)


def list_arguments(arms: Mapping[Arm, ArmRecord]) -> Table:
    """Every server argument and variable of both arms."""
    return Table(header=("what", *(arm.value for arm in arms)), rows=list(_compare_settings(arms)))


def _compare(arms: Mapping[Arm, ArmRecord]) -> Iterator[tuple[str, ...]]:
    yield from _compare_settings(arms)
    yield from _align("", {arm: record.facts for arm, record in arms.items()}, wording.MISSING)


def _compare_settings(arms: Mapping[Arm, ArmRecord]) -> Iterator[tuple[str, ...]]:
    yield from _align("", {arm: group_arguments(record.argv) for arm, record in arms.items()}, ABSENT)
    yield from _align("variable ", {arm: record.env for arm, record in arms.items()}, ABSENT)


def _align(kind: str, arms: Mapping[Arm, Mapping[str, str]], absent: str) -> Iterator[tuple[str, ...]]:
    for name in dict.fromkeys(name for facts in arms.values() for name in facts):
        yield (f"{kind}{name}", *(facts.get(name, absent) for facts in arms.values()))


def write_command(folder: Path, record: SessionRecord, scenario: Scenario, usual: Usual) -> str | None:
    """The command that measures the same arms again; None where its options cannot be told from what was started."""
    base, candidate = record.arms.get(Arm.BASE), record.arms.get(Arm.CANDIDATE)
    if base is None or candidate is None:
        return None
    shared = _find_rest(base.argv[1:], (*usual.args, *scenario.server.args))
    own = candidate.argv[len(base.argv) :]
    kept = {**usual.env, **scenario.server.env}
    if shared is None or candidate.argv[1:] != (*base.argv[1:], *own) or not base.env.keys() <= candidate.env.keys():
        return None
    words = ["perfgate", "gate", str(folder / SCENARIO_FILE)]
    if not scenario.model.path.startswith(GENERATED):
        words += ["--model", record.model.get("path", scenario.model.path)]
    words += [f"--arg={word}" for word in shared]
    words += [f"--env={name}={value}" for name, value in sorted(base.env.items()) if kept.get(name) != value]
    words += [f"--candidate-python={candidate.python}"] if candidate.python != base.python else []
    words += [f"--candidate-arg={word}" for word in own]
    changed = sorted(candidate.env.items() - base.env.items())
    return join([*words, *(_set_variable(name, value) for name, value in changed)])


def _find_rest(argv: Sequence[str], known: Sequence[str]) -> Sequence[str] | None:
    """What follows `known` in a command line; None where it does not stand there."""
    length = len(known)
    places = (start for start in range(len(argv) - length + 1) if tuple(argv[start : start + length]) == tuple(known))
    start = next(places, None) if known else None
    return None if start is None else argv[start + length :]


def _set_variable(name: str, value: str) -> str:
    return f"--candidate-inject={value}" if name == INJECTION else f"--candidate-env={name}={value}"
