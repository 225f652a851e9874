"""The counters' file and log: when they are written, and where."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the kernel suite needs torch: install the extra cpu-engine or gpu")

from perfgate_moe.engines import counters
from perfgate_moe.engines.counters import Counters, rank_path, replace_file


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless told."""
    now = [1000.0]
    monkeypatch.setattr(counters.time, "monotonic", lambda: now[0])
    return now


def test_counters__first_call_and_new_reasons_are_written_at_once_the_rest_at_intervals(tmp_path, clock, capsys):
    path = tmp_path / "moe.json"
    counted = Counters(mode="auto", versions={}, path=path)

    counted.count_computed("slots", is_captured=False)
    first = json.loads(path.read_text())
    counted.count_computed("slots", is_captured=True)
    counted.count_fallback("LoRA hooks")
    second = json.loads(path.read_text())
    counted.count_fallback("LoRA hooks")
    assert json.loads(path.read_text()) == second
    clock[0] += counters.INTERVAL_S
    counted.count_computed("slots", is_captured=True)
    third = json.loads(path.read_text())

    assert first["calls"] == 1
    assert first["fallbacks"] == {}
    assert (second["calls"], second["fallbacks"]) == (2, {"LoRA hooks": 1})
    assert (third["calls"], third["fallbacks"]) == (3, {"LoRA hooks": 2})
    assert third["computed"] == {"slots/eager": 1, "slots/captured": 2}
    assert capsys.readouterr().out.splitlines()[-1] == (
        "perfgate moe active: auto: slots/captured 2, slots/eager 1; left to SGLang: 2 x LoRA hooks"
    )


@pytest.mark.usefixtures("clock")
def test_counters__a_server_that_computes_nothing_never_shows_the_proof(capsys):
    counted = Counters(mode="slots", versions={})

    counted.count_fallback("no_combine")

    assert capsys.readouterr().out == "perfgate moe: slots: nothing computed; left to SGLang: 1 x no_combine\n"


def test_replace_file__leaves_nothing_else_behind(tmp_path):
    replace_file(tmp_path / "moe.json", "old")
    replace_file(tmp_path / "moe.json", "new")

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("moe.json", "new")]


def test_rank_path__every_rank_has_its_own_file():
    assert [str(rank_path(Path("a/moe.json"), rank)) for rank in (0, 3)] == ["a/moe.json", "a/moe.rank3.json"]
