"""Where docs/troubleshooting.md says what to do about a message, and what it says there.

The page ships with the package. It lists parts of the messages below each heading, as a person would search it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from perfgate.core import PUBLISHED, TROUBLESHOOTING, Outcome

_HEADING = re.compile(r"^#{2,3} (.+)$", flags=re.MULTILINE)
_MESSAGES = re.compile(r"^Messages: (.+)$", flags=re.MULTILINE)
_PHRASE = re.compile(r"`((?:\\`|[^`])+)`")
_LINK = re.compile(r"\[[^]]+\]\(([^)]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A heading of the page, parts of the messages that it is for, and its lines with an address in place of each link."""

    heading: str
    phrases: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def address(self) -> str:
        """Where it can be read in a browser."""
        anchor = re.sub(r"[^\w\- ]", "", self.heading.lower()).replace(" ", "-")
        return _find_address(f"#{anchor}")

    def measure(self, message: str) -> int:
        """The length of the longest phrase that stands in a message; a brace in a phrase stands for any character."""
        return max((len(one) for one in self.phrases if re.search(re.escape(one).replace(r"\{", "."), message)), default=0)


@cache
def read_entries() -> tuple[Remedy, ...]:
    """Every entry of the page that lists messages, in its order; none where a package was put together without the page."""
    package = Path(__file__).parents[2]
    path = next((one for one in (package / "troubleshooting.md", package.parent / TROUBLESHOOTING) if one.is_file()), None)
    return parse_entries(path.read_text(encoding="utf-8")) if path else ()


def parse_entries(page: str) -> tuple[Remedy, ...]:
    """Take a page apart."""
    _, *parts = _HEADING.split(page)
    return tuple(
        Remedy(
            heading=heading,
            phrases=tuple(phrase.replace("\\`", "`") for phrase in _PHRASE.findall(listed[1])),
            lines=tuple(
                _LINK.sub(lambda link: _find_address(link[1]), line) for line in text[listed.end() :].splitlines() if line
            ),
        )
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
        if (listed := _MESSAGES.search(text))
    )


def find_entry(message: str) -> Remedy | None:
    """The entry for a message: the one with the longest phrase that stands in it."""
    best = max(read_entries(), key=lambda entry: entry.measure(message), default=None)
    return best if best and best.measure(message) else None


def name_remedies(outcome: Outcome, reasons: Sequence[str] = ()) -> str:
    """The address of the entry for an outcome, for INVALID that of the first reason; empty for an outcome that decides."""
    entry = find_entry(reasons[0]) if outcome is Outcome.INVALID and reasons else None
    return entry.address if entry else outcome.remedies


def _find_address(target: str) -> str:
    """The address of what a link of the page leads to."""
    path = f"docs/{target}" if not target.startswith("#") else f"{TROUBLESHOOTING}{target}"
    return f"{PUBLISHED}{path}"
