"""The folds of a comment, and how much stands before them, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate

WORDS = 120
"""Words before the folds of a comment, over all its scenarios and machines."""


def write_fold(title: str, rows: Iterable[str]) -> tuple[str, ...]:
    """The lines of a fold, to stand below others."""
    return "", f"<details><summary>{title}</summary>", "", *rows, "", "</details>"


def close_folds(comment: str) -> str:
    """What a reader sees of a comment before opening a fold, the folds' titles left out."""
    lines = comment.splitlines()
    depths = accumulate(line.startswith("<details") - line.startswith("</details") for line in lines)
    return "\n".join(line for depth, line in zip(depths, lines, strict=True) if depth == 0 and line != "</details>")


def count_words(comment: str) -> int:
    """Count the words of a comment, or of a part of one.

    A word holds a letter or a digit; a command to copy counts as one, and the address of a link as none.
    """
    prose = re.sub(r"^(perfgate|gh|git) .*?(#|$)", "command ", comment, flags=re.MULTILINE)
    # A count of how words begin: a comment is laid out, and counted, up to a hundred times.
    return len(re.findall(r"(?<!\S)[^\w\s]*\w", re.sub(r"\(http\S+\)|<[^>]+>", "", prose)))
