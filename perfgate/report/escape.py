"""Text from outside (titles, versions, error messages) made harmless before it reaches a comment or a terminal."""

from __future__ import annotations

import re
from functools import lru_cache

LIMIT = 400
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
ZERO_WIDTH = "\u200b"
# GitHub makes references of GH-1 and of whole commit names, in the name of the comment's author.
_REFERENCE = re.compile(r"(?i:\bGH-)(?=\d)|\b[0-9a-f]{40}\b")


class Safe(str):
    """Text that perfgate wrote itself in the target language; it is not escaped again."""

    __slots__ = ()


def clean(text: str) -> str:
    """Return one line without control characters, as long as it is."""
    return _CONTROL.sub(" ", text).strip()


def plain(text: str) -> str:
    """Return one line of at most LIMIT characters, so that a value can neither start a line nor drive a terminal."""
    line = clean(text)
    return line if len(line) <= LIMIT else line[: LIMIT - 3] + "..."


# A comment is laid out some thirty times, of the same values, until it fits.
@lru_cache(maxsize=4096)
def markdown(text: str) -> str:
    """Escape for GitHub markdown: no HTML, formatting, table cell, formula, mention, reference or link comes out of `text`."""
    line = plain(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([`*\[\]|~])", r"\\\1", line)
    # An underscore inside a word, as in output_tok_per_s, formats nothing.
    line = re.sub(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])", r"\\_", line)
    line = re.sub(r"([@#])(?=\w)", rf"\1{ZERO_WIDTH}", line)
    line = _REFERENCE.sub(lambda match: match[0][:3] + ZERO_WIDTH + match[0][3:], line)
    line = re.sub(r"\$(?=\S)|:(?=[a-z0-9_+-]+:)", lambda match: match[0] + ZERO_WIDTH, line)
    line = re.sub(r"://|(?i:(?<=www)\.)", lambda match: match[0][0] + ZERO_WIDTH + match[0][1:], line)
    # A value may open a list item, where these would start a list, a heading or a rule of their own.
    return re.sub(r"^(\d*)(?=(?:[-+=.)]|#{1,6})(?:\s|$)|[-=]{2})", r"\1\\", line)


def code(text: str) -> Safe:
    """Wrap as an inline code span, which may stand in a table cell."""
    return Safe("`" + plain(text).replace("`", "'").replace("|", "\\|") + "`")
