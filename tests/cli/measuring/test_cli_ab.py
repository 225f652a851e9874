"""The one-line A/B: what the options say is said of the candidate alone."""

import json
import sys
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.core import Arm
from perfgate.engines.table import ENGINES
from perfgate.results.results import load_results
from tests.fakes.hub import QUANTISED_GPT_OSS
from tests.fakes.requests import build_fake_engine, build_text, list_problems, use_fake_engine

DOCS = Path(__file__).parents[3] / "docs" / "explanation" / "sessions.md"


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(build_text(**{"calibrate_first = true": "calibrate_first = false"}))
    return path


def test_ab__a_slower_candidate_is_a_regression(scenario, tmp_path, capsys):
    code = main(["ab", str(scenario), "--env", "FAKE_SLOW=2.0", "--arg=--flag", "--out", str(tmp_path / "out")])
    arms = json.loads((tmp_path / "out" / "session.json").read_text())["arms"]

    assert code == 1
    assert "REGRESSION" in capsys.readouterr().out.splitlines()[0]
    assert "FAKE_SLOW" not in arms["base"]["env"]
    assert arms["candidate"]["env"]["FAKE_SLOW"] == "2.0"
    assert "--flag" in arms["candidate"]["argv"]
    assert "--flag" not in arms["base"]["argv"]
    assert (tmp_path / "out" / "report.md").exists()


@pytest.mark.parametrize(
    ("arguments", "pythons"),
    [
        (["--python", "/b/python"], (sys.executable, "/b/python")),
        (["--base-python", "/a/python", "--env", "A=1"], ("/a/python", "/a/python")),
        (["--base-python", "/a/python", "--python", "/b/python"], ("/a/python", "/b/python")),
    ],
)
def test_ab__pythons(arguments, pythons, monkeypatch):
    seen = {}
    monkeypatch.setattr("perfgate.cli.measuring.ab.judge_arms", lambda _, arms, __: seen.update(arms) or 0)
    code = main(["ab", "cpu-moe", *arguments])

    assert code == 0
    assert (seen[Arm.BASE].python, seen[Arm.CANDIDATE].python) == pythons


def test_ab__each_arm_has_compile_caches_of_its_own(monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr("perfgate.cli.measuring.ab.judge_arms", lambda _, arms, __: seen.update(arms) or 0)
    main(["ab", "cpu-moe", "--env", "A=1", "--caches", str(tmp_path)])

    assert [seen[arm].caches for arm in Arm] == [tmp_path / "base", tmp_path / "candidate"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing sets the candidate apart from the base"),
        (["--base-python", "/a/python"], "nothing sets the candidate apart"),
        (["--env", "1=2"], "--env 1=2: expected NAME=VALUE"),
        (["--inject", "nap:1"], "is no injection"),
        (["--python", ""], "--python: is empty; give it a value, or leave it out"),
        (["--env", "A=1", "--base-python", ""], "--base-python: is empty"),
        (["--env", "A=1", "--out", ""], "--out: is empty"),
        (["--env", "A=1", "--expect-log", ""], "--expect-log: is empty"),
        (["--env", "A=1", "--resume"], "--resume: no session of"),
    ],
)
def test_ab__bad_input(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = main(["ab", "cpu-moe", *arguments])
    told = capsys.readouterr().err

    assert code == 2
    assert words in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_ab__variable_that_the_base_inherits_alike(scenario, tmp_path, monkeypatch, capsys):
    """Both servers would have it: a silent A/A."""
    monkeypatch.setenv("SGLANG_X", "1")
    code = main(["ab", str(scenario), "--env", "SGLANG_X=1", "--out", str(tmp_path / "out")])

    assert code == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith(
            "SGLANG_X: the candidate sets it to what the base inherits from this shell, so the arms would not differ; "
            "`unset SGLANG_X` first"
        )
    )
    assert not (tmp_path / "out").exists()


CONFIG = {**QUANTISED_GPT_OSS, "vocab_size": 201088, "quantization_config": None}


@pytest.fixture
def snapshot(tmp_path, monkeypatch):
    """What `hf download lmsys/gpt-oss-20b-bf16` leaves, with a fake engine in SGLang's place."""
    place = tmp_path / "hub" / "models--lmsys--gpt-oss-20b-bf16"
    folder = place / "snapshots" / "6cee5e8"
    folder.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("6cee5e8")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(ENGINES, "sglang", build_fake_engine())


@pytest.mark.parametrize(("log", "is_seen"), [("perfgate moe active: auto: slots/eager 1", True), ("loading", False)])
@pytest.mark.usefixtures("snapshot")
def test_ab__the_one_line_of_the_documentation(tmp_path, monkeypatch, log, is_seen):
    """Nothing but the scenario's name and the variable: model and expectation are found. The fakes' windows are no verdict."""
    monkeypatch.setenv("FAKE_LOG", log)
    line = ["ab", "gpt-oss-20b-bf16-closed-c16", "--env", "SGLANG_MOE_FUSE_DOWN_SUM_REDUCE=1", "--out", str(tmp_path / "out")]
    main(line)
    record = json.loads((tmp_path / "out" / "session.json").read_text())
    _, session = load_results(tmp_path / "out")

    assert line[:4] == next(text for text in DOCS.read_text().splitlines() if "ab gpt" in text).split()[2:]
    assert record["model"]["path"] == str(tmp_path / "hub" / "models--lmsys--gpt-oss-20b-bf16" / "snapshots" / "6cee5e8")
    assert record["expect"]["log"] == ["perfgate moe active"]
    assert record["arms"]["candidate"]["env"]["SGLANG_MOE_FUSE_DOWN_SUM_REDUCE"] == "1"
    assert (list_problems(session) == ()) == is_seen
    assert all("no line of its log matches 'perfgate moe active'" in problem for problem in list_problems(session))
