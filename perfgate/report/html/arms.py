"""How the arms were started: which server arguments, variables and facts differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import join

from perfgate.core import Arm
from perfgate.evidence.records import SessionRecord
from perfgate.report import wording
from perfgate.report.table import Table

ABSENT = "not set"
PROGRAM = "program"


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


def list_differences(record: SessionRecord) -> Table:
    """Everything in which the arms were started differently, a row each; an arm alone differs from nothing."""
    rows = [row for row in _compare(record) if len(set(row[1:])) > 1]
    return Table(header=("what", *(arm.value for arm in record.arms)), rows=rows)


def list_arguments(record: SessionRecord) -> Table:
    """Every server argument and variable of both arms, those that they inherited alike included."""
    return Table(header=("what", *(arm.value for arm in record.arms)), rows=list(_compare_settings(record)))


def _compare(record: SessionRecord) -> Iterator[tuple[str, ...]]:
    yield from _compare_settings(record)
    yield from _align("", {arm: found.facts for arm, found in record.arms.items()}, wording.MISSING)


def _compare_settings(record: SessionRecord) -> Iterator[tuple[str, ...]]:
    inherited = {name: f"{value} (inherited)" for name, value in (record.inherited or {}).items()}
    yield from _align("", {arm: group_arguments(found.argv) for arm, found in record.arms.items()}, ABSENT)
    yield from _align("variable ", {arm: {**inherited, **found.env} for arm, found in record.arms.items()}, ABSENT)


def _align(kind: str, arms: Mapping[Arm, Mapping[str, str]], absent: str) -> Iterator[tuple[str, ...]]:
    for name in dict.fromkeys(name for facts in arms.values() for name in facts):
        yield (f"{kind}{name}", *(facts.get(name, absent) for facts in arms.values()))
