"""Tables for terminals, pipes and comments."""

import sys

import pytest

from perfgate.report.table import Table, choose_layout, draw, join_rows, lay_out, lay_out_markdown

TABLE = Table(header=("name", "a", "long"), rows=[("first", "1", "2"), ("x|y", "10", "20")])


def test_lay_out__names_left_figures_right():
    assert lay_out(TABLE).splitlines() == ["name    a  long", "first   1     2", "x|y    10    20"]


def test_lay_out_markdown__cells_are_escaped():
    assert lay_out_markdown(TABLE).splitlines()[1:] == ["| --- | ---: | ---: |", "| first | 1 | 2 |", "| x\\|y | 10 | 20 |"]


def test_choose_layout__pipe_and_terminal(monkeypatch: pytest.MonkeyPatch):
    assert choose_layout() is lay_out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert choose_layout() is draw


def test_join_rows__a_row_depends_on_its_own_cells_alone():
    assert join_rows(TABLE).splitlines() == ["name  a  long", "first  1  2", "x|y  10  20"]


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
