"""What a change makes the engine choose, on its way from the job that ran both arms' code to one that may speak.

Words cross only where the base has them or perfgate itself writes them, beside numbers and names of the table of models and
GPUs; any other word of the candidate crosses as a digest. Which differences are losses is the word of the job that compared,
which ran a change's code: it can forge that as it can forge windows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from perfgate.errors import HandoffError
from perfgate.resolution.rules import GONE, NEW, RULES
from perfgate.resolution.table import GPUS, MODELS
from perfgate.resolution.values import EXIT_CODES, Kind, ResolveAnswer, decide
from perfgate.storage.journal import read_json
from perfgate.storage.schema import adapt

MAX_DIFFERENCES = 24
MAX_BYTES = 8000
"""Of the document: an output of a step holds no more."""

_STRICT = ConfigDict(extra="forbid", strict=True, defer_build=True)
_LOOSE = ConfigDict(extra="ignore", defer_build=True)
_HINT = "give what `perfgate resolve --format json` wrote"

if TYPE_CHECKING:
    ModelName = str
    GpuName = str
else:
    ModelName, GpuName = Literal[tuple(MODELS)], Literal[tuple(GPUS)]

Key = Annotated[str, Field(pattern=rf"^((flag )?[a-z0-9_]{{1,64}}|{NEW}|{GONE})$")]
Choice = Annotated[str, Field(pattern=r"^[A-Za-z0-9 _.,:;=()\[\]+/@#~*%-]*$", max_length=160)]
Few = Annotated[int, Field(ge=0, lt=10_000)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ChoiceEntry:
    """One difference: a key, its value in both arms, the models and GPUs that it concerns."""

    key: Key
    kind: Literal["lost", "changed"]
    base: Choice
    candidate: Choice
    cases: Annotated[tuple[tuple[ModelName, GpuName], ...], Field(min_length=1, max_length=len(MODELS) * len(GPUS))]

    @property
    def means(self) -> str:
        """The key in words; the key itself where it has none."""
        return RULES[self.key].means if self.key in RULES else self.key


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ChoicesEntry:
    """How the arms' choices differ, losses first. `left_out` counts changes that found no room, `unverified` what could not be
    compared.
    """

    differences: Annotated[tuple[ChoiceEntry, ...], Field(max_length=MAX_DIFFERENCES)]
    left_out: Few = 0
    unverified: Few = 0

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

    def pick(self, gpu: str) -> ChoicesEntry:
        """What concerns one GPU; all of it for a machine that is none of the table's."""
        if gpu not in GPUS:
            return self
        kept = {one: tuple(case for case in one.cases if case[1] == gpu) for one in self.differences}
        return replace(self, differences=tuple(replace(one, cases=cases) for one, cases in kept.items() if cases))


@dataclass(frozen=True, slots=True, kw_only=True, config=_LOOSE)
class _Told:
    """A difference as `perfgate resolve` writes it."""

    key: str
    kind: Kind
    base: str
    candidate: str
    cases: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=_LOOSE)
class _Arm:
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, config=_LOOSE)
class _Document:
    base: _Arm
    differences: tuple[_Told, ...]
    unverified: tuple[str, ...]


def pack_choices(path: Path) -> str:
    """Reduce what `perfgate resolve` wrote to one line. Raise EvidenceError or HandoffError for a file of another kind."""
    document = read_json(path, _Document, _HINT)
    known = frozenset(_list_words(document))
    try:
        entries = [_pack(told, known) for told in document.differences]
    except ValidationError as error:
        raise HandoffError(f"{path}: {error.errors(include_url=False, include_input=False)[0]['msg']}; {_HINT}") from None
    entries.sort(key=lambda entry: entry.kind != "lost")
    kept = entries[:MAX_DIFFERENCES]
    while True:
        left = len(entries) - len(kept)
        found = ChoicesEntry(differences=tuple(kept), left_out=left, unverified=len(document.unverified))
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


_WORDS = re.compile(r"[^\s,\[\]()]+")
_NUMBER = re.compile(r"[-+]?\d[\d.]*%?")
_NOT_CHOICE = re.compile(r"[^A-Za-z0-9 _.,:;=()\[\]+/@#~*%-]")
_OWN = frozenset(
    {"+", "-", "%", "...", "none", "none:", "on", "off", "to", "in", "another", "order", "first", "is", "shown", "the"}
    | {
        "for",
        "of",
        "its",
        "own",
        "Triton",
        "disabled",
        "triton",
        "torch",
        "pytorch",
        "marlin",
        "torch_native",
        "flex_attention",
    }
    | {"UnquantizedFusedMoEMethod"}
)
"""Words of `perfgate resolve`, and the plain ways that fit everything."""


def _list_words(document: _Document) -> Iterator[str]:
    """Every word that the base says."""
    for choices in document.base.choices.values():
        for value in choices.values():
            yield from _WORDS.findall(str(value))
    for told in document.differences:
        if told.key != NEW:
            yield from _WORDS.findall(told.base)


def _pack(told: _Told, known: frozenset[str]) -> ChoiceEntry:
    is_new = told.key == NEW
    candidate = f"{len(told.candidate.split(', '))} of them" if is_new else _filter(told.candidate, known)
    return ChoiceEntry(
        key=told.key,
        kind="lost" if told.kind is Kind.LOST else "changed",
        base=_clean(told.base),
        candidate=_clean(candidate),
        cases=told.cases,
    )


def _filter(text: str, known: frozenset[str]) -> str:
    """The text with each word that only the candidate has as a digest."""

    def show(found: re.Match[str]) -> str:
        word = found[0]
        bare = word.rstrip(";:")
        if {word, bare} & (known | _OWN) or _NUMBER.fullmatch(bare):
            return word
        return f"new-{hashlib.sha256(word.encode()).hexdigest()[:8]}"

    return _WORDS.sub(show, text)


def _clean(text: str) -> str:
    return _NOT_CHOICE.sub("_", text)[:160]


def list_cases(cases: Iterable[tuple[str, str]]) -> str:
    """The models, and the GPUs where there are several, in few words."""
    found = tuple(cases)
    gpus = dict.fromkeys(gpu for _, gpu in found)
    models = ", ".join(dict.fromkeys(model for model, _ in found))
    return models if len(gpus) == 1 else f"{models} on {', '.join(gpus)}"
