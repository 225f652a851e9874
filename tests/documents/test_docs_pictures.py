"""The committed pictures are of what perfgate renders today; where not, the scripts named here draw them anew."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from benchmarks.error_rates import render as error_rates
from benchmarks.verdict import render as simulated
from perfgate.cli import main

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
MAX_BYTES = 400_000
MADE_BY = {
    "comment": "make_comment.py {folder} docs/pictures",
    "comment-dark": "make_comment.py {folder} docs/pictures",
    "comment-mail": "make_comment.py {folder} docs/pictures",
    "report": "make_report.py {folder} docs/pictures/report.webp",
}
ANEW = "is out of date: run `python docs/pictures/{command}` and look at it"


def load_beside(name):
    """A module beside the pictures, which is no package."""
    spec = importlib.util.spec_from_file_location(name, PICTURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pictured():
    return load_beside("pictured")


def test_drawings__of_the_statistics_are_of_todays_charts(tmp_path):
    load_beside("make_statistics").draw(tmp_path)

    for name in ("number-line.svg", "blocks.svg"):
        assert (tmp_path / name).read_bytes() == (PICTURES / name).read_bytes(), (
            "run `python docs/pictures/make_statistics.py docs/pictures`"
        )


@pytest.mark.parametrize("name", MADE_BY)
def test_picture__is_of_todays_renderer(pictured, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    digest, folder = pictured.read_digest(PICTURES / f"{name}.webp")
    page = tmp_path / "page.html"
    assert main(["report", folder, *(["--html", str(page)] if name == "report" else [])]) == 0
    text = pictured.cut_page(page.read_text(encoding="utf-8")) if name == "report" else capsys.readouterr().out
    shown = pictured.write_mail(text) if name == "comment-mail" else text

    assert pictured.find_digest(shown) == digest, ANEW.format(command=MADE_BY[name].format(folder=folder))


@pytest.mark.parametrize("module", [error_rates, simulated], ids=["error-rates", "error-rates-simulated"])
def test_drawing__of_error_rates_is_of_todays_results(module, tmp_path, monkeypatch):
    committed = module.PICTURE
    monkeypatch.setattr(module, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(module, "PICTURE", tmp_path / "picture.svg")
    monkeypatch.setattr(sys, "argv", ["render"])

    assert module.main() == 0
    assert (tmp_path / "picture.svg").read_bytes() == committed.read_bytes(), f"run `python -m {module.__name__}`"


def test_pictures__are_small():
    assert {path.name: path.stat().st_size for path in PICTURES.glob("*.webp") if path.stat().st_size > MAX_BYTES} == {}


def test_cut_page__of_a_page_without_the_parts(pictured):
    with pytest.raises(ValueError, match="no head and section of metrics"):
        pictured.cut_page("<style></style><section id='metrics'>")
