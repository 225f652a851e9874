"""Write a page as one HTML file: the style within, no script, and a policy that forbids the browser to fetch anything."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from pathlib import Path

from markupsafe import Markup

from perfgate.report.chart.templates import make_environment, read_style
from perfgate.report.html.page import Page

TEMPLATE_DIR = Path(__file__).parents[1] / "templates" / "html"
CHART_STYLE = "/* chart.css stands here */\n"


def render_page(page: Page) -> bytes:
    """Return the file. The same page gives the same bytes."""
    style = (TEMPLATE_DIR / "page.css").read_text(encoding="utf-8").replace(CHART_STYLE, read_style())
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    # The style is perfgate's own text; escaped, its digest would be another.
    content = Markup(style)  # noqa: S704
    return make_environment(TEMPLATE_DIR).get_template("page.html.j2").render(page=page, style=content, digest=digest).encode()
