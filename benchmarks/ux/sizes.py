"""How much there is to read: words of the comments, words before their folds, and documents by kind.

`python -m benchmarks.ux.sizes` prints both tables. A word holds a letter or a digit; a command to copy counts as one, and the
address of a link as none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMENTS = ROOT / "tests" / "golden"
KINDS = {
    "README": "README.md",
    "index, troubleshooting": "docs/*.md",
    "tutorials": "docs/tutorials/*.md",
    "how-to": "docs/how-to/*.md",
    "reference": "docs/reference/*.md",
    "explanation": "docs/explanation/*.md",
    "evidence": "docs/evidence/*.md",
}


def close_folds(comment: str) -> str:
    """What a reader sees of a comment before opening a fold, the folds' titles left out."""
    lines = comment.splitlines()
    depths = accumulate(line.startswith("<details") - line.startswith("</details") for line in lines)
    return "\n".join(line for depth, line in zip(depths, lines, strict=True) if depth == 0 and line != "</details>")


def count_words(comment: str) -> int:
    """Count the words of a comment, or of a part of one."""
    prose = re.sub(r"^(perfgate|gh|git) .*?(#|$)", "command ", comment, flags=re.MULTILINE)
    return sum(1 for word in re.sub(r"\(http\S+\)|<[^>]+>", "", prose).split() if re.search(r"\w", word))


def list_comments() -> Iterator[str]:
    """A row for each comment that the tests hold."""
    yield "| comment | words before the folds | words in all |"
    yield "|:--|--:|--:|"
    for path in sorted(COMMENTS.glob("*.md")):
        comment = path.read_text(encoding="utf-8")
        yield f"| {path.stem} | {count_words(close_folds(comment))} | {count_words(comment):,} |"


def list_documents() -> Iterator[str]:
    """A row for each kind of document."""
    yield "| documents | pages | words | KB |"
    yield "|:--|--:|--:|--:|"
    for kind, pattern in KINDS.items():
        pages = [path.read_text(encoding="utf-8") for path in ROOT.glob(pattern)]
        words, size = sum(len(page.split()) for page in pages), sum(len(page.encode()) for page in pages)
        yield f"| {kind} | {len(pages)} | {words:,} | {size / 1000:.0f} |"


def main() -> int:
    """Print both tables."""
    print("\n".join((*list_comments(), "", *list_documents())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
