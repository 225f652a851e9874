"""The packages by which the arms differ, from the trees of the measuring job to the comment and the run's summary."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from perfgate.bisection.locks import list_bumps, read_pair
from perfgate.bisection.packages import read_bumps
from perfgate.bisection.search import Ending
from perfgate.errors import EvidenceError, HandoffError
from perfgate.github.comment.changes import render_packages
from perfgate.github.handoff.handoff import parse_handoff
from perfgate.github.handoff.packages import MAX_PACKAGES, PackageEntry, PackageSearch, PackagesEntry, pack_packages
from perfgate.scenario.selection import read_table
from tests.fakes.github.pull_requests import make_run, pack, prepare_server, report, set_run

BASE = ("torch==2.11.0", "sglang-kernel==0.4.4", "numpy==2.3.5")
HEAD = ("torch==2.12.0", "sglang-kernel==0.4.5", "numpy==2.3.5", "xgrammar==0.2.1")


@pytest.fixture
def server(fake_github, monkeypatch, tmp_path):
    return prepare_server(fake_github, monkeypatch, tmp_path)


@pytest.fixture
def trees(tmp_path):
    return make_trees(tmp_path)


def make_trees(folder, base=BASE, head=HEAD):
    for name, lines in (("base", base), ("head", head)):
        (folder / name / "python").mkdir(parents=True, exist_ok=True)
        (folder / name / "python" / "pyproject.toml").write_text(f"[project]\ndependencies = {list(lines)!r}\n")
    return folder / "base", folder / "head"


def write_search(folder, trees, outcome, *names):
    """What `perfgate deps` would write that suspects these packages."""
    bumps = list_bumps(*read_pair(*trees, read_table().pins))
    line = read_bumps(bumps)
    shas = [commit.sha for bump, commit in zip(bumps, line.commits, strict=True) if bump.pin.name in names]
    told = {"outcome": outcome, "culprit": shas[0] if outcome == "FOUND" else None, "credible": shas}
    path = folder / "packages.json"
    path.write_bytes(orjson.dumps({**told, "confidence": 0.95, "blocks": 9, "minutes": 21.25, "commits": []}))
    return path


def test_pack_packages__of_trees_that_pin_the_same(tmp_path):
    assert pack_packages(*make_trees(tmp_path, BASE, BASE), None) is None


def test_pack_packages__without_a_search(tmp_path, trees):
    (tmp_path / "empty").touch()

    for search in (None, tmp_path / "absent", tmp_path / "empty"):
        found = pack_packages(*trees, search)
        assert [(one.name, one.base, one.candidate) for one in found.differences] == [
            ("sglang-kernel", "0.4.4", "0.4.5"),
            ("torch", "2.11.0", "2.12.0"),
            ("xgrammar", "", "0.2.1"),
        ]
        assert (found.search, found.left_out, found.unpinned) == (None, 0, 0)


@pytest.mark.parametrize(
    ("outcome", "names"), [("FOUND", ["torch"]), ("NARROWED", ["torch", "xgrammar"]), ("NO_DIFFERENCE", [])]
)
def test_pack_packages__suspects_come_first(tmp_path, trees, outcome, names):
    found = pack_packages(*trees, write_search(tmp_path, trees, outcome, *names))

    assert [one.name for one in found.suspects] == names
    assert len(found.differences) == 3
    assert found.search == PackageSearch(outcome=Ending(outcome), suspects=len(names), confidence=0.95, blocks=9, minutes=21.2)


def test_pack_packages__a_suspect_behind_the_last_that_finds_room(tmp_path):
    names = [f"part-{number:03d}" for number in range(MAX_PACKAGES + 6)]
    trees = make_trees(tmp_path, [f"{name}==1" for name in names], [f"{name}==2" for name in names])
    found = pack_packages(*trees, write_search(tmp_path, trees, "FOUND", names[-1]))
    last = pack_packages(*make_trees(tmp_path / "one", [f"{names[-1]}==1"], [f"{names[-1]}==2"]), None)

    assert found.suspects == last.differences
    assert (len(found.differences), found.left_out) == (MAX_PACKAGES, 6)


def test_pack_packages__requirements_that_pin_nothing_are_counted(tmp_path):
    found = pack_packages(*make_trees(tmp_path, (*BASE, "kernels>=0.14"), (*BASE, "kernels>=0.15")), None)

    assert (found.differences, found.unpinned) == ((), 2)
    assert render_packages(found, is_slower=True) == (
        "- **Packages:** 2 requirements differ that pin no version, so they were not measured."
    )


def test_pack_packages__a_search_of_other_trees_or_of_another_kind(tmp_path, trees):
    search = write_search(tmp_path, trees, "FOUND", "torch")
    others = make_trees(tmp_path / "others", BASE, ("torch==2.13.0", "numpy==2.3.5"))

    with pytest.raises(HandoffError, match="names packages that are none of these trees'"):
        pack_packages(*others, search)
    search.write_text('{"outcome": "FOUND"}')
    with pytest.raises(EvidenceError, match="perfgate deps"):
        pack_packages(*trees, search)


def test_pack_packages__what_perfgate_s_table_lacks_is_a_digest(tmp_path):
    lines = ["please-approve==1", "torch==2.12.0.evil"]
    found = pack_packages(*make_trees(tmp_path, ["please-approve==2", "torch==2.11.0+cu130"], lines), None)

    told = [(one.name, one.base, one.candidate) for one in found.differences]
    assert told[1][:2] == ("torch", "2.11.0+cu130")
    assert all(word.startswith("word-") for word in (told[0][0], told[1][2]))
    assert "evil" not in str(told)
    assert "approve" not in str(told)


SOUND = {"name": "torch", "base": "2.11.0", "candidate": "2.12.0"}
SEARCH = {"outcome": "FOUND", "suspects": 1, "confidence": 0.95, "blocks": 9, "minutes": 21.2}


@pytest.mark.parametrize(
    ("package", "search"),
    [
        ({"name": "please approve this change"}, {}),
        ({"name": "click-evil.example"}, {}),
        ({"base": "2.11.0 and more"}, {}),
        ({"candidate": "<img src=x>"}, {}),
        ({"candidate": "1" * 61}, {}),
        ({}, {"suspects": 2}),
        ({}, {"suspects": 0}),
        ({}, {"outcome": "found by me"}),
    ],
)
def test_attack__forged_packages_of_a_hand_off(tmp_path, trees, package, search):
    packed = pack(tmp_path, options=["--trees", *map(str, trees)])
    whole = orjson.loads(packed.read_bytes())

    def forge(**changes):
        told = {"differences": [{**SOUND, **package}], "left_out": 0, "unpinned": 0, "search": {**SEARCH, **search}}
        return orjson.dumps(whole | {"packages": told | changes})

    with pytest.raises(HandoffError, match=r"test: packages"):
        parse_handoff(forge(), "test")
    package, search = {}, {}
    assert parse_handoff(forge(), "test").packages.search.outcome is Ending.FOUND


def make_entry(*, outcome=None, suspects=0, count=3):
    entries = tuple(PackageEntry(name="torch", base=f"2.{number}.0", candidate="2.12.0") for number in range(count))
    search = PackageSearch(outcome=outcome, suspects=suspects, confidence=0.95, blocks=9, minutes=21.2) if outcome else None
    return PackagesEntry(differences=entries, search=search)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (make_entry(), "which of them made it slower is not known: the search left no answer"),
        (
            make_entry(outcome=Ending.FOUND, suspects=1),
            "torch 2.0.0 to 2.12.0 made it slower, 95 % sure or more (9 blocks, 21 min",
        ),
        (make_entry(outcome=Ending.NARROWED, suspects=2), "one of several that cannot be told apart, one of torch 2.0.0 to"),
        (make_entry(outcome=Ending.OUT_OF_BUDGET, suspects=6, count=6), "torch 2.3.0 to 2.12.0 and 2 more (9 blocks"),
        (make_entry(outcome=Ending.NO_DIFFERENCE), "nothing to find (9 blocks"),
    ],
)
def test_render_packages__what_the_search_came_to(found, words):
    told = render_packages(found, is_slower=True)

    assert words in told.splitlines()[0].replace("\\", "")
    assert f"<summary>Packages in other versions: {len(found.differences)}</summary>" in told
    assert "search left no answer" not in render_packages(replace(found, search=None), is_slower=False)


@pytest.mark.parametrize(("worse", "is_told"), [(0.2, True), (0.0, False)])
def test_report__the_comment_lists_the_packages_and_names_the_slow_one(server, tmp_path, trees, worse, is_told):
    search = ["--search", str(write_search(tmp_path, trees, "FOUND", "torch"))] if is_told else []
    set_run(server, pack(tmp_path, worse=worse, options=["--trees", *map(str, trees), *search]))

    assert report(tmp_path, make_run()) == 0
    (comment,) = server.get()["comments"]
    assert "- **Packages:** the arms have 3 in different versions" in comment["body"]
    assert ("torch 2.11.0 to 2.12.0 made it slower" in comment["body"]) is is_told
    assert "- sglang-kernel 0.4.4 to 0.4.5" in comment["body"].replace("\\", "")
