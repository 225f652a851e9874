from __future__ import annotations

from perfgate.cli import main
from perfgate.scenario.catalog import list_scenarios


def test_scenarios__one_line_each(capsys):
    code = main(["scenarios"])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert [line.split()[0] for line in lines] == list(list_scenarios())
    assert all(len(line.split()) > 1 for line in lines)


def test_scenarios__needs_no_argument(capsys):
    assert main(["scenarios", "extra"]) == 2
    assert "No such command 'extra'" in capsys.readouterr().err
