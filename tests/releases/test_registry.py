"""Which releases a registry has, by what pip says."""

import stat
import sys

import pytest

from perfgate.errors import EngineError, InputError
from perfgate.releases import registry
from perfgate.releases.registry import find_next, find_previous, list_versions, parse_requirement

TOLD = """sglang (0.5.23)
Available versions: 0.5.23, 0.5.16, 0.5.15.post1, 0.5.9
  INSTALLED: 0.5.15.post1
"""
VERSIONS = ["0.5.9", "0.5.15.post1", "0.5.16", "0.5.23"]


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Have a program stand in pip's place that says what it is given."""

    def say(text, code=0):
        program = tmp_path / "python"
        program.write_text(f"#!{sys.executable}\nimport sys\nprint({text!r})\nsys.exit({code})\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(registry.sys, "executable", str(program))

    return say


def test_list_versions__the_oldest_first(pip):
    pip(TOLD)

    assert list_versions("sglang") == VERSIONS


@pytest.mark.parametrize(("text", "code"), [("", 0), ("ERROR: No matching distribution found", 1)])
def test_list_versions__of_which_pip_knows_nothing(pip, text, code):
    pip(text, code)

    with pytest.raises(EngineError, match="pip index versions sglang"):
        list_versions("sglang")


@pytest.mark.parametrize(("known", "found"), [("0.5.15.post1", "0.5.16"), ("0.5.15", "0.5.15.post1"), ("0.5.23", None)])
def test_find_next__after_the_last_that_is_known(known, found):
    assert find_next(VERSIONS, known) == found


def test_find_previous__of_a_release():
    assert find_previous(VERSIONS, "0.5.16") == "0.5.15.post1"


@pytest.mark.parametrize(("version", "words"), [("0.5.24", "no such release; the newest is 0.5.23"), ("0.5.9", "the first")])
def test_find_previous__where_there_is_none(version, words):
    with pytest.raises(InputError, match=words):
        find_previous(VERSIONS, version)


def test_parse_requirement__one_release():
    assert parse_requirement("sglang==0.5.15.post1", "sglang") == "0.5.15.post1"


@pytest.mark.parametrize("text", ["sglang", "sglang>=0.5.16", "vllm==0.33.0", "sglang==", "sglang==0.5.16; rm -rf /"])
def test_parse_requirement__anything_else(text):
    with pytest.raises(InputError, match="give a release as sglang==VERSION"):
        parse_requirement(text, "sglang")
