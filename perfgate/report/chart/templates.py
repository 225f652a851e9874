"""How shapes become SVG text: the templates, the style and the one script that pages, the dashboard and pictures share."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from perfgate.report.escape import Safe, clean

FOLDER = Path(__file__).parents[1] / "templates" / "chart"
PERCENT = re.compile(r"(?<=\d) %")
CHART_STYLE = "/* chart.css stands here */\n"
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


def read_own(page_style: Path) -> dict[str, str]:
    """What a page brings along: `style`, `script`, and of each the digest by which its content security policy lets it in.

    The script is the same for all pages, and each is whole without it: it adds buttons that copy, hide and sort, and a
    crosshair.
    """
    drawn = read_style() + (FOLDER / "controls.css").read_text(encoding="utf-8")
    style = page_style.read_text(encoding="utf-8").replace(CHART_STYLE, drawn)
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    # Both are perfgate's own text; escaped, their digests would be others.
    own = {"style": Markup(style), "script": Markup(script)}  # noqa: S704
    return {**own, "style_digest": _digest(style), "script_digest": _digest(script)}


def _digest(text: str) -> str:
    return b64encode(hashlib.sha256(text.encode()).digest()).decode()
