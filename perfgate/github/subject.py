"""Does a hand-off speak of the change that its run belongs to? What the run says is fact, what the document says is a claim."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from perfgate.accelerators import find_label_of_facts
from perfgate.errors import HandoffError
from perfgate.github.artifact import read_documents
from perfgate.github.handoff import Handoff, Subject, parse_handoff


def open_artifact(path: Path, expected: Subject) -> tuple[Handoff, ...]:
    """Read an artifact and hold every document in it against the run it came from. Raise HandoffError for any difference."""
    documents = read_documents(path)
    handoffs = tuple(parse_handoff(content, name) for name, content in sorted(documents.items()))
    for name, handoff in zip(sorted(documents), handoffs, strict=True):
        check_subject(handoff, expected, name)
    names = [handoff.scenario for handoff in handoffs]
    if len(set(names)) < len(names):
        raise HandoffError(f"{path}: several hand-offs of one scenario; a scenario is measured once a run")
    return handoffs


def check_subject(handoff: Handoff, expected: Subject, source: str) -> None:
    """Refuse a document of another repository, pull request, commit, run or machine than `expected`."""
    for field in fields(Subject):
        claimed, due = getattr(handoff.subject, field.name), getattr(expected, field.name)
        if claimed != due:
            raise HandoffError(f"{source}: subject.{field.name} is {claimed}, but its run belongs to {due}; refused")
    for arm, found in handoff.arms.items():
        if (label := find_label_of_facts(found.facts)) != expected.hardware:
            raise HandoffError(f"{source}: arms.{arm.value} ran on {label}, where {expected.hardware} was asked for; refused")
