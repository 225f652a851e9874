"""Draw the pull request comment of a result folder as GitHub would show it: a PNG made by headless Chromium.

Beside it goes a line with the digest of the markdown, by which a test knows that the picture is of today's comment.

Run as
`python docs/pictures/make_comment.py benchmarks/h200/serving/routed/mxfp4-mixed-c16-graphs-gpu-15 docs/pictures/comment.png`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt
from pictured import write_digest
from PIL import Image, ImageChops

STYLE = """
body { font: 14px/1.5 "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif; color: #1f2328; margin: 0; padding: 20px; }
article { border: 1px solid #d1d9e0; border-radius: 6px; padding: 4px 20px 12px; }
table { border-collapse: collapse; font-size: 13px; }
th, td { border: 1px solid #d1d9e0; padding: 5px 11px; white-space: nowrap; }
tr:nth-child(2n) td { background: #f6f8fa; }
code { background: #eff1f3; padding: 2px 5px; border-radius: 5px; font-size: 85%; }
pre { background: #f6f8fa; border-radius: 6px; padding: 12px 14px; } pre code { background: none; padding: 0; }
blockquote { border-left: 4px solid #d1d9e0; margin: 0; padding: 0 14px; color: #59636e; }
.bad { color: #d1242f; }
h3 { font-size: 17px; } sub { color: #59636e; vertical-align: baseline; } ol { color: #59636e; font-size: 13px; }
"""
CHROMIUM = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1.5")
NO_NETWORK = ("--disable-background-networking", "--disable-sync", "--disable-component-update", "--no-first-run")
SIZE = "--window-size=1290,2400"  # higher than any comment; what is left white below is cut off
MARGIN = 30


def draw(folder: str, picture: Path) -> None:
    """Render the comment of `folder` and photograph it."""
    argv = [sys.executable, "-m", "perfgate", "report", folder]
    comment = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(comment)
    # GitHub draws it in colour; the fonts of a plain machine have only the shape.
    body = body.replace("\N{CROSS MARK}", '<span class="bad">\N{HEAVY MULTIPLICATION X}</span>')
    html = f"<!doctype html><meta charset='utf-8'><style>{STYLE}</style><article>{body}</article>"
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "comment.html"
        page.write_text(html, encoding="utf-8")
        options = [f"--user-data-dir={place}/profile", SIZE, f"--screenshot={picture.resolve()}", page.as_uri()]
        subprocess.run([*CHROMIUM, *NO_NETWORK, *options], check=True, capture_output=True)
    drawn = Image.open(picture).convert("RGB")
    shown = ImageChops.invert(drawn).getbbox()
    if shown is None or shown[3] == drawn.height:
        sys.exit(f"{folder}: its comment is empty, or higher than the window of {SIZE}")
    whole = drawn.crop((0, 0, drawn.width, min(shown[3] + MARGIN, drawn.height)))
    whole.quantize(method=Image.Quantize.FASTOCTREE).save(picture, optimize=True)
    write_digest(picture, folder, comment)


if __name__ == "__main__":
    draw(sys.argv[1], Path(sys.argv[2]))
