"""The one comment of a pull request as sections, one a hardware, each with the newest result and a folded history.

The state of a section is kept in a line of JSON inside an HTML comment, so that another job, hours later, can replace its own
section and leave the others alone. It is the last line of its section, because a mail shows HTML comments as text and should
begin with the verdict. No text of a result can forge such a line: marks count only where they are a whole line, and every
opening of an HTML comment inside a result is broken before it is put in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Annotated

import orjson
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass as record_class

from perfgate.errors import StaleError
from perfgate.github.comment.states import State, write_section_heading, write_short_heading
from perfgate.github.handoff.subject import FactName, HandoffSubject, Label, Sha
from perfgate.report.render import FOLD_BEGIN, FOLD_END
from perfgate.report.words.length import WORDS, close_folds, count_words, write_fold
from perfgate.storage.journal import Time
from perfgate.storage.schema import FOREIGN, Count, adapt

MARK = "<!-- perfgate:v1 -->"
"""The first line of perfgate's comment. Any user can write it, so the author counts too."""

MAX_COMMENT = 60_000
"""Characters; GitHub refuses more than 65,536."""

MAX_HISTORY = 10
OVERHEAD = 4_700
"""Characters of a section at most that are neither its body nor the history that is shown: its state, heading and fold."""

SECTION_WORDS, SHORT_WORDS = 6, 2
"""Words of an open section beside its heading and body, which are its machine, commit, run and time; and of a short heading."""

DEPTH_OF_FOLDS = 3
"""A fold of a report, in that of its scenario, in that of the scenarios that are only counted."""

CUT = "*The rest does not fit into a comment; the run's summary has all of it.*"
ALL_BEGIN = "<details><summary>All of this machine</summary>\n\n"
_BEGIN = "<!-- perfgate:section -->"
_SECTION = re.compile(r"\n(?P<body>.*?)^<!-- perfgate:end (?P<state>\{[^\n]*\}) -->$", re.DOTALL | re.MULTILINE)
_FOOT = re.compile(r"^<!-- perfgate:foot -->\n.*", re.DOTALL | re.MULTILINE)


@record_class(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class Loss:
    """A metric that became worse. `most_ratio` is the loss that its interval rules out, as a positive ratio."""

    scenario: Label
    metric: FactName
    most_ratio: Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False)]


