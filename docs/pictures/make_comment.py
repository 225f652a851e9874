"""Draw the comment of a result folder as a reader meets it: on GitHub in light and in dark, and as the plain text of a mail.

Beside each picture goes a line with the digest of its text, by which a test knows that the picture is of today's comment.

Run as `python docs/pictures/make_comment.py benchmarks/h100/serving/mxfp4-mixed-c16-gpu-15-profiled docs/pictures`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from camera import open_browser, save_small
from markdown_it import MarkdownIt
from pictured import write_digest, write_mail

# GitHub's colours (Primer) and measures; its fonts are those of the reader's machine.
STYLE = """
:root { --paper: #ffffff; --ink: #1f2328; --quiet: #59636e; --line: #d1d9e0; --field: #f6f8fa; --code: #818b981f;
  --link: #0969da; --bad: #d1242f; }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #f0f6fc; --quiet: #9198a1; --line: #3d444d;
  --field: #151b23; --code: #656c7633; --link: #4493f8; --bad: #f85149; } }
body { font: 14px/1.5 "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; color: var(--ink); background: var(--paper);
  margin: 0; padding: 16px; }
article { border: 1px solid var(--line); border-radius: 6px; padding: 4px 20px 12px; }
table { border-collapse: collapse; font-size: 13px; }
th, td { border: 1px solid var(--line); padding: 5px 11px; white-space: nowrap; }
tr:nth-child(2n) td { background: var(--field); }
a { color: var(--link); }
code { background: var(--code); padding: 2px 5px; border-radius: 5px; font-size: 85%; }
pre { background: var(--field); border-radius: 6px; padding: 12px 14px; } pre code { background: none; padding: 0; }
blockquote { border-left: 4px solid var(--line); margin: 0; padding: 0 14px; color: var(--quiet); }
.bad { color: var(--bad); } .open { color: var(--quiet); }
h3 { font-size: 17px; } sub { color: var(--quiet); vertical-align: baseline; } ol { color: var(--quiet); font-size: 13px; }
.mail { font: 13px/1.45 "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere; width: 80ch;
  height: 34lh; overflow: hidden; margin: 0; padding: 0; }
"""
WIDTHS = {"comment": 1290, "comment-dark": 1290, "comment-mail": 660}
COLOURS = 32


def draw(folder: str, out: Path) -> None:
    """Render the comment of `folder` and photograph it in each form into `out`."""
    argv = [sys.executable, "-m", "perfgate", "report", folder]
    comment = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    mail = write_mail(comment)
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table").render(comment)
    bodies = {
        "comment": (f"<article>{markdown}</article>", comment),
        "comment-dark": (f"<article>{markdown}</article>", comment),
        "comment-mail": (f'<div class="mail">{escape(mail)}</div>', mail),
    }
    with tempfile.TemporaryDirectory() as place, open_browser() as browser:
        for name, (body, text) in bodies.items():
            # GitHub draws the one in red and the other in grey; the fonts of a plain machine have only the shape of one.
            shown = body.replace("\N{CROSS MARK}", '<span class="bad">\N{HEAVY MULTIPLICATION X}</span>')
            shown = shown.replace("\N{WHITE QUESTION MARK ORNAMENT}", '<strong class="open">?</strong>')
            file = Path(place) / f"{name}.html"
            file.write_text(f"<!doctype html><meta charset='utf-8'><style>{STYLE}</style>{shown}", encoding="utf-8")
            scheme = "dark" if name == "comment-dark" else "light"
            page = browser.new_page(viewport={"width": WIDTHS[name], "height": 600}, color_scheme=scheme)
            page.goto(file.as_uri())
            save_small(page.locator("body").screenshot(), out / f"{name}.webp", COLOURS)
            write_digest(out / f"{name}.webp", folder, text)


if __name__ == "__main__":
    draw(sys.argv[1], Path(sys.argv[2]))
