"""What the pictures here show, as text whose digest lies beside each: `report.sha256` for `report.png`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path


def cut_page(page: str) -> str:
    """Return what decides how the pictured part of a report page looks: its style, its head and its section of metrics.

    Addresses are left out, as they depend on where the page lies. Raise ValueError for a page without these parts.
    """
    style = re.search(r"<style>.*?</style>", page, flags=re.DOTALL)
    body = re.search(r'<header.*?<section id="metrics">.*?</section>', page, flags=re.DOTALL)
    if style is None or body is None:
        raise ValueError("the page has no style, or no head and section of metrics")
    return style[0] + re.sub(r'href="[^"]*"', "", body[0])


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
