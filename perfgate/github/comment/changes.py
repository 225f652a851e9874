"""What a comment says of the engine's choices and of the packages by which the arms differ: a line and a fold each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfgate.bisection.search import Ending
from perfgate.bisection.view import name_meaning
from perfgate.github.handoff.choices import ChoiceEntry, ChoicesEntry, list_cases
from perfgate.github.handoff.packages import PackageEntry, PackageSearch, PackagesEntry
from perfgate.report.escape import markdown
from perfgate.report.words.length import write_fold
from perfgate.resolution.values import ResolveAnswer
from perfgate.storage.rounding import format_percent

NOT_RESOLVED = "what the change makes the engine choose was not compared: the job `resolve` of this run left nothing"
"""Where the settings ask for it and no hand-off of a machine carries it."""

_SAME = {
    False: "the engine chooses the same in both arms",
    True: "the engine chooses the same in both arms, and its host does the same work",
}

SHOWN_SUSPECTS = 4
_NOT_SEARCHED = "which of them made it slower is not known: the search left no answer"


def summarise_choices(found: ChoicesEntry) -> str:
    """Say in a clause what differs, losses first; no markup."""
    lost = [f"{one.means} ({one.candidate if one.is_host else list_cases(one.cases)})" for one in found.lost]
    parts = (
        (len(lost), f"lost: {', '.join(lost)}"),
        (found.changed, f"{found.changed} changed"),
        (found.unverified, f"{found.unverified} could not be verified, so nothing is said of them"),
    )
    return "; ".join(text for is_due, text in parts if is_due) or _SAME[found.has_host]


def write_headline(found: ChoicesEntry, measured: str) -> str:
    """The heading's words as markdown: `measured` alone, unless something was lost or could not be verified."""
    choices, work = ([one.means for one in found.lost if one.is_host is is_host] for is_host in (False, True))
    titles = {"LOST CHOICE": choices, "MORE HOST WORK": work}
    lost = [f"{title}: {markdown(', '.join(dict.fromkeys(names)))}" for title, names in titles.items() if names]
    told = {
        ResolveAnswer.LOST: "; ".join(lost),
        ResolveAnswer.UNVERIFIED: f"UNVERIFIED: {found.unverified} of what is compared without a GPU",
    }.get(found.answer, "")
    return "; measured ".join(filter(None, (told, measured)))


def render_choices(found: ChoicesEntry) -> str:
    """The line and its fold, as markdown."""
    line = f"- **Choices:** {markdown(summarise_choices(found))}."
    if not found.differences:
        return line
    title = f"What the engine chooses{' and its host does' * found.has_host}: {len(found.lost)} lost, {found.changed} changed"
    return "\n".join((line, *write_fold(title, _list_choices(found))))


def _list_choices(found: ChoicesEntry) -> Iterator[str]:
    yield from (f"- {_describe_choice(one)}" for one in found.differences)
    if found.left_out:
        yield f"- and {found.left_out} more that changed"
    yield ""
    by = "`perfgate resolve` and `perfgate scheduler`" if found.has_host else "`perfgate resolve`"
    yield f"By {by}, without a GPU. A word that perfgate's table lacks is shown as `word-` and its digest."


def _describe_choice(one: ChoiceEntry) -> str:
    name = "" if one.means == one.key else f" ({one.means})"
    return markdown(f"{one.kind} {one.key}{name}: {one.base} to {one.candidate} [{list_cases(one.cases)}]")


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
    return "\n".join((line, *write_fold(title, _list_packages(found))))


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
    cost = f"{search.blocks} blocks, {search.minutes:.0f} minutes of machine time"
    if search.outcome is Ending.FOUND:
        return f"{_describe_package(*suspects)} made it slower, {format_percent(search.confidence, 0)} sure or more ({cost})"
    named = ", ".join(map(_describe_package, suspects[:SHOWN_SUSPECTS]))
    more = f" and {search.suspects - SHOWN_SUSPECTS} more" if search.suspects > SHOWN_SUSPECTS else ""
    return f"{name_meaning(search.outcome, 'package')}{f', one of {named}{more}' if named else ''} ({cost})"


def _list_packages(found: PackagesEntry) -> Iterator[str]:
    yield from (f"- {markdown(_describe_package(one))}" for one in found.differences)
    if found.left_out:
        yield f"- and {found.left_out} more"
    yield ""
    yield "Each arm has its own of these over the machine's engine. What perfgate's table lacks is `word-` and a digest."


def _describe_package(one: PackageEntry) -> str:
    return f"{one.name} {one.base or 'absent'} to {one.candidate}"
