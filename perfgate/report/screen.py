"""A text for people on a terminal: folded to its width, its outcomes in colour."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from click import style

from perfgate.core import Outcome

COLOURS = {
    Outcome.IMPROVED: "green",
    Outcome.PASS: "green",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.REGRESSION: "red",
    Outcome.INVALID: "magenta",
}
_OUTCOME = re.compile(rf"\b({'|'.join(COLOURS)})\b")
# Lines to paste, and lines of a drawn table: a fold would break them.
_WHOLE = re.compile("^\\s*(perfgate|git|python|make) |^\\s*[\u2500-\u257f]")
_LABEL = re.compile(r"^(\[\d+\] |[a-z][a-z ]{0,8}  +)")


def fit_screen(text: str, width: int, *, has_colour: bool) -> str:
    """Fold the lines of `text` to `width` columns, and colour the outcomes that it names; the last line break is left out."""
    folded = "\n".join(folded for line in text.rstrip("\n").split("\n") for folded in _fold(line, width))
    if not has_colour:
        return folded
    return _OUTCOME.sub(lambda found: style(found[1], fg=COLOURS[Outcome(found[1])], bold=True), folded)


def _fold(line: str, width: int) -> Iterator[str]:
    if len(line) <= width or _WHOLE.match(line):
        yield line
        return
    label = _LABEL.match(line)
    indent = " " * (len(label[1]) if label else 0)
    yield from textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
