"""How much there is to read: words of the comments, words before their folds, and documents by kind.

`python -m benchmarks.ux.sizes` prints both tables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from perfgate.report.words.length import close_folds, count_words

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
