"""How shapes become SVG text: the templates and the style that pages, the dashboard and pictures share."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from perfgate.report.escape import Safe, clean

FOLDER = Path(__file__).parents[1] / "templates" / "chart"
PERCENT = re.compile(r"(?<=\d) %")
NO_BREAK = "\N{NO-BREAK SPACE}"


@cache
def make_environment(*folders: Path) -> Environment:
    """Make an environment over `folders` and the shared templates.

    Every text is escaped, and freed of what could drive a browser's writing direction.
    """
    return Environment(
        loader=FileSystemLoader([*folders, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_purify,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _purify(value: object) -> object:
    if isinstance(value, Safe | Markup | int | float):
        return value
    # A percent sign does not begin a line.
    return PERCENT.sub(NO_BREAK + "%", clean(str(value)))


def read_style() -> Markup:
    """The rules for every class that a shape may have; the document defines the colours that they name."""
    # The style is perfgate's own text; it must not be escaped.
    return Markup((FOLDER / "chart.css").read_text(encoding="utf-8"))  # noqa: S704
