"""The contributor's pages are true: the map names every room, each path exists, and each decision is listed."""

import re

import pytest

from tests.documents.tracked import ROOT

GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DECISIONS = (ROOT / "DECISIONS.md").read_text(encoding="utf-8")
ROOMS = sorted(
    str(folder.relative_to(ROOT / "perfgate"))
    for folder in {path.parent for path in (ROOT / "perfgate").rglob("*.py")} - {ROOT / "perfgate"}
)
NAMED = set(re.findall(r"`((?:perfgate|perfgate_moe|tests|benchmarks|docs)/[\w./-]+)`", GUIDE))
# One in capitals stands for a name that the reader chooses.
PATHS = sorted(path for path in NAMED if not re.search("[A-Z]{2}", path))


@pytest.mark.parametrize("room", ROOMS)
def test_map__names_every_room(room):
    parent, _, name = room.rpartition("/")
    rows = [line for line in GUIDE.splitlines() if line.startswith("| `")]
    named = {word for line in rows for word in re.findall(r"`([\w/]+)/`", line)}

    assert room in named or (parent == "cli" and name in named)


def test_paths__are_many():
    assert len(PATHS) > 40


@pytest.mark.parametrize("path", PATHS)
def test_paths__exist(path):
    assert (ROOT / path).exists()


def list_slugs(text):
    titles = re.findall(r"^## (.+?) *$", text, flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]


def test_decisions__each_entry_is_listed_on_the_first_page():
    page, _, archive = DECISIONS.partition("\n# Archive\n")
    listed = set(re.findall(r"\]\(#([^)]+)\)", page))

    assert [slug for slug in list_slugs(archive) if slug not in listed] == []


def test_decisions__name_the_rule_of_today():
    rule = re.search(r'^RULE = "(.+)"$', (ROOT / "perfgate/verdict/policy.py").read_text(encoding="utf-8"), re.MULTILINE)
    page, _, _ = DECISIONS.partition("\n# Archive\n")

    assert rule is not None
    assert set(re.findall(r"\d{4}-\d\d\.\d+", page)) <= {rule[1]}
