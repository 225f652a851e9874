"""Write a page as one HTML file: the style within, no script, and a policy that forbids the browser to fetch anything."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from perfgate.report.escape import Safe, clean
from perfgate.report.html.page import Page

PERCENT = re.compile(r"(?<=\d) %")
NO_BREAK = "\N{NO-BREAK SPACE}"
TEMPLATE_DIR = Path(__file__).parents[1] / "templates" / "html"


def render_page(page: Page) -> bytes:
    """Return the file. The same page gives the same bytes."""
    style = (TEMPLATE_DIR / "page.css").read_text(encoding="utf-8")
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    # The style is perfgate's own text; escaped, its digest would be another.
    content = Markup(style)  # noqa: S704
    return _environment().get_template("page.html.j2").render(page=page, style=content, digest=digest).encode()


@cache
def _environment() -> Environment:
    """Make an environment in which every text is escaped, and freed of what could drive a browser's writing direction."""

    def purify(value: object) -> object:
        if isinstance(value, Safe | Markup | int | float):
            return value
        # A percent sign does not begin a line.
        return PERCENT.sub(NO_BREAK + "%", clean(str(value)))

    return Environment(
        loader=FileSystemLoader(TEMPLATE_DIR),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=purify,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
