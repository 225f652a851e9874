"""No command takes an empty text or path for one that was left out, and no new option can forget that."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from perfgate.cli import main, program
from perfgate.cli.given import MAY_BE_EMPTY, Ratio, read_ratio
from tests.cli.test_cli_output import list_leaves

READ = [
    (name, option)
    for name, command in list_leaves(program)
    for option in command.params
    if isinstance(option, click.Option)
    and not option.is_flag
    and not isinstance(option.type, click.Choice | click.types.IntParamType | click.types.FloatParamType)
]
ALLOWED = [(name, option) for name, option in READ if option.default == "" or option.opts[0] in MAY_BE_EMPTY]


@pytest.mark.parametrize(
    ("name", "option"),
    [pytest.param(*one, id=f"{one[0]} {one[1].opts[-1]}") for one in READ if one not in ALLOWED],
)
def test_refuse_empty__every_option_that_does_not_allow_it(name, option, capsys):
    values = [""] * option.nargs

    assert main([*name.split(), option.opts[-1], *values]) == 2
    assert capsys.readouterr().err == f"perfgate: {option.opts[0]}: is empty; give it a value, or leave it out\n"


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param(name, option.opts[0], id=f"{name} {option.opts[0]}")
        for name, command in list_leaves(program)
        for option in command.params
        if isinstance(option.type, click.types.FloatParamType)
    ],
)
def test_number__every_option_refuses_what_is_none(name, option, value, capsys):
    assert main([*name.split(), option, value]) == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("value", ["5", "1", "100%", "0", "-3%", "%", "much"])
@pytest.mark.parametrize(
    "words", [["compare", "a", "b", "--margin"], ["bisect", "a", "b", "--margin"], ["power", "--effect"]], ids=" ".join
)
def test_read_ratio__a_percent_typed_as_a_number(words, value, capsys):
    assert main([*words, value]) == 2
    told = capsys.readouterr().err
    assert told.endswith(f"{words[-1]} {value}: is no ratio between 0 and 1; write 5 % as 0.05 or 5%\n")
    assert len(told.splitlines()) == 1


def test_read_ratio__either_form():
    assert read_ratio("--margin 0.05", "0.05") == read_ratio("--margin 5%", "5%") == Ratio().convert("5%", None, None) == 0.05


@pytest.mark.parametrize("option", ["--margin", "--effect"])
def test_ratio__every_option_of_that_name(option):
    options = [one for _, command in list_leaves(program) for one in command.params if option in one.opts]
    kinds = {type(one.type) for one in options if not one.multiple}

    assert kinds == {Ratio}


def test_refuse_empty__knows_no_option_that_is_gone():
    assert {option.opts[0] for _, option in ALLOWED} >= MAY_BE_EMPTY


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["history", "override", "", "--reason", "x", "--by", "ada"], "SESSION"),
        (["history", "override", "1", "--reason", " ", "--by", "ada"], "--reason"),
        (["explain", ""], "[RESULT_DIR]"),
        (["gate", ""], "SCENARIO"),
        (["demo", "--out", ""], "--out"),
        (["compare", "--base="], "--base"),
    ],
)
def test_refuse_empty__arguments_and_blanks_too(words, name, capsys):
    assert main(words) == 2
    assert f"{name}: is empty; give it a value" in capsys.readouterr().err


def test_refuse_empty__leaves_an_empty_argument_of_the_engine(capsys):
    assert main(["run", "no-such-scenario", "--both-arg", ""]) == 2
    assert "no-such-scenario" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["report"], ["compare", "a"], ["compare", "--base"], ["demo", "--out"]], ids=" ".join)
@pytest.mark.parametrize("path", ["loop", "x" * 300])
def test_refuse_empty__a_path_at_which_no_file_can_be(words, path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")

    assert main([*words, path]) == 2
    told = capsys.readouterr().err
    assert re.search(rf": {path[:100]}: (Too many levels of symbolic links|File name too long); give another path\n$", told)
    assert len(told.splitlines()) == 1
