"""The page of `perfgate report --html`: what lies in a folder decides which."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from perfgate.check import judge
from perfgate.errors import InputError
from perfgate.gate.case import choose_baseline
from perfgate.readers.layer_curves import is_survey, read_survey, trace_blocks
from perfgate.readers.layer_timings import find_timings, read_timings
from perfgate.report.html.files import RawData
from perfgate.report.html.layer_sections import LayerReport, build_layer_sections, build_layers_page
from perfgate.report.html.matrix_page import build_matrix_page
from perfgate.report.html.page import Page, render_page
from perfgate.report.html.session_page import SessionReport, build_session_page
from perfgate.results.matrix_records import MATRIX_FILE
from perfgate.results.matrix_results import load_matrix
from perfgate.results.profiles import read_attribution
from perfgate.results.records import read_record
from perfgate.results.results import load_results
from perfgate.storage.journal import write_atomically
from perfgate.verdict.layers import judge_layers


def open_page(file: Path) -> None:
    """Show a page in the reader's browser; say so where none can be started."""
    if not webbrowser.open(file.resolve().as_uri()):
        click.echo(f"perfgate: no browser can be started here; open {file} yourself", err=True)


def write_html(folder: Path, file: Path, baselines: tuple[Path, ...], layers: tuple[Path, ...]) -> None:
    """Write the page of `folder` into `file`, whole or not at all; `layers` are timings that a session's page shows too."""
    content = render_page(_build_page(folder, file.parent, baselines, layers))
    try:
        write_atomically(file, content)
    except OSError as error:
        raise InputError(f"--html {file}: cannot be written ({error.strerror}); choose another file") from None


def _build_page(folder: Path, home: Path, baselines: tuple[Path, ...], layers: tuple[Path, ...]) -> Page:

    is_matrix = (folder / MATRIX_FILE).is_file()
    is_session = not is_matrix and not find_timings(folder)
    if not is_session and (baselines or layers):
        raise InputError(f"--baselines, --layers: {folder} holds no session that they could belong to; leave them out")
    if is_matrix:
        return _build_matrix_page(folder, home)
    return _build_session_page(folder, home, baselines, layers) if is_session else build_layers_page(_read_layers(folder))


def _build_matrix_page(folder: Path, home: Path) -> Page:

    matrix, cells = load_matrix(folder)
    return build_matrix_page(matrix, cells, RawData(folder=folder, home=home))


def _build_session_page(folder: Path, home: Path, baselines: tuple[Path, ...], layers: tuple[Path, ...]) -> Page:

    scenario, session = load_results(folder)
    baseline = choose_baseline(folder, baselines, scenario, session)
    judged = SessionReport(
        session=session,
        scenario=scenario,
        baseline=baseline,
        verdict=judge(session, scenario, baseline),
        record=read_record(folder),
        attribution=read_attribution(folder),
    )
    sections = build_layer_sections([_read_layers(path) for path in layers])
    return build_session_page(judged, RawData(folder=folder, home=home), sections)


def _read_layers(path: Path) -> LayerReport:
    """Timings in either form: blocks, which are judged, or a survey. Raise EvidenceError for what is neither."""
    files = find_timings(path)
    if not files:
        raise InputError(f"{path}: holds no timings of layers; give what benchmarks/kernels/test_layers.py or layer.py stored")
    if all(is_survey(file) for file in files):
        return LayerReport(source=str(path), curves=tuple(curve for file in files for curve in read_survey(file)))
    blocks = read_timings(files)
    return LayerReport(source=str(path), curves=trace_blocks(blocks), verdict=judge_layers(blocks))
