"""The curve of a matrix: which points it has, and that equal numbers give an equal picture."""

import pytest

from perfgate.core import Role
from perfgate.errors import InputError
from perfgate.report.figure import save_curve_plot, trace_curves
from perfgate.results.matrix_records import MatrixEntry
from perfgate.results.matrix_results import CellResult
from tests.fakes.sessions import make_run


def build_cell(server, load, **values):
    entry = MatrixEntry(
        server=server,
        load=load,
        round=1,
        start=1,
        index=2,
        role=Role.MEASURED,
        begun_s=0.0,
        ended_s=1.0,
        file="windows/0000.jsonl.gz",
        sha256="0" * 64,
    )
    runs = ((entry, make_run({"output_tok_per_s": 1.0} | values, "run")),) if values else ()
    return CellResult(server=server, load=load, runs=runs, problems=())


CELLS = [
    build_cell("plain", "c1", output_tok_per_s=100.0, median_itl_ms=4.0),
    build_cell("plain", "c2"),
    build_cell("plain", "c4", output_tok_per_s=300.0, median_itl_ms=6.0),
    build_cell("fused", "c1", output_tok_per_s=110.0, median_itl_ms=3.5),
]


def test_trace_curves__in_the_order_of_the_file():
    assert trace_curves(CELLS) == {"plain": [("c1", 100.0, 4.0), ("c4", 300.0, 6.0)], "fused": [("c1", 110.0, 3.5)]}


def test_save_curve_plot__equal_numbers_give_equal_bytes(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extras plots and test")
    for name in ("one.svg", "two.svg"):
        save_curve_plot(CELLS, "a sweep", tmp_path / name)

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert b"<svg" in (tmp_path / "one.svg").read_bytes()


@pytest.mark.parametrize(
    ("cells", "name", "message"),
    [
        (CELLS, "curve.pdf", r"must end in \.png or \.svg"),
        (CELLS[1:2], "curve.svg", "no cell has a throughput and an ITL"),
        (CELLS, "missing/curve.svg", "cannot be written"),
    ],
)
def test_save_curve_plot__refused(tmp_path, cells, name, message):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extras plots and test")

    with pytest.raises(InputError, match=message):
        save_curve_plot(cells, "a sweep", tmp_path / name)

    assert list(tmp_path.iterdir()) == []
