"""Tables for terminals, pipes and comments."""

import sys

import pytest

from perfgate.report.table import Table, draw, lay_out, lay_out_markdown, print_table

TABLE = Table(header=("name", "a", "long"), rows=[("first", "1", "2"), ("x|y", "10", "20")])


def test_lay_out__names_left_figures_right():
    assert lay_out(TABLE).splitlines() == ["name    a  long", "first   1     2", "x|y    10    20"]


def test_lay_out_markdown__cells_are_escaped():
    assert lay_out_markdown(TABLE).splitlines()[1:] == ["| --- | ---: | ---: |", "| first | 1 | 2 |", "| x\\|y | 10 | 20 |"]


def test_print_table__pipe(capsys):
    print_table(TABLE)

    assert capsys.readouterr().out == lay_out(TABLE) + "\n"


def test_draw__a_narrow_terminal_cuts_no_cell(monkeypatch: pytest.MonkeyPatch):
    wide = Table(header=("name", "figure"), rows=[("x" * 60, "1" * 40)])
    monkeypatch.setenv("COLUMNS", "80")

    assert draw(wide) == f"{'x' * 60}\n  figure {'1' * 40}"
    monkeypatch.setenv("COLUMNS", "120")
    assert "x" * 60 in draw(wide)
    assert "┃" in draw(wide)


def test_lay_out__words_stand_to_the_left():
    table = Table(header=("name", "n", "outcome"), rows=[("a", "1", "PASS")], words=(0, 2))

    assert lay_out(table).splitlines()[1] == "a     1  PASS"
    assert lay_out_markdown(table).splitlines()[1] == "| --- | ---: | --- |"


def test_print_table__terminal(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    print_table(TABLE)

    out = capsys.readouterr().out
    assert "┃" in out
    assert "first" in out
