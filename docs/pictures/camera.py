"""The headless Chromium that takes the pictures here, and how they are kept small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = "/usr/bin/chromium"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser that asks the network for nothing."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()


def save_small(shot: bytes, picture: Path, colours: int) -> None:
    """Keep as many colours as letters, lines and pale fields need. WebP without loss takes a quarter less than PNG."""
    few = Image.open(BytesIO(shot)).convert("RGB").quantize(colours, method=Image.Quantize.MAXCOVERAGE)
    few.convert("RGB").save(picture, "WEBP", lossless=True, quality=100, method=6)
