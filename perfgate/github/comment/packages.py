"""What a comment says of the packages by which the arms differ: a line, and a fold that lists them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfgate.bisection.search import Ending
from perfgate.bisection.view import name_meaning
from perfgate.github.handoff.packages import PackageEntry, PackageSearch, PackagesEntry
from perfgate.report.escape import markdown
from perfgate.report.words.length import write_fold
from perfgate.storage.rounding import format_percent

SHOWN_SUSPECTS = 4
_NOT_SEARCHED = "which of them made it slower is not known: the search left no answer"


def render_packages(found: PackagesEntry | None, *, is_slower: bool) -> str:
    """The line and its fold, as markdown; empty where the arms have the same.

    `is_slower` says that the change was found slower, so that a search was due.
    """
    if found is None:
        return ""
    count = len(found.differences) + found.left_out
    line = f"- **Packages:** {markdown('; '.join(_list_clauses(found, count, is_slower=is_slower)))}."
    if not found.differences:
        return line
    title = f"Packages in other versions: {count}"
    return "\n".join((line, *write_fold(title, _list_lines(found))))


def _list_clauses(found: PackagesEntry, count: int, *, is_slower: bool) -> Iterator[str]:
    if count:
        yield f"the arms have {count} in different versions"
    if found.unpinned:
        yield f"{found.unpinned} requirements differ that pin no version, so they were not measured"
    if found.search is not None:
        yield _tell_search(found.search, found.suspects)
    elif count and is_slower:
        yield _NOT_SEARCHED


def _tell_search(search: PackageSearch, suspects: Sequence[PackageEntry]) -> str:
    cost = f"{search.blocks} blocks, {search.minutes:.0f} minutes"
    if search.outcome is Ending.FOUND:
        return f"{_describe(*suspects)} made it slower, {format_percent(search.confidence, 0)} sure or more ({cost})"
    named = ", ".join(map(_describe, suspects[:SHOWN_SUSPECTS]))
    more = f" and {search.suspects - SHOWN_SUSPECTS} more" if search.suspects > SHOWN_SUSPECTS else ""
    return f"{name_meaning(search.outcome, 'package')}{f', one of {named}{more}' if named else ''} ({cost})"


def _list_lines(found: PackagesEntry) -> Iterator[str]:
    yield from (f"- {markdown(_describe(one))}" for one in found.differences)
    if found.left_out:
        yield f"- and {found.left_out} more"
    yield ""
    yield "Each arm has its own of these over the machine's engine. What perfgate's table lacks is `word-` and a digest."


def _describe(one: PackageEntry) -> str:
    return f"{one.name} {one.base or 'absent'} to {one.candidate}"
