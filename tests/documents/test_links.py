"""Every link of every document leads somewhere: files exist, and so do the headings that are named."""

import re
from functools import cache

import pytest

from tests.documents.tracked import ROOT, list_tracked

LINK = re.compile(r"""(?:\]\(|src(?:set)?=")([^)"\s]+)[)"]""")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def list_documents():
    names = list_tracked("*.md") or [str(path.relative_to(ROOT)) for path in ROOT.rglob("docs/**/*.md")]
    return sorted(
        name
        for name in names
        if not name.startswith(("tests/golden/", "benchmarks/ux/before", "benchmarks/ux/after")) and (ROOT / name).is_file()
    )


@cache
def list_anchors(path):
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#{1,6} +(.+?) *$", text, flags=re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "") for title in titles]
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain]
    return frozenset(slugs) | frozenset(re.findall(r'(?:id|name)="([^"]+)"', text))


def find_broken(name):
    page = ROOT / name
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists():
            yield f"{name}: {target}: no such file"
        elif anchor and there.suffix == ".md" and anchor not in list_anchors(there):
            yield f"{name}: {target}: no such heading"


def test_list_documents__finds_those_of_each_kind():
    found = list_documents()

    assert {"README.md", "docs/index.md", "docs/troubleshooting.md"} <= set(found)
    assert len(found) > 40


@pytest.mark.parametrize("name", list_documents())
def test_links__lead_somewhere(name):
    assert list(find_broken(name)) == []


def test_index__reaches_every_page():
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} - {"index.md"}

    assert pages == {page for page in pages if f"]({page})" in index}
