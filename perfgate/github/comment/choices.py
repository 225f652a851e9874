"""What a comment says of the choices that a change makes the engine make: a line, and a fold with every difference."""

from __future__ import annotations

from collections.abc import Iterator

from perfgate.github.handoff.choices import ChoiceEntry, ChoicesEntry, list_cases
from perfgate.report.escape import markdown
from perfgate.report.words.length import write_fold
from perfgate.resolution.values import ResolveAnswer

NOT_RESOLVED = "what the change makes the engine choose was not compared: the job `resolve` of this run left nothing"
"""Where the settings ask for it and no hand-off of a machine carries it."""


def summarise_choices(found: ChoicesEntry) -> str:
    """Say in a clause what differs, losses first; no markup."""
    lost = [f"{one.means} ({list_cases(one.cases)})" for one in found.lost]
    parts = (
        (len(lost), f"lost: {', '.join(lost)}"),
        (found.changed, f"{found.changed} changed"),
        (found.unverified, f"{found.unverified} could not be verified, so nothing is said of them"),
    )
    return "; ".join(text for is_due, text in parts if is_due) or "the engine chooses the same in both arms"


def write_headline(found: ChoicesEntry, measured: str) -> str:
    """The heading's words as markdown: `measured` alone, unless a choice was lost or could not be verified."""
    told = {
        ResolveAnswer.LOST: f"LOST CHOICE: {markdown(', '.join(dict.fromkeys(one.means for one in found.lost)))}",
        ResolveAnswer.UNVERIFIED: f"UNVERIFIED: {found.unverified} of the engine's choices",
    }.get(found.answer, "")
    return "; measured ".join(filter(None, (told, measured)))


def render_choices(found: ChoicesEntry) -> str:
    """The line and its fold, as markdown."""
    line = f"- **Choices:** {markdown(summarise_choices(found))}."
    if not found.differences:
        return line
    title = f"What the engine chooses: {len(found.lost)} lost, {found.changed} changed"
    return "\n".join((line, *write_fold(title, _list_lines(found))))


def _list_lines(found: ChoicesEntry) -> Iterator[str]:
    yield from (f"- {_describe(one)}" for one in found.differences)
    if found.left_out:
        yield f"- and {found.left_out} more that changed"
    yield ""
    yield "By `perfgate resolve`, without a GPU. A word that perfgate's table lacks is shown as `word-` and its digest."


def _describe(one: ChoiceEntry) -> str:
    name = "" if one.means == one.key else f" ({one.means})"
    return markdown(f"{one.kind} {one.key}{name}: {one.base} to {one.candidate} [{list_cases(one.cases)}]")
