"""What is made of a result folder to look at: a page that works offline. Apart, since a verdict needs nothing that draws."""

from __future__ import annotations

from pathlib import Path

from perfgate.errors import InputError
from perfgate.gate.case import load_case
from perfgate.gate.reports import build_report
from perfgate.readers.layer_timings import find_timings, is_survey, read_survey, read_timings, trace_blocks
from perfgate.report.html.files import RawData
from perfgate.report.html.layer_sections import LayerReport, build_layer_sections, build_layers_page
from perfgate.report.html.matrix_page import build_matrix_page
from perfgate.report.html.page import Page, render_page
from perfgate.report.html.session_page import build_session_page
from perfgate.results.matrix import MATRIX_FILE, load_matrix
from perfgate.results.records import read_record
from perfgate.storage.places import write_file
from perfgate.verdict.cells import judge_cells
from perfgate.verdict.layers import judge_layers


def write_page(folder: Path, file: Path, baselines: tuple[Path, ...], layers: tuple[Path, ...] = ()) -> None:
    """Write the page of `folder` into `file`, whole or not at all; what lies in the folder decides which page it is.

    `baselines` are folders of stored noise that the user named, `layers` timings that a session's page shows too. Raise
    InputError where the file cannot be written, or where the folder holds no session that those could belong to.
    """
    write_file(render_page(_build_page(folder, file.parent, baselines, layers)), file, "--html")


def _build_page(folder: Path, home: Path, baselines: tuple[Path, ...], layers: tuple[Path, ...]) -> Page:
    raw = RawData(folder=folder, home=home)
    is_matrix = (folder / MATRIX_FILE).is_file()
    if (baselines or layers) and (is_matrix or find_timings(folder)):
        raise InputError(f"--baselines, --layers: {folder} holds no session that they could belong to; leave them out")
    if is_matrix:
        matrix, cells = load_matrix(folder)
        return build_matrix_page(matrix, judge_cells(matrix, cells), raw)
    if find_timings(folder):
        return build_layers_page(_read_layers(folder))
    report = build_report(folder, load_case(folder, baselines))
    sections = build_layer_sections([_read_layers(path) for path in layers])
    return build_session_page(report, read_record(folder), raw, sections)


def _read_layers(path: Path) -> LayerReport:
    """Timings in either form: blocks, which are judged, or a survey. Raise EvidenceError for what is neither."""
    files = find_timings(path)
    if not files:
        raise InputError(f"{path}: holds no timings of layers; give what benchmarks/kernels/test_layers.py or layer.py stored")
    if all(is_survey(file) for file in files):
        return LayerReport(source=str(path), curves=tuple(curve for file in files for curve in read_survey(file)))
    blocks = read_timings(files)
    return LayerReport(source=str(path), curves=trace_blocks(blocks), verdict=judge_layers(blocks))
