"""Pictures as SVG files: which points the curve of a matrix has, what a file holds, and which places are refused."""

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from perfgate.core import Arm, Role, Window
from perfgate.errors import PerfgateError
from perfgate.report.cells import remark, tabulate_best
from perfgate.report.chart.curves import FRONT, draw_servers, find_front, list_keys, trace_servers
from perfgate.report.chart.picture import render_picture, save_curve_plot
from perfgate.report.chart.svg import Drawing, LegendEntry
from perfgate.verdict.cells import CellResult
from tests.fakes.sessions import make_run

SVG = "{http://www.w3.org/2000/svg}"


def parse(content):
    return ET.fromstring(content)  # noqa: S314 - what perfgate wrote itself


def build_cell(server, load, **values):
    window = Window(
        run=make_run({"output_tok_per_s": 1.0} | values, "run"),
        arm=Arm.BASE,
        block=1,
        start=1,
        index=2,
        role=Role.MEASURED,
        begun_s=0.0,
        ended_s=1.0,
    )
    return CellResult(server=server, load=load, windows=(window,) if values else ())


CELLS = [
    build_cell("plain", "c1", output_tok_per_s=100.0, median_itl_ms=4.0),
    build_cell("plain", "c2"),
    build_cell("plain", "c4", output_tok_per_s=300.0, median_itl_ms=6.0),
    build_cell("fused", "c1", output_tok_per_s=110.0, median_itl_ms=3.5),
]


def test_trace_servers__in_the_order_of_the_file():
    assert trace_servers(CELLS) == {"plain": [("c1", 100.0, 4.0), ("c4", 300.0, 6.0)], "fused": [("c1", 110.0, 3.5)]}


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ({"one": [("c1", 100.0, 4.0), ("c4", 300.0, 6.0)], "two": [("c1", 110.0, 3.5)]}, [(110.0, 3.5), (300.0, 6.0)]),
        ({"one": [("c1", 100.0, 4.0)], "two": [("c1", 100.0, 4.0), ("c4", 90.0, 4.0)]}, [(100.0, 4.0)]),
        ({"one": [("c1", 100.0, 4.0), ("c4", 200.0, 4.0), ("c8", 200.0, 5.0)]}, [(200.0, 4.0)]),
        ({}, []),
    ],
)
def test_find_front__points_that_none_beats_in_both(points, front):
    assert find_front(points) == front


@pytest.mark.parametrize(("servers", "has_front"), [(("plain", "fused"), True), (("plain",), False)])
def test_draw_servers__a_front_where_servers_are_told_apart(servers, has_front):
    cells = [cell for cell in CELLS if cell.server in servers]
    drawing = draw_servers(cells).drawings[0]

    assert ("front" in [shape.style for shape in drawing.shapes], FRONT in list_keys(trace_servers(cells))) == (has_front,) * 2


def test_save_curve_plot__equal_numbers_give_equal_bytes(tmp_path):
    for name in ("one.svg", "two.svg"):
        save_curve_plot(CELLS, "a sweep", tmp_path / name)

    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.svg", "two.svg"]


def test_save_curve_plot__a_sign_and_a_hint_for_each_point(tmp_path):
    save_curve_plot(CELLS, "a sweep", tmp_path / "curve.svg")
    root = parse((tmp_path / "curve.svg").read_bytes())
    signs = [one for one in root.iter() if one.get("class", "").startswith("mark ")]
    words = [one.text for one in root.iter(f"{SVG}text")]

    assert [one[0].text for one in signs if len(one)] == [
        "plain, c1: 100.0 tok/s, 4.00 ms",
        "plain, c4: 300.0 tok/s, 6.00 ms",
        "fused, c1: 110.0 tok/s, 3.50 ms",
    ]
    assert {"a sweep", "plain", "fused", "Output throughput, tok/s", "Median ITL, ms"} <= set(words)


