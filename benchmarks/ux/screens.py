"""Pictures of pages as windows of four widths show them without scrolling: `python -m benchmarks.ux.screens OUT PAGE.html...`.

`perfgate report DIR --html PAGE.html` writes such a page. A picture has the name of its page, with the width.
Needs Chromium and the test extra.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.pictures.camera import open_browser, save_small

WIDTHS = (390, 768, 1024, 1440)
HEIGHT, COLOURS = 900, 48


def main(words: list[str]) -> int:
    """Take every picture and print its size."""
    if len(words) < 2:
        print("usage: python -m benchmarks.ux.screens OUT PAGE.html...", file=sys.stderr)
        return 2
    folder = Path(words[0])
    folder.mkdir(parents=True, exist_ok=True)
    with open_browser() as browser:
        for page in map(Path, words[1:]):
            for width in WIDTHS:
                picture = folder / f"{page.stem}-{width}.webp"
                tab = browser.new_page(viewport={"width": width, "height": HEIGHT})
                tab.goto(page.absolute().as_uri())
                save_small(tab.screenshot(), picture, COLOURS)
                tab.close()
                print(f"{picture}: {picture.stat().st_size / 1000:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
