"""`perfgate check`: the verdict of a result folder, computed anew from its raw windows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfgate.cli.output import FILE, say, write_output
from perfgate.cli.sections import add_uncalibrated_option
from perfgate.core import Verdict
from perfgate.errors import InputError
from perfgate.gate.case import load_case
from perfgate.gate.reports import build_report
from perfgate.readers.layer_timings import find_timings, holds_timings, read_timings
from perfgate.report.junit import format_junit
from perfgate.report.layers import render_layers
from perfgate.report.render import render_as
from perfgate.report.table import choose_layout, lay_out
from perfgate.results.records import SESSION_FILE
from perfgate.storage.rounding import VERDICT_FILE, format_verdict
from perfgate.verdict.layers import judge_layers


@click.command(name="check")
@click.argument("folder", metavar="RESULT_DIR", type=FILE)
@click.option(
    "--baselines",
    multiple=True,
    type=FILE,
    metavar="DIR",
    help="Folder of baselines; may be given several times. Default: the one kept in RESULT_DIR, then this machine's.",
)
@click.option("--format", "style", type=click.Choice(["text", "markdown", "json", "junit"]), default="text", show_default=True)
@click.option("--output", type=FILE, metavar="FILE", help="Write to FILE instead of stdout.")
@click.option(
    "--scenarios-in-pr",
    type=click.IntRange(min=1),
    help="Number of scenarios that judge this pull request; they share one error budget (default: as in RESULT_DIR).",
)
@click.option(
    "--has-base/--no-base",
    default=None,
    help="Whether a base can be built; without one, a candidate measured alone can fail (default: as in RESULT_DIR).",
)
@add_uncalibrated_option
def command(
    *, folder: Path, baselines: tuple[Path, ...], style: str, output: Path | None, uncalibrated: str, **facts: Any
) -> int:
    """Judge a result folder again from its raw windows. The result has the same bytes on every machine.

    RESULT_DIR may also hold timings of MoE layers, stored by pytest-benchmark: one file is one block.

    Exit code: 0 pass or improved, 1 regression, 2 bad input, 3 inconclusive or invalid.
    """
    if timings := find_timings(folder):
        if folder.is_dir() and not holds_timings(timings[0]):
            raise InputError(
                f"{folder}: holds no {SESSION_FILE} and no timings of layers, so it is no result folder; give one that "
                "`perfgate gate`, `run` or `demo` wrote: `perfgate list` names them"
            )
        if baselines or facts["has_base"] is not None:
            raise InputError(
                "--baselines, --no-base: layers are judged by the control that their own timings hold; leave it out"
            )
        layers = judge_layers(read_timings(timings), scenarios_in_pr=facts["scenarios_in_pr"] or 1)
        write_output(render_layer_verdict(style, layers), output)
        return layers.outcome.exit_code
    report = build_report(folder, load_case(folder, baselines, **facts))
    recorded = folder / VERDICT_FILE
    if recorded.is_file() and recorded.read_bytes() != format_verdict(report.verdict):
        say(f"perfgate: {recorded} differs: it was made with another baseline, rule or options", err=True)
    write_output(render_as(style, report, choose_layout() if output is None else lay_out), output, is_text=style == "text")
    return report.verdict.find_exit_code(uncalibrated)


def render_layer_verdict(style: str, verdict: Verdict) -> bytes:
    """Write the verdict on layers in one of the formats."""
    if style == "json":
        return format_verdict(verdict)
    if style == "junit":
        return format_junit(verdict)
    return render_layers(verdict, is_markdown=style == "markdown").encode()