def test_render_picture__stays_one_document_whatever_a_name_holds():
    title = "<script>alert(1)</script> & \x1b[31m"
    key = LegendEntry(sign=(), text="</text>\u202e&")

    root = parse(render_picture(title, Drawing(width=300.0, height=10.0, shapes=()), [key]))

    assert {one.tag.removeprefix(SVG) for one in root.iter()} == {"svg", "style", "rect", "text", "g"}
    assert root.get("aria-label") == "<script>alert(1)</script> &  [31m"
    assert "</text> &" in [one.text for one in root.iter(f"{SVG}text")]


def test_render_picture__its_plane_stands_below_title_and_legend():
    keys = [LegendEntry(sign=(), text=f"a rather long name {number}") for number in range(6)]
    drawing = Drawing(width=300.0, height=100.0, shapes=())
    low, high = (parse(render_picture("a title " * words, drawing, keys)) for words in (1, 20))
    heads = [float(root.findall(f"{SVG}g")[-1].get("transform").split()[-1].rstrip(")")) for root in (low, high)]
    legend = [float(one.get("transform").split()[-1].rstrip(")")) for one in low.findall(f"{SVG}g")[:-1]]

    assert legend == sorted(legend)
    assert heads[0] > legend[-1] > legend[0]
    assert heads[1] > heads[0]
    assert float(low.get("height")) == heads[0] + 100


@pytest.mark.parametrize(
    ("cells", "name", "message", "code"),
    [
        (CELLS, "curve.png", r"must end in \.svg", 2),
        (CELLS[1:2], "curve.svg", "no cell has a throughput and an ITL", 3),
        (CELLS, "missing/curve.svg", "cannot be written", 2),
    ],
)
def test_save_curve_plot__refused(tmp_path, cells, name, message, code):
    with pytest.raises(PerfgateError, match=message) as refusal:
        save_curve_plot(cells, "a sweep", tmp_path / name)

    assert refusal.value.exit_code == code

    assert list(tmp_path.iterdir()) == []


def add_round(cell, throughput, itl):
    """The same cell with a second round, on a fresh start."""
    first, *_ = cell.windows
    values = first.run.values | {"output_tok_per_s": throughput, "median_itl_ms": itl}
    again = replace(first, block=2, run=replace(first.run, values=values))
    return replace(cell, windows=(*cell.windows, again))


def test_draw_servers__bars_span_the_rounds_of_a_cell():
    cells = [add_round(CELLS[0], 120.0, 4.4), *CELLS[1:]]

    wide, narrow = draw_servers(cells).drawings

    for drawing in (wide, narrow):
        bars = [shape for shape in drawing.shapes if "whisker" in shape.style]
        assert len(bars) == 2
        assert bars[0].at["x2"] > bars[0].at["x1"]
    assert not [shape for shape in draw_servers(CELLS).drawings[0].shapes if "whisker" in shape.style]


def test_tabulate_best__says_what_starts_leave_open():
    """A lead counts only where it is larger than what starts of one server lie apart."""
    plain, fused = add_round(CELLS[0], 102.0, 4.0), add_round(CELLS[3], 112.0, 3.5)
    near = add_round(build_cell("near", "c1", output_tok_per_s=110.5, median_itl_ms=3.5), 114.0, 3.5)

    assert tabulate_best([plain, fused]).rows == [("c1", "fused", "111.0", "9.9 %", "2.0 %", "ahead")]
    assert tabulate_best([plain, fused, near]).rows[0][-1] == "not apart"
    assert tabulate_best([CELLS[0], CELLS[3]]).rows[0][-1] == "unknown: fused and plain have one start each"
    assert tabulate_best([CELLS[0], fused]).rows[0][-1] == "unknown: plain has one start"
    assert tabulate_best(CELLS[:2]).rows == []


def test_remark__a_cell_that_lacks_a_round():
    cells = [add_round(CELLS[0], 102.0, 4.0), CELLS[1], CELLS[3]]

    found = [text for text in remark(cells, 2) if "rounds" in text]

    assert found == ["fused x c1: 1 of 2 rounds count; if the matrix was interrupted, continue with --resume"]
    assert not [text for text in remark(cells, 1) if "rounds count" in text]
