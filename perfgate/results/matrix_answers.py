"""Do the servers of a matrix give the same answers? A backend that is wrong may look fast in a table, too.

They are asked and compared as the arms of a session are: the first server of the file takes the base's place, each other one
the candidate's, and a round that of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.core import Arm
from perfgate.evidence import Answers
from perfgate.results.answers import load_answers
from perfgate.results.matrix_records import MatrixEntry
from perfgate.scenario.matrix import Matrix
from perfgate.verdict.validity.equivalence import check_equivalence, describe_equivalence


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What is known of one server's answers: why its cells are no evidence, and in a sentence how far it is from the first."""

    problems: tuple[str, ...] = ()
    sentence: str = ""


def choose_arm(matrix: Matrix, server: str) -> Arm:
    """In whose place a server answers: the first one of the file is what the others are held against."""
    return Arm.BASE if server == next(iter(matrix.servers)) else Arm.CANDIDATE


def compare_servers(
    folder: Path, matrix: Matrix, events: Iterable[Mapping[str, Any]], entries: Iterable[MatrixEntry]
) -> Mapping[str, Agreement]:
    """Hold each server's answers against the first one's. A folder from before servers were asked says nothing of them.

    Raise EvidenceError for an index of answers that was damaged.
    """
    answers = load_answers(folder) if matrix.equivalence.enabled else []
    if not answers:
        return {}
    starts = {event["start"]: str(event["server"]) for event in events if event.get("event") == "server_started"}
    asked: dict[str, list[Answers]] = {}
    for found in answers:
        asked.setdefault(starts.get(found.start, ""), []).append(found)
    measured = {(entry.server, entry.start) for entry in entries}
    first = next(iter(matrix.servers))
    return {server: _compare(matrix, (first, server), asked, measured) for server in matrix.servers}


def _compare(
    matrix: Matrix, names: tuple[str, str], asked: Mapping[str, list[Answers]], measured: Iterable[tuple[str, int]]
) -> Agreement:
    first, server = names
    own = asked.get(server, [])
    answers = own if server == first else [*asked.get(first, []), *own]
    starts = {found.start for found in own}
    unasked = sorted(start for name, start in measured if name == server and start not in starts)
    never = [f"start {start}: measured but never asked the equivalence prompts; measure again" for start in unasked]
    rules = matrix.equivalence
    wrong = [f"held against {first}: {problem}" for problem in check_equivalence(answers, rules)]
    return Agreement(problems=(*never, *wrong), sentence=describe_equivalence(answers, rules))
