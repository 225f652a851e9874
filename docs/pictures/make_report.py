"""Photograph the page of a result folder, from its head to the end of its table of metrics: made by headless Chromium.

Beside it goes a line with the digest of that part of the page, by which a test knows that the picture is of today's page.

Run as
`python docs/pictures/make_report.py benchmarks/h100/serving/mxfp4-mixed-c16-gpu-15-profiled docs/pictures/report.webp`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from camera import open_browser, save_small
from pictured import cut_page, write_digest

WIDTH, MARGIN = 1180, 10


def draw(folder: str, picture: Path) -> None:
    """Write the page of `folder` and photograph a part of it."""
    with tempfile.TemporaryDirectory() as place, open_browser() as browser:
        page_file = Path(place) / "page.html"
        subprocess.run([sys.executable, "-m", "perfgate", "report", folder, "--html", str(page_file)], check=True)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        page.goto(page_file.as_uri())
        first, last = page.locator("header").bounding_box(), page.locator("#metrics").bounding_box()
        if first is None or last is None:
            sys.exit(f"{folder}: its page has no head or no metrics to photograph")
        top, bottom = first["y"] - MARGIN, last["y"] + last["height"] + MARGIN
        clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top}
        shot = page.screenshot(full_page=True, clip=clip)
        part = cut_page(page_file.read_text(encoding="utf-8"))
    save_small(shot, picture, 32)
    write_digest(picture, folder, part)


if __name__ == "__main__":
    draw(sys.argv[1], Path(sys.argv[2]))
