"""`perfgate github jobs` and `learn`: what the nightly workflow measures, and what becomes of it."""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click

from perfgate.cli.ci.handoff import build_subject, unpack_all
from perfgate.cli.ci.judging import FILE, SETTINGS
from perfgate.cli.keeping.baseline import add
from perfgate.cli.output import add_format_option, print_json, print_result
from perfgate.errors import PerfgateError
from perfgate.github.handoff.artifact import open_artifact
from perfgate.github.outputs import format_annotation, write_outputs
from perfgate.github.settings import format_jobs, load_settings, parse_jobs


@click.command()
@SETTINGS
@add_format_option
def jobs(settings: Path, style: str) -> int:
    """Write every job of the settings as the output matrix."""
    wanted = load_settings(settings).list_jobs()
    matrix = format_jobs(wanted)
    write_outputs({"matrix": matrix})
    print_result(style, {"matrix": wanted}, f"matrix={matrix}")
    return 0


@click.command()
@click.option("--matrix", required=True, metavar="JSON", help="The jobs that `jobs` wrote.")
@click.option("--artifacts", type=FILE, required=True, metavar="DIR", help="Folder with one folder an artifact.")
@click.option("--to", "target", required=True, type=FILE, metavar="DIR", help="Folder of baselines to add to.")
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME|FILE", help="Scenario to read by; repeatable.")
@click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME")
@click.option("--head-sha", required=True, metavar="SHA", help="The commit of the main branch that both arms ran.")
@click.option("--run-id", type=click.IntRange(min=0), required=True, envvar="GITHUB_RUN_ID")
@click.option("--run-attempt", type=click.IntRange(min=0), default=1, envvar="GITHUB_RUN_ATTEMPT")
@add_format_option
def learn(matrix: str, artifacts: Path, target: Path, scenarios: tuple[str, ...], style: str, **options: Any) -> int:
    """Add the main branch's own measurements to stored baselines, for a person to review.

    A machine whose measurement is missing or became slower is left out, with a warning on the run: only a person may accept a
    slower level, with a reason. With --format json everything but the document goes to standard error.
    """
    said = []
    for job in parse_jobs(matrix):
        told = {"hardware": job.hardware, "scenario": job.scenario}
        subject = build_subject({**options, "pr": 0, "hardware": job.hardware})
        path = artifacts / f"perfgate-{job.hardware}-{job.scenario}" / f"handoff-{job.scenario}.json"
        try:
            with redirect_stdout(sys.stderr) if style == "json" else nullcontext():
                _learn(path, subject, scenarios, target)
        except PerfgateError as error:
            warning = format_annotation("warning", f"perfgate {job.hardware} {job.scenario}", str(error))
            click.echo(warning, err=style == "json")
            told["problem"] = str(error)
        said.append(told)
    if style == "json":
        print_json({"jobs": said})
    return 0


def _learn(path: Path, subject: Any, scenarios: tuple[str, ...], target: Path) -> None:

    with tempfile.TemporaryDirectory(prefix="perfgate-") as folder:
        # A baseline names its sessions by their folders, and a session counts once.
        own = Path(folder) / f"run-{subject.run_id}-{subject.run_attempt}"
        (opened,) = unpack_all(open_artifact(path, subject), scenarios, own)
        named = opened.rename(Path(folder) / f"{own.name}-{subject.hardware}")
        add.main(["--to", str(target), "--commit", subject.head_sha, str(named)], standalone_mode=False)
