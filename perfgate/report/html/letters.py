"""How wide a line of text may become: a picture cannot know the reader's fonts, so it leaves room for the widest usual ones.

The widths are those of DejaVu Sans Bold, in thousandths of the size of the letters: of the families that stand behind
`sans-serif` on usual systems, only Verdana's are as wide.
"""

from __future__ import annotations

from collections.abc import Sequence

_WIDTHS = {
    306: "'",
    343: "ijl",
    372: " \N{NO-BREAK SPACE}IJ/\\|",
    400: ",.:;",
    457: "-f!()[]",
    500: "tr_`",
    523: '"*',
    600: "z?cs",
    680: "vxyakLeEFT",
    700: "o0123456789$",
    716: "hnu{}bdgpqSY",
    774: "CPZBAKRVX",
    850: "UGDHN#+<=>^~OQ",
    924: "w&",
    1042: "M%@m",
    1103: "W",
}
_WIDTH = {letter: width for width, letters in _WIDTHS.items() for letter in letters}
_OTHER = 1103
# What a name that was cut ends in.
_MORE = "..."


def measure_text(text: str, size: float) -> float:
    """How wide a line in bold letters of `size` may become, in the unit of `size`; plain ones are no wider."""
    return sum(_WIDTH.get(letter, _OTHER) for letter in text) * size / 1000


def fold_text(text: str, room: float, size: float) -> list[str]:
    """Break a line that may be wider than `room`: before a bracket where there is one, else between words."""
    if measure_text(text, size) <= room:
        return [text]
    head, bracket, tail = text.partition(" (")
    parts = [head, f"({tail}"] if bracket else [text]
    return [line for part in parts for line in _fold_words(part.split(" "), room, size)]


def _fold_words(words: Sequence[str], room: float, size: float) -> list[str]:
    lines = [words[0]]
    for word in words[1:]:
        longer = f"{lines[-1]} {word}"
        if measure_text(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def shorten_text(text: str, room: float, size: float) -> str:
    """Cut the end off a name that may be wider than `room`: what tells long names apart stands at their beginning."""
    if measure_text(text, size) <= room:
        return text
    kept = text
    while kept and measure_text(kept + _MORE, size) > room:
        kept = kept[:-1]
    return kept + _MORE
