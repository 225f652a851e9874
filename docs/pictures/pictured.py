"""What the pictures here show, as text whose digest lies beside each: `report.sha256` for `report.webp`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from perfgate.github.comment.sections import build_section, render
from perfgate.github.comment.states import State
from perfgate.github.handoff.handoff import HandoffSubject

SUBJECT = HandoffSubject(repository="o/r", pull_request=7, head_sha="4f" * 20, run_id=11, run_attempt=1, hardware="h200")
"""A pull request that is made up: the numbers are a session's, the addresses are not."""
FOOTER = """
--
Reply to this email directly or view it on GitHub:
https://github.com/o/r/pull/7#issuecomment-1
You are receiving this because you authored the thread.
"""


def cut_page(page: str) -> str:
    """Return what decides how the pictured part of a report page looks: its style, its head and its section of metrics.

    Addresses are left out, as they depend on where the page lies. Raise ValueError for a page without these parts.
    """
    style = re.search(r"<style>.*?</style>", page, flags=re.DOTALL)
    body = re.search(r'<header.*?<section id="metrics">.*?</section>', page, flags=re.DOTALL)
    if style is None or body is None:
        raise ValueError("the page has no style, or no head and section of metrics")
    return style[0] + re.sub(r'href="[^"]*"', "", body[0])


def write_mail(comment: str) -> str:
    """Return the plain text that GitHub mails for a regression: the comment as it stands in a pull request, and a footer."""
    heading, _, body = comment.partition("\n")
    headline = heading.lstrip("# ").removeprefix(State.REGRESSION.icon).strip()
    section = build_section(SUBJECT, State.REGRESSION, "2026-11-22T10:00:00Z", headline=headline, body=body.strip("\n"))
    return render({SUBJECT.hardware: section}, "https://github.com/o/r/actions/runs") + FOOTER


def write_digest(picture: Path, folder: str, text: str) -> None:
    """Write beside `picture` the digest of what it shows, and the result folder it shows it of."""
    picture.with_suffix(".sha256").write_text(f"{find_digest(text)}  {folder}\n", encoding="utf-8")


def read_digest(picture: Path) -> tuple[str, str]:
    """Return the digest of what `picture` shows, and the result folder. Raise OSError where it has none."""
    digest, _, folder = picture.with_suffix(".sha256").read_text(encoding="utf-8").strip().partition("  ")
    return digest, folder


def find_digest(text: str) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()
