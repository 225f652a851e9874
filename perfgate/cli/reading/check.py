"""`perfgate check`: the verdict of a result folder, computed anew from its raw windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from perfgate.check import judge
from perfgate.cli.options import add_uncalibrated_option
from perfgate.core import Verdict
from perfgate.errors import InputError
from perfgate.evidence import Session
from perfgate.gate.case import choose_baseline
from perfgate.readers.layer_timings import find_timings, read_timings
from perfgate.report.layers import render_layers
from perfgate.report.render import Case, Fold, render_case, render_text
from perfgate.report.table import choose_layout, lay_out
from perfgate.results.profiles import read_attribution
from perfgate.results.results import load_results
from perfgate.scenario.schema import Scenario
from perfgate.storage.journal import write_atomically
from perfgate.storage.rounding import VERDICT_FILE, format_verdict
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.layers import judge_layers

LAYER_DIR = "layers"
"""Below a result folder: timings of MoE layers that were taken beside the session, which its comment then shows."""


@click.command(name="check")
@click.argument("folder", metavar="RESULT_DIR", type=click.Path(path_type=Path))
@click.option(
    "--baselines",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of stored noise bands; may be given several times. Default: the one kept in RESULT_DIR, then this machine's.",
)
@click.option("--format", "style", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write there instead of to stdout.")
@click.option(
    "--scenarios-in-pr",
    type=click.IntRange(min=1),
    help="How many scenarios judge this pull request; they share one error budget (default: what RESULT_DIR says).",
)
@click.option(
    "--has-base/--no-base",
    default=None,
    help="Whether a base can be built at all; without one a candidate alone is the last word (default: what RESULT_DIR says).",
)
@add_uncalibrated_option
def command(
    *, folder: Path, baselines: tuple[Path, ...], style: str, output: Path | None, uncalibrated: str, **facts: Any
) -> int:
    """Judge a result folder again, from raw windows alone: the same bytes on any machine.

    RESULT_DIR may also hold timings of MoE layers, stored by pytest-benchmark: one file is one block.

    Exit code: 0 pass or improved, 1 regression, 2 bad input, 3 inconclusive or invalid.
    """
    if timings := find_timings(folder):
        if baselines or facts["has_base"] is not None:
            raise InputError(
                "--baselines, --no-base: layers are judged by the control that their own timings hold; leave it out"
            )
        layers = judge_layers(read_timings(timings), scenarios_in_pr=facts["scenarios_in_pr"] or 1)
        write(render_layer_verdict(style, layers), output)
        return layers.outcome.exit_code
    scenario, session = load_results(folder)
    session = replace(session, **{name: fact for name, fact in facts.items() if fact is not None})
    baseline = choose_baseline(folder, baselines, scenario, session)
    verdict = judge(session, scenario, baseline)
    recorded = folder / VERDICT_FILE
    if recorded.is_file() and recorded.read_bytes() != format_verdict(verdict):
        click.echo(f"perfgate: {recorded} says otherwise: it was made with another baseline, rule or options", err=True)
    write(render(style, build_case(folder, (verdict, session, scenario, baseline)), output), output)
    return verdict.find_exit_code(uncalibrated)


def write(content: bytes, output: Path | None) -> None:
    """Print, or replace a file. InputError where it cannot be written."""
    if output is None:
        click.echo(content, nl=False)
        return
    try:
        write_atomically(output, content)
    except OSError as error:
        raise InputError(f"--output {output}: cannot be written ({error.strerror})") from None


def render_layer_verdict(style: str, verdict: Verdict) -> bytes:
    """Write the verdict on layers in one of the three formats."""
    if style == "json":
        return format_verdict(verdict)

    return render_layers(verdict, is_markdown=style == "markdown").encode()


def render(style: str, case: Case, output: Path | None) -> bytes:
    """Write a case in one of the three formats; a text for standard output has its table drawn if that is a terminal."""
    if style == "json":
        return format_verdict(case.verdict)
    if style == "text":
        lay = choose_layout() if output is None else lay_out
        return render_text(case, lay).encode()
    return render_case(case, Fold.NOTHING).encode()


def build_case(folder: Path, judged: tuple[Verdict, Session, Scenario, Baseline | None], link: str = "") -> Case:
    """Add to a verdict what else its folder holds: profiles of both arms, and timings of layers below LAYER_DIR."""
    verdict, session, scenario, baseline = judged
    timings = find_timings(folder / LAYER_DIR)
    return Case(
        verdict=verdict,
        session=session,
        scenario=scenario,
        baseline=baseline,
        attribution=read_attribution(folder),
        layers=judge_layers(read_timings(timings)) if timings else None,
        link=link,
    )
