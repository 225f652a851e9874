"""`perfgate gate`: the whole gate in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfgate.cli.options import add_arm_options, build_arms, choose_folder


@click.command(name="gate")
@click.argument("scenario", default="cpu-moe")
@click.option("--out", type=click.Path(path_type=Path), help="New folder for the results (default: dated, below --parent).")
@click.option("--parent", type=click.Path(path_type=Path), default=Path("perfgate-results"), show_default=True)
@click.option("--baselines", multiple=True, type=click.Path(path_type=Path), help="Folder of noise bands; repeatable.")
@add_arm_options
def command(scenario: str, out: Path | None, parent: Path, baselines: tuple[Path, ...], **options: Any) -> int:
    """Calibrate if need be, measure SCENARIO, judge it and report.

    Without options that change the candidate both arms are the same build, so that the answer should be PASS.
    """
    from perfgate.gate import Job, run_gate  # noqa: PLC0415 - what serves is imported when it serves
    from perfgate.scenario import parse_scenario, read_scenario_text  # noqa: PLC0415
    from perfgate.serving.progress import show_progress  # noqa: PLC0415

    text, source = read_scenario_text(scenario)
    parsed = parse_scenario(text, source)
    folder = choose_folder(parsed.name, out, parent)
    arms = build_arms(options)
    job = Job(scenario=parsed, text=text, arms=arms, folder=folder, baselines=baselines, model=options["model"])
    with show_progress() as progress:
        result = run_gate(job, progress)
    click.echo(result.text)
    click.echo(f"report folder: {folder}")
    return result.verdict.outcome.exit_code
