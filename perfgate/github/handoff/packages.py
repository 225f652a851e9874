"""The packages by which the arms of a change differ, on their way from the job that installed them to one that may comment.

Names cross where perfgate's own table has them, versions where they are numbers with the usual marks; any other text crosses
as a digest, and both sides hold every text to that. Which of them made the change slower is the word of the job that searched,
which ran the change's code: it can forge that as it can forge windows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from perfgate.bisection.locks import Bump, list_bumps, read_pair
from perfgate.bisection.packages import read_bumps
from perfgate.bisection.search import Ending
from perfgate.errors import HandoffError
from perfgate.resolution.vocabulary import DIGEST, PACKAGES, digest_word
from perfgate.scenario.selection import read_table
from perfgate.storage.journal import read_json
from perfgate.storage.schema import FOREIGN, LOOSE

MAX_PACKAGES = 64
_HINT = "give what `perfgate deps --format json` wrote for the same trees"
_VERSION = re.compile(r"[0-9]{1,8}(?:\.[0-9]{1,8}){0,5}(?:\.?(?:a|b|rc|post|dev)[0-9]{1,8}){0,2}(?:\+(?:cpu|cu[0-9]{2,3}))?")


def _check_name(text: str) -> str:
    if not _is_known_name(text):
        raise ValueError("a package that is none of perfgate's table and no digest")
    return text


def _check_version(text: str) -> str:
    if text and not _is_known_version(text):
        raise ValueError("a version that is no number and no digest")
    return text


def _is_known_name(text: str) -> bool:
    return text in PACKAGES or re.fullmatch(DIGEST, text) is not None


def _is_known_version(text: str) -> bool:
    return (_VERSION.fullmatch(text) or re.fullmatch(DIGEST, text)) is not None


PackageName = Annotated[str, Field(max_length=60), AfterValidator(_check_name)]
PackageVersion = Annotated[str, Field(max_length=60), AfterValidator(_check_version)]
Few = Annotated[int, Field(ge=0, lt=10_000)]


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class PackageEntry:
    """A package in both arms; `base` is empty for one that only the candidate pins."""

    name: PackageName
    base: PackageVersion
    candidate: PackageVersion


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class PackageSearch:
    """What the search for the slow one came to: it is among the first `suspects` of the packages, or it is the only one."""

    outcome: Ending
    suspects: Annotated[int, Field(ge=0, le=MAX_PACKAGES)]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    blocks: Few
    minutes: Annotated[float, Field(ge=0, lt=10_000)]


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class PackagesEntry:
    """The packages that differ, suspects first. `left_out` counts those that found no room, `unpinned` the requirements that
    differ and pin no version: what was measured does not have them.
    """

    differences: Annotated[tuple[PackageEntry, ...], Field(fail_fast=True, max_length=MAX_PACKAGES)]
    left_out: Few = 0
    unpinned: Few = 0
    search: PackageSearch | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for a search that contradicts itself."""
        search = self.search
        if search and (search.suspects > len(self.differences) or (search.outcome is Ending.FOUND and search.suspects != 1)):
            raise ValueError("search: its outcome and its packages contradict each other")

    @property
    def suspects(self) -> tuple[PackageEntry, ...]:
        """Those of which one may have made the change slower, by the search."""
        return self.differences[: self.search.suspects] if self.search else ()


@dataclass(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _ToldSearch:
    """What a search wrote: its places are sets of packages, each by a hash."""

    outcome: Ending
    culprit: str | None
    credible: tuple[str, ...]
    confidence: float
    blocks: int
    minutes: float


def pack_packages(base: Path, candidate: Path, search: Path | None) -> PackagesEntry | None:
    """Reduce the packages by which two trees differ, and what `perfgate deps` wrote of them; None where they pin the same.

    A file of a search that is absent or empty says that there was none. Raise InputError for a lock file that cannot be read,
    EvidenceError or HandoffError for a search of another kind or of other packages.
    """
    locks = read_pair(base, candidate, read_table().pins)
    if locks is None:
        return None
    bumps, unpinned = list_bumps(*locks), len(locks[0].loose ^ locks[1].loose)
    told = None
    if bumps and search is not None and search.is_file() and search.stat().st_size:
        told = read_json(search, _ToldSearch, _HINT)
    places = _find_suspects(bumps, told, search)
    order = [*places, *(place for place in range(len(bumps)) if place not in places)]
    return PackagesEntry(
        differences=tuple(_pack(bumps[place]) for place in order[:MAX_PACKAGES]),
        left_out=max(len(bumps) - MAX_PACKAGES, 0),
        unpinned=unpinned,
        search=None if told is None else _pack_search(told, min(len(places), MAX_PACKAGES)),
    )


def _find_suspects(bumps: Sequence[Bump], told: _ToldSearch | None, source: Path | None) -> list[int]:
    """Which packages a search names, by their place."""
    if told is None:
        return []
    places = {commit.sha: number for number, commit in enumerate(read_bumps(bumps).commits)}
    named = (told.culprit,) if told.culprit else told.credible
    if not set(named) <= set(places):
        raise HandoffError(f"{source}: names packages that are none of these trees'; {_HINT}")
    return sorted(places[sha] for sha in named)


def _pack_search(told: _ToldSearch, suspects: int) -> PackageSearch:
    return PackageSearch(
        outcome=told.outcome, suspects=suspects, confidence=told.confidence, blocks=told.blocks, minutes=round(told.minutes, 1)
    )


def _pack(bump: Bump) -> PackageEntry:
    name = bump.pin.name
    return PackageEntry(
        name=name if _is_known_name(name) else digest_word(name),
        base=_reduce_version(bump.before),
        candidate=_reduce_version(bump.pin.version),
    )


def _reduce_version(text: str) -> str:
    return text if not text or _is_known_version(text) else digest_word(text)
