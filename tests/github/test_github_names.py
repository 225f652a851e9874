"""One rule for names: what a scenario may be called can be handed over, planned and asked for."""

from __future__ import annotations

import re

import pytest
from pydantic import TypeAdapter, ValidationError

from perfgate.cli import main
from perfgate.core import Arm
from perfgate.github.asked.words import parse_command
from perfgate.github.handoff.artifact import MEMBER
from perfgate.github.runs.jobs import JOB
from perfgate.github.settings import MatrixJob
from perfgate.results.results import load_results
from perfgate.scenario.schema import Name
from tests.fakes.sessions import SCENARIO_TEXT, make_scenario, make_session, write_folder

SUBJECT = ["--repository", "o/r", "--pr", "7", "--head-sha", "a" * 40, "--run-id", "1", "--hardware", "test-gpu"]
GOOD = ("a", "a_b", "gpt-oss-20b_decode.2", "0")
BAD = ("", "a..b", "a__b", "_a", "a-", "A", "a/b", "a b", "a\n", "x" * 65)


def is_name(text):
    try:
        TypeAdapter(Name).validate_python(text)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("name", GOOD)
def test_name__is_accepted_everywhere(name):
    assert is_name(name)
    assert MEMBER.fullmatch(f"handoff-{name}.json")
    assert JOB.fullmatch(f"bench h20 {name}")["scenario"] == name
    assert MatrixJob(hardware="h20", scenario=name).scenario == name
    assert parse_command(f"/perfgate run h20 {name}", ("h20",), (name,)).scenario == name


@pytest.mark.parametrize("name", BAD)
def test_name__is_refused_by_scenarios_and_settings(name):
    assert not is_name(name)
    with pytest.raises(ValidationError):
        MatrixJob(hardware="h20", scenario=name)


def test_handoff__a_scenario_with_an_underscore_and_the_facts_of_this_side(tmp_path, capsys):
    text = SCENARIO_TEXT.replace('name = "unit"', 'name = "unit_two"') + "[equivalence]\nenabled = false\n"
    session = make_session(make_scenario(name="unit_two"), arms=(Arm.CANDIDATE,))
    folder = write_folder(tmp_path / "measured", session, text)
    (tmp_path / "unit_two.toml").write_text(text)

    assert main(["handoff", "pack", str(folder), "-o", str(tmp_path), *SUBJECT]) == 0
    packed = re.search(r"handoff-\S+", capsys.readouterr().out)[0]
    options = [
        "--out",
        str(tmp_path / "out"),
        "--scenario",
        str(tmp_path / "unit_two.toml"),
        "--scenarios-in-pr",
        "3",
        "--no-base",
    ]
    assert main(["handoff", "open", str(tmp_path / packed), *options, *SUBJECT]) == 0

    _, opened = load_results(tmp_path / "out" / "unit_two")
    assert (opened.scenarios_in_pr, opened.has_base) == (3, False)
