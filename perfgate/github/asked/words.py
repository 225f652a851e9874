"""`/perfgate ...` as it was written: one line of known words, read into what is asked for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfgate.errors import InputError
from perfgate.report.escape import ZERO_WIDTH

USAGE = (
    "`/perfgate run|rerun|bisect [MACHINE] [SCENARIO] [COMMIT]`, `/perfgate compare A B [MACHINE] [SCENARIO]`, "
    '`/perfgate cancel|explain [MACHINE] [COMMIT]` or `/perfgate accept [MACHINE] [COMMIT] "why"`'
)
_OF_MACHINES = ("cancel", "explain", "accept")
"""Commands about all that was measured on a machine: none of its scenarios can be meant alone."""
_REF = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}"
_COMMAND = re.compile(
    r"/perfgate (?P<verb>run|rerun|cancel|explain|bisect|accept|compare(?= ))"
    rf"(?:(?<=compare) (?P<base>{_REF}) (?P<candidate>{_REF}))?"
    r"(?P<words>(?: [a-z0-9][a-z0-9._-]{0,63}){0,3})"
    r"(?: \"(?P<reason>[^\"\x00-\x1f\x7f-\x9f]*)\")?"
)
_REASON_LENGTH = range(8, 301)
_TYPED_QUOTES = str.maketrans("\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}", '""')
"""Telephones put these where a straight quote was typed."""
_SHA = re.compile(r"[0-9a-f]{40}")
_SHORT_SHA = re.compile(r"[0-9a-f]{7,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentCommand:
    """What a comment asks for. An empty hardware or scenario means all that the settings name; `reason` goes with `accept`,
    `refs`, a base and a candidate, with `compare`.
    """

    verb: str = "run"
    reason: str = ""
    hardware: str = ""
    scenario: str = ""
    sha: str = ""
    refs: tuple[str, ...] = ()


def parse_command(comment: str, hardware: tuple[str, ...], scenarios: tuple[str, ...]) -> CommentCommand | None:
    """Read a command, as USAGE has them, from the first line of a comment; None when it is none.

    Raise InputError for a command with a word that is neither known nor a commit with all its digits: who writes the code
    makes two commits with the same first twelve in seconds, and shows one of them.

    A commit that was copied from an answer of perfgate's has the mark in it that keeps GitHub from making a reference of it.
    """
    text = comment.replace(ZERO_WIDTH, "").translate(_TYPED_QUOTES).strip()
    line = text.splitlines()[0].strip() if text else ""
    if not line.startswith("/perfgate"):
        return None
    match = _COMMAND.fullmatch(line)
    if match is None or (match["verb"] == "compare" and match["base"] is None):
        raise InputError(f"no such command; write {USAGE}")
    reason = match["reason"]
    if (match["verb"] == "accept") is (reason is None) or (reason is not None and len(reason) not in _REASON_LENGTH):
        raise InputError(f"accept, and it alone, takes a reason of 8 to 300 characters in quotes; write {USAGE}")
    refs = tuple(_check_ref(match[name]) for name in ("base", "candidate") if match[name])
    found: dict[str, str] = {}
    for word in match["words"].split():
        kind = _classify(word, hardware, scenarios)
        if kind == "scenario" and match["verb"] in _OF_MACHINES:
            raise InputError(f"{match['verb']} is about all scenarios of a machine, not about {word} alone; write {USAGE}")
        if kind in found or (kind == "sha" and refs):
            raise InputError(f"{word} is the second {kind}; one command starts one measurement")
        found[kind] = word
    return CommentCommand(verb=match["verb"], reason=reason or "", refs=refs, **found)


def is_sha(word: str) -> bool:
    """Whether a word is a commit with all its 40 digits."""
    return _SHA.fullmatch(word) is not None


def _check_ref(word: str) -> str:
    """A commit with all its digits, or what may be a branch or tag; a part of a commit names nothing for certain."""
    if _SHORT_SHA.fullmatch(word):
        raise InputError(f"{word}: names a commit by half; write all 40 digits of it, or a branch or tag")
    if ".." in word or "//" in word or word.endswith(("/", ".", ".lock")):
        raise InputError(f"{word}: is no branch, tag or commit")
    return word


def _classify(word: str, hardware: tuple[str, ...], scenarios: tuple[str, ...]) -> str:
    if word in hardware:
        return "hardware"
    if word in scenarios:
        return "scenario"
    if is_sha(word):
        return "sha"
    known = f"machine ({', '.join(hardware)}), scenario ({', '.join(scenarios)})"
    raise InputError(f"{word} is no {known} or commit, all 40 digits of it")
