"""The page of `perfgate report --html`: what lies in a folder decides which."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfgate.errors import InputError

if TYPE_CHECKING:
    from perfgate.report.html.layer_sections import LayerReport
    from perfgate.report.html.page import Page


def write_html(folder: Path, file: Path, baselines: tuple[Path, ...], layers: tuple[Path, ...]) -> None:
    """Write the page of `folder` into `file`, whole or not at all; `layers` are timings that a session's page shows too."""
    from perfgate.report.html.render import render_page  # noqa: PLC0415
    from perfgate.storage.journal import write_atomically  # noqa: PLC0415 - these cost what `perfgate --help` must not pay

    content = render_page(_build_page(folder, file.parent, baselines, layers))
    try:
        write_atomically(file, content)
    except OSError as error:
        raise InputError(f"--html {file}: cannot be written ({error.strerror}); choose another file") from None


def _build_page(folder: Path, home: Path, baselines: tuple[Path, ...], layers: tuple[Path, ...]) -> Page:
    from perfgate.readers.layer_timings import find_timings  # noqa: PLC0415 - as above
    from perfgate.report.html.layer_sections import build_layers_page  # noqa: PLC0415
    from perfgate.results.matrix_records import MATRIX_FILE  # noqa: PLC0415

    is_matrix = (folder / MATRIX_FILE).is_file()
    is_session = not is_matrix and not find_timings(folder)
    if not is_session and (baselines or layers):
        raise InputError(f"--baselines, --layers: {folder} holds no session that they could belong to; leave them out")
    if is_matrix:
        return _build_matrix_page(folder, home)
    return _build_session_page(folder, home, baselines, layers) if is_session else build_layers_page(_read_layers(folder))


def _build_matrix_page(folder: Path, home: Path) -> Page:
    from perfgate.report.html.files import RawData  # noqa: PLC0415
    from perfgate.report.html.matrix_page import build_matrix_page  # noqa: PLC0415
    from perfgate.results.matrix_results import load_matrix  # noqa: PLC0415 - as above

    matrix, cells = load_matrix(folder)
    return build_matrix_page(matrix, cells, RawData(folder=folder, home=home))


def _build_session_page(folder: Path, home: Path, baselines: tuple[Path, ...], layers: tuple[Path, ...]) -> Page:
    from perfgate.check import judge  # noqa: PLC0415
    from perfgate.gate.case import choose_baseline  # noqa: PLC0415 - as above
    from perfgate.report.html.files import RawData  # noqa: PLC0415
    from perfgate.report.html.layer_sections import build_layer_sections  # noqa: PLC0415
    from perfgate.report.html.session_page import Judged, build_session_page  # noqa: PLC0415
    from perfgate.results.profiles import read_attribution  # noqa: PLC0415
    from perfgate.results.records import read_record  # noqa: PLC0415
    from perfgate.results.results import load_results  # noqa: PLC0415

    scenario, session = load_results(folder)
    baseline = choose_baseline(folder, baselines, scenario, session)
    judged = Judged(
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
    from perfgate.readers.layer_curves import is_survey, read_survey, trace_blocks  # noqa: PLC0415 - as above
    from perfgate.readers.layer_timings import find_timings, read_timings  # noqa: PLC0415
    from perfgate.report.html.layer_sections import LayerReport  # noqa: PLC0415
    from perfgate.verdict.layers import judge_layers  # noqa: PLC0415

    files = find_timings(path)
    if not files:
        raise InputError(f"{path}: holds no timings of layers; give what benchmarks/kernels/test_layers.py or layer.py stored")
    if all(is_survey(file) for file in files):
        return LayerReport(source=str(path), curves=tuple(curve for file in files for curve in read_survey(file)))
    blocks = read_timings(files)
    return LayerReport(source=str(path), curves=trace_blocks(blocks), verdict=judge_layers(blocks))
