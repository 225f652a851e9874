"""What is known of an engine's insides by version: names that may move, options that may be renamed, words of logs and metrics.

A fact was read in the source of the versions from `Insides.first` to `Insides.last`. Of another version nothing is known: there
each fact is looked for in the installed source before anything is measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["name", "option", "path", "metric", "words"]

METRIC_USES = {
    "running_requests": "the requests that run",
    "queued_requests": "the requests that wait",
    "token_usage": "the share of the pool in use",
    "capacity": "the size of the pool",
    "hits": "the share of prefixes found",
    "prompts": "the share of prefixes found",
    "queue_s": "the wait in the queue",
    "queued": "the wait in the queue",
    "retracted": "retracted requests",
    "generated": "the length of accepted drafts",
    "verified": "the length of accepted drafts",
    "transfers": "the time of a transfer from prefill to decode",
    "transfer_ms": "the time of a transfer from prefill to decode",
    **dict.fromkeys(("decode_graphs", "decode_others"), "the share of decode steps that replay graphs"),
    **dict.fromkeys(("prefill_graphs", "prefill_others"), "the share of prefills that replay graphs"),
}
"""What is missing from a window without a metric, by the name that it has in an engine's row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFact:
    """One thing that perfgate uses of an engine without asking for it.

    A `name` is a module, a colon and a class, function or method in it, in brackets the parameters that perfgate relies on; a
    method may stand in a class that the named one is made of, and ` or ` stands between places of which one is enough. An
    `option` is one of the command line. A `path` is one at which the server answers. A `metric` is a metric's name with its
    prefix, as the source has it. `words` stand somewhere in the source, comments aside. `use` is what fails without it.
    """

    kind: Kind
    place: str
    use: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Insides:
    """The facts of one engine, the versions in whose source they were read, and the folders of its source.

    `arguments` are the beginnings of the files that define its options, `paths` of those that define where it answers, `words`
    of those in which metrics and words are looked for. `has_field_options` says that a field of a class makes an option.
    `metric_prefix` stands before the names of its metrics.
    """

    first: str
    last: str
    arguments: tuple[str, ...]
    paths: tuple[str, ...]
    words: tuple[str, ...]
    has_field_options: bool
    metric_prefix: str
    facts: tuple[EngineFact, ...]

    def describe_unread(self, version: str) -> str | None:
        """What sets a version apart from those whose source was read; None for one of them, or where there is no version."""
        mine = order_version(version)
        if not mine:
            return None
        if not is_release(version):
            return f"is no release that perfgate knows ({self.first} to {self.last})"
        if mine < order_version(self.first):
            return f"is older than {self.first}, the first that perfgate knows"
        return f"is newer than {self.last}, the last that perfgate knows" if mine > order_version(self.last) else None

    def list_metrics(self, readings: Iterable[tuple[str, str]]) -> Iterator[EngineFact]:
        """The facts of an engine's gauges and counters, given as pairs of our own name and the engine's, each once."""
        found: dict[str, str] = {}
        for own, name in readings:
            found.setdefault(self.metric_prefix + _name_source(name), METRIC_USES[own])
        yield from (EngineFact(kind="metric", place=place, use=use) for place, use in found.items())


def _name_source(name: str) -> str:
    """A metric's name without the label and the endings that samples of a histogram have."""
    return re.sub(r"_(?:sum|count)$", "", name.partition("[")[0])


def order_version(text: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing: `0.5.15.post1` comes after `0.5.15`, `0.5.15rc1` and `0.5.15.dev7` before it.

    What a build is called does not count. Nothing where there is no number.
    """
    found = re.findall(r"(a|b|rc|dev)?(\d{1,18})", _cut_build(text))
    numbers = (number for early, digits in found for number in ((-1, int(digits)) if early else (int(digits),)))
    # The end of a release is a number, too: what comes before it is smaller.
    return (*numbers, 0) if found else ()


def is_release(text: str) -> bool:
    """Whether a version is that of a release: not of a commit between two of them, as `0.5.24.dev7`, nor a candidate for one.

    A clone without tags is `0.0.0.dev0`.
    """
    return re.fullmatch(r"\d+(\.\d+)*(\.post\d+)?", _cut_build(text)) is not None


def _cut_build(text: str) -> str:
    return text.partition("+")[0].partition(" ")[0]
