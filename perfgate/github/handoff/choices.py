"""What a change makes the engine choose, and its host do, on the way from the job that ran both arms to one that may comment.

Words cross only where perfgate's own tables have them, beside numbers; any other word crosses as a digest, and both sides hold
every text to that. Which differences are losses is the word of the job that compared, which ran a change's code: it can forge
that as it can forge windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import orjson
from pydantic import AfterValidator, Field, ValidationError
from pydantic.dataclasses import dataclass

from perfgate.errors import HandoffError
from perfgate.machine.accelerators import split_set
from perfgate.resolution.rules import FLAG, GONE, NEW, RULES
from perfgate.resolution.table import GPUS, MODELS
from perfgate.resolution.values import EXIT_CODES, Difference, Kind, ResolveAnswer, decide
from perfgate.resolution.vocabulary import DIGEST, FLAGS, WORDS, digest_word
from perfgate.scheduler.judge import RULES as HOST_RULES
from perfgate.scheduler.report import describe_key, write_amounts
from perfgate.scheduler.values import CostDifference
from perfgate.storage.journal import read_json
from perfgate.storage.schema import FOREIGN, LOOSE, adapt

MAX_DIFFERENCES = 24
MAX_BYTES = 8000
"""Of the document, which crosses as one output of a step."""

_HINT = "give what `perfgate resolve --format json` wrote"
_HOST_HINT = "give what `perfgate scheduler --format json` wrote"

T = TypeVar("T")

if TYPE_CHECKING:
    ModelName = str
    GpuName = str
else:
    ModelName, GpuName = Literal[tuple(MODELS)], Literal[tuple(GPUS)]


def _check_key(key: str) -> str:
    name = key.removeprefix(FLAG)
    is_flag = name != key and (name in FLAGS or re.fullmatch(DIGEST, name))
    if not (is_flag or key in RULES or key in HOST_RULES or key in (NEW, GONE)):
        raise ValueError("a key that perfgate does not know")
    return key


def _check_words(text: str) -> str:
    if not all(map(_is_known, _PIECE.findall(text))):
        raise ValueError("a word that is none of perfgate's table, no number and no digest")
    return text


MAX_CHOICE = 160
Key = Annotated[str, AfterValidator(_check_key)]
Choice = Annotated[str, Field(max_length=MAX_CHOICE), AfterValidator(_check_words)]
Few = Annotated[int, Field(ge=0, lt=10_000)]


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class ChoiceEntry:
    """One difference: a key, its value in both arms, the models and GPUs that it concerns; none where it is the host's work."""

    key: Key
    kind: Literal["lost", "changed"]
    base: Choice
    candidate: Choice
    cases: Annotated[tuple[tuple[ModelName, GpuName], ...], Field(fail_fast=True, max_length=len(MODELS) * len(GPUS))]

    def __post_init__(self) -> None:
        """A choice is one of a model's on a GPU, and the host's work is not."""
        if bool(self.cases) == self.is_host:
            raise ValueError("cases: a choice has a model and a GPU, and what the host does has none")

    @property
    def is_host(self) -> bool:
        """Whether it is work of the host, as `perfgate scheduler` counts it, and no choice."""
        return self.key in HOST_RULES

    @property
    def means(self) -> str:
        """The key in words; the key itself where it has none."""
        if self.is_host:
            return describe_key(self.key)
        return RULES[self.key].means if self.key in RULES else self.key


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class ChoicesEntry:
    """How the arms' choices differ, losses first. `left_out` counts changes that found no room, `unverified` what could not be
    compared. `has_host` says that the host's work was asked about too.
    """

    differences: Annotated[tuple[ChoiceEntry, ...], Field(fail_fast=True, max_length=MAX_DIFFERENCES)]
    left_out: Few = 0
    unverified: Few = 0
    has_host: bool = False

    @property
    def lost(self) -> tuple[ChoiceEntry, ...]:
        """The differences that fail the change."""
        return tuple(one for one in self.differences if one.kind == "lost")

    @property
    def changed(self) -> int:
        """How many other differences there are."""
        return len(self.differences) - len(self.lost) + self.left_out

    @property
    def answer(self) -> ResolveAnswer:
        """The verdict, as `perfgate resolve` gives it."""
        return decide(is_lost=bool(self.lost), is_unverified=bool(self.unverified), is_changed=bool(self.changed))

    @property
    def exit_code(self) -> int:
        """The exit code of that answer."""
        return EXIT_CODES[self.answer]

    def pick(self, hardware: str) -> ChoicesEntry:
        """What concerns the GPUs of one machine; all of it for one whose are none of the table's."""
        gpu, _ = split_set(hardware)
        if gpu not in GPUS:
            return self
        kept = ((one, tuple(case for case in one.cases if case[1] == gpu)) for one in self.differences)
        return replace(self, differences=tuple(replace(one, cases=left) for one, left in kept if left or one.is_host))