@record_class(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class ResultEntry:
    """One result in one line: which commit, what came of it, when, in which run, and what may be accepted of it."""

    head_sha: Sha
    state: State
    run_id: Count
    run_attempt: Annotated[int, Field(ge=0, lt=100_000)]
    at: Time
    losses: Annotated[tuple[Loss, ...], Field(max_length=16)] = ()

    @property
    def order(self) -> tuple[int, int]:
        """Later runs have larger numbers."""
        return self.run_id, self.run_attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSection:
    """What the comment says of one hardware.

    `heading` and `body` are markdown of the job that had the result. Later jobs carry them over as they are and read nothing in
    them: what a job must know of a section stands in its entries.
    """

    hardware: str
    entry: ResultEntry
    heading: str
    history: tuple[ResultEntry, ...] = ()
    body: str = ""


@record_class(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class _Kept:
    hardware: Label
    entry: ResultEntry
    history: Annotated[tuple[ResultEntry, ...], Field(max_length=MAX_HISTORY)]


def build_section(subject: HandoffSubject, state: State, at: str, *, headline: str = "", body: str = "") -> MachineSection:
    """Make the section of one machine at the time `at`, in UTC as `Time` writes it.

    `headline` is a verdict with its numbers as one line of markdown; without one the words of the state are used.
    """
    entry = ResultEntry(head_sha=subject.head_sha, state=state, run_id=subject.run_id, run_attempt=subject.run_attempt, at=at)
    heading = write_section_heading(state, subject.hardware, disarm(headline))
    return MachineSection(hardware=subject.hardware, entry=entry, heading=heading, body=body)


def put(
    sections: Mapping[str, MachineSection], new: MachineSection, known: Mapping[str, MachineSection] | None = None
) -> dict[str, MachineSection]:
    """Replace the section of one hardware; its last final result moves into the history.

    Of one commit an answer outranks every announcement, and a later run an earlier one: an event that measures nothing (another
    label, say) must neither wipe an answer out nor keep one back. Raise StaleError for what is outranked. What stood in `known`
    outranks nothing: the caller has asked the commit's statuses, which a forged comment cannot change.
    """
    old = sections.get(new.hardware)
    if old is None:
        return {**sections, new.hardware: new}
    is_known = known is not None and (was := known.get(new.hardware)) is not None and was.entry == old.entry
    if not is_known and old.entry.head_sha == new.entry.head_sha and _rank(old.entry) > _rank(new.entry):
        raise StaleError(f"run {new.entry.run_id}.{new.entry.run_attempt} has nothing newer to say of this commit")
    past = old.history
    if old.entry.state.is_final and (old.entry.order, old.entry.head_sha) != (new.entry.order, new.entry.head_sha):
        past = (old.entry, *(entry for entry in past if entry.order != old.entry.order))
    return {**sections, new.hardware: replace(new, history=past[:MAX_HISTORY])}


def _rank(entry: ResultEntry) -> tuple[bool, int, int]:
    return entry.state.is_final, *entry.order


def merge(one: Mapping[str, MachineSection], other: Mapping[str, MachineSection]) -> dict[str, MachineSection]:
    """Join the sections of two comments: of each hardware the later run is kept."""
    merged = dict(one)
    for hardware, section in other.items():
        mine = merged.get(hardware)
        if mine is None or _rank(mine.entry) < _rank(section.entry):
            merged[hardware] = section
    return merged


def parse(comment: str) -> dict[str, MachineSection]:
    """Read perfgate's own comment; a section whose state was edited is left out, and comes back with its next result."""
    found = {}
    _, *parts = re.split(rf"^{_BEGIN}$", comment.replace("\r\n", "\n"), flags=re.MULTILINE)
    for match in filter(None, map(_SECTION.match, parts)):
        try:
            kept = adapt(_Kept).validate_json(match["state"])
        except ValidationError:
            continue
        heading, _, body = _FOOT.sub("", match["body"]).partition("\n")
        if body.startswith(f"\n{ALL_BEGIN}"):
            heading, _, body = body.removeprefix(f"\n{ALL_BEGIN}").partition("\n")
        found[kept.hardware] = MachineSection(
            hardware=kept.hardware, entry=kept.entry, heading=heading, history=kept.history, body=_unfold(body.strip("\n"))
        )
    return found


def render(sections: Mapping[str, MachineSection], runs_url: str) -> str:
    """Write the comment, the worst section first and open, the others folded below their headings.

    `runs_url` is the address of the repository's runs. Headings with which the comment has more than WORDS before its folds are
    short, and their words stand in the fold. Where the room is short, the earlier results make way first; they stay in the
    state. Then long bodies are cut.
    """
    shown = _render(sections, runs_url, has_history=True)
    return shown if CUT not in shown else _render(sections, runs_url, has_history=False)


def _render(sections: Mapping[str, MachineSection], runs_url: str, *, has_history: bool) -> str:
    order = sorted(sections, key=lambda name: (sections[name].entry.state.order, name))
    forms = _choose_forms([sections[name] for name in order], runs_url)

    def render_one(name: str, body: str) -> str:
        return _render_section(replace(sections[name], body=body), forms[name], runs_url, has_history=has_history)

    # A body brings two lines of its own, a section the two before it and its fold, and the end is a line too.
    around = 4 + len(FOLD_BEGIN) + len(FOLD_END)
    room = MAX_COMMENT - len(MARK) - 1 - sum(len(render_one(name, "")) + around for name in order)
    bodies = _share_room({name: disarm(sections[name].body) for name in order}, room)
    return "\n\n".join((MARK, *(render_one(name, bodies[name]) for name in order))) + "\n"


class _Form(Enum):
    """What of a section stands before its fold: all, its heading and foot, or a short heading."""

    OPEN = auto()
    HEADED = auto()
    SHORT = auto()


def _choose_forms(ordered: Sequence[MachineSection], runs_url: str) -> dict[str, _Form]:
    """The first section is open. The others have their whole headings while WORDS are left, the worst first."""

    def count(section: MachineSection, form: _Form) -> int:
        return count_words(close_folds(_render_section(section, form, runs_url, has_history=False)))

    forms = {section.hardware: _Form.SHORT if number else _Form.OPEN for number, section in enumerate(ordered)}
    left = WORDS - sum(count(section, forms[section.hardware]) for section in ordered)
    for section in ordered[1:]:
        more = count(section, _Form.HEADED) - count(section, _Form.SHORT)
        if more <= left:
            forms[section.hardware] = _Form.HEADED
            left -= more
    return forms


def _unfold(body: str) -> str:
    """A body without the fold that `_render` put around it."""
    return body.removeprefix(FOLD_BEGIN).removesuffix(FOLD_END) if body.startswith(FOLD_BEGIN) else body


def find_room(sections: int) -> int:
    """How long the body of each of so many sections may be, so that none is ever cut for another's sake."""
    return (MAX_COMMENT - len(MARK)) // max(sections, 1) - OVERHEAD


def find_words(sections: int) -> int:
    """How many words the heading and the body of each of so many sections may have before their folds."""
    return WORDS - SECTION_WORDS - SHORT_WORDS * (max(sections, 1) - 1)


def _share_room(bodies: Mapping[str, str], room: int) -> dict[str, str]:
    """Cut the longest bodies first, so that a short one is never cut for a long one's sake."""
    shared: dict[str, str] = {}
    for left, name in zip(range(len(bodies), 0, -1), sorted(bodies, key=lambda name: len(bodies[name])), strict=True):
        shared[name] = cut(bodies[name], room // left)
        room -= len(shared[name])
    return shared


def cut(body: str, most: int) -> str:
    """Shorten markdown to `most` characters at the end of a line, closing what is open there."""
    if len(body) <= most:
        return body
    closers = "\n```\n\n" + "</details>\n\n" * DEPTH_OF_FOLDS
    kept = body[: max(most - len(CUT) - len(closers), 0)].rpartition("\n")[0]
    fence = "\n```" if len(re.findall(r"^```", kept, re.MULTILINE)) % 2 else ""
    fold = "\n\n</details>" * (kept.count("<details>") - kept.count("</details>"))
    return f"{kept}{fence}{fold}\n\n{CUT}"


def disarm(body: str) -> str:
    """Break every HTML comment, which could pass for one of ours."""
    return body.replace("\r\n", "\n").replace("<!--", "&lt;!--")


def _render_section(section: MachineSection, form: _Form, runs_url: str, *, has_history: bool) -> str:
    entry = section.entry
    kept = _Kept(hardware=section.hardware, entry=entry, history=section.history)
    body = f"{FOLD_BEGIN}{section.body}{FOLD_END}" if form is _Form.HEADED and section.body else section.body
    lines = [
        disarm(section.heading),
        *(["", body, ""] if body else [""]),
        "<!-- perfgate:foot -->",
        f"<sub>commit {entry.head_sha[:12]}, {_link(entry, runs_url)}, {entry.at}</sub>",
        *_render_history(section.history if has_history else (), runs_url),
    ]
    if form is _Form.SHORT:
        lines = [f"{write_short_heading(entry.state, section.hardware)}\n\n{ALL_BEGIN}{lines[0]}", *lines[1:], "", "</details>"]
    return "\n".join((_BEGIN, *lines, f"<!-- perfgate:end {orjson.dumps(kept).decode()} -->"))


def _render_history(history: tuple[ResultEntry, ...], runs_url: str) -> tuple[str, ...]:
    if not history:
        return ()
    rows = [f"- commit {entry.head_sha[:12]}: {entry.state.value}, {_link(entry, runs_url)}, {entry.at}" for entry in history]
    return write_fold(f"Before ({len(history)})", rows)


def _link(entry: ResultEntry, runs_url: str) -> str:
    return f"[run {entry.run_id}.{entry.run_attempt}]({runs_url}/{entry.run_id})"
