"""What is known of an engine's insides by version: names that may move, options that may be renamed, words of logs and metrics.

A fact was read in the source of the versions from `Insides.first` to `Insides.last`. Of a newer one nothing is known: there
each fact is looked for in the installed source before anything is measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["name", "option", "words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFact:
    """One thing that perfgate uses of an engine without asking for it.

    A `name` is a module, a colon and a class, function or method in it, in brackets the parameters that perfgate relies on; an
    `option` is one of the command line; `words` stand somewhere in the source. `use` is what fails without it. `gone` is the
    first version that was seen without it.
    """

    kind: Kind
    place: str
    use: str
    gone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Insides:
    """The facts of one engine, the versions in whose source they were read, and the folders of its source.

    `arguments` are the beginnings of the files that define its options, `words` the folders in which words are looked for.
    """

    first: str
    last: str
    arguments: tuple[str, ...]
    words: str
    facts: tuple[EngineFact, ...]

    def is_newer(self, version: str) -> bool:
        """Whether nothing is known of a version because it came later."""
        return order_version(version) > order_version(self.last)

    def find_gone(self, version: str) -> tuple[EngineFact, ...]:
        """The facts that a version up to `last` is known to lack."""
        mine = order_version(version)
        return tuple(fact for fact in self.facts if fact.gone is not None and order_version(fact.gone) <= mine)


def order_version(text: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing: `0.5.15.post1` comes after `0.5.15`. What a build is called does not count."""
    return tuple(map(int, re.findall(r"\d+", text.partition("+")[0].partition(" ")[0])))