@dataclass(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Document:
    differences: tuple[Difference, ...]
    unverified: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _HostDocument:
    differences: tuple[CostDifference, ...] = ()
    unverified: tuple[str, ...] = ()


def pack_choices(path: Path, host: Path | None = None) -> str:
    """Reduce what `perfgate resolve` wrote, and `perfgate scheduler` into `host`, to one line.

    Raise EvidenceError or HandoffError for a file of another kind.
    """
    document, work = read_json(path, _Document, _HINT), read_json(host, _HostDocument, _HOST_HINT) if host else _HostDocument()
    entries = [*_pack_all(path, document.differences, _pack, _HINT), *_pack_all(host, work.differences, _pack_work, _HOST_HINT)]
    entries.sort(key=lambda entry: entry.kind != "lost")
    unverified = len(document.unverified) + len(work.unverified)
    kept = entries[:MAX_DIFFERENCES]
    while True:
        left = len(entries) - len(kept)
        found = ChoicesEntry(differences=tuple(kept), left_out=left, unverified=unverified, has_host=host is not None)
        line = orjson.dumps(found).decode()
        if len(line) <= MAX_BYTES:
            return line
        if not kept or kept[-1].kind == "lost":
            raise HandoffError(f"{path}: more was lost than {MAX_BYTES} bytes say; run `perfgate resolve` by hand")
        kept.pop()


def parse_choices(line: str) -> ChoicesEntry | None:
    """Read the line again; None for an empty one, of a job that said nothing. Raise HandoffError for any other text."""
    if not line:
        return None
    try:
        return adapt(ChoicesEntry).validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise HandoffError(f"--choices: {first['msg']}; give what `perfgate handoff choices` wrote") from None


_PIECE = re.compile(r"[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*|.", re.DOTALL)
_PLAIN = re.compile(rf"[ ,.:;=+%()\[\]-]|[0-9]{{1,18}}|[0-9a-f]{{8}}|{DIGEST}")


def _is_known(piece: str) -> bool:
    """Whether a word or a character may cross: one of perfgate's table, a number, a digest, or what stands between words."""
    return piece in WORDS or _PLAIN.fullmatch(piece) is not None


def _pack(told: Difference) -> ChoiceEntry:
    base, candidate = (_count(text) if told.key in (NEW, GONE) else _reduce(text) for text in (told.base, told.candidate))
    return ChoiceEntry(
        key=_reduce_key(told.key),
        kind=_name_kind(told.kind),
        base=base,
        candidate=candidate,
        cases=told.cases,
    )


def _pack_work(told: CostDifference) -> ChoiceEntry:
    base, candidate = write_amounts(told.base, told.more)
    return ChoiceEntry(key=told.key, kind=_name_kind(told.kind), base=base, candidate=candidate, cases=())


def _name_kind(kind: Kind) -> Literal["lost", "changed"]:
    return "lost" if kind is Kind.LOST else "changed"


def _pack_all(path: Path | None, told: Iterable[T], pack: Callable[[T], ChoiceEntry], hint: str) -> list[ChoiceEntry]:
    try:
        return [pack(one) for one in told]
    except ValidationError as error:
        raise HandoffError(f"{path}: {error.errors(include_url=False, include_input=False)[0]['msg']}; {hint}") from None


def _reduce_key(key: str) -> str:
    name = key.removeprefix(FLAG)
    return key if name == key or name in FLAGS else f"{FLAG}{digest_word(name)}"


def _count(arguments: str) -> str:
    return "none" if arguments == "none" else f"{len(arguments.split(', '))} of them"


def _reduce(text: str) -> str:
    """The text with each word that the table does not have as a digest, up to the last that finds room."""
    words = [_reduce_piece(piece) for piece in _PIECE.findall(text)]
    ends = accumulate(map(len, words))
    return "".join(word for word, end in zip(words, ends, strict=True) if end <= MAX_CHOICE)


def _reduce_piece(piece: str) -> str:
    if _is_known(piece):
        return piece
    return digest_word(piece) if re.match(r"\w", piece) else " "


def list_cases(cases: Iterable[tuple[str, str]]) -> str:
    """The models, and the GPUs where there are several, in few words; `every model` where none is named."""
    found = tuple(cases)
    if not found:
        return "every model"
    gpus = dict.fromkeys(gpu for _, gpu in found)
    models = ", ".join(dict.fromkeys(model for model, _ in found))
    return models if len(gpus) == 1 else f"{models} on {', '.join(gpus)}"
