"""`perfgate ledger`: what each release of SGLang won or lost against the one before it."""

from __future__ import annotations

from pathlib import Path

import click

from perfgate.cli.options import add_torch_index_option
from perfgate.cli.output import add_format_option, print_result, write_output
from perfgate.engines.sglang_releases import ENGINE
from perfgate.releases.ledger import add_release, list_steps, write_ledger
from perfgate.releases.registry import parse_requirement
from perfgate.serving.progress import show_progress


@click.group(name="ledger")
def command() -> None:
    """Measure each release against the one before it, and show all of them."""


@command.command()
@click.argument("release", metavar="sglang==VERSION")
@click.option("--environments", type=click.Path(path_type=Path), required=True, help="Folder for environments, one a release.")
@click.option("--to", "folder", type=click.Path(path_type=Path), required=True, help="The ledger: a folder of result folders.")
@add_torch_index_option
@add_format_option
def add(*, release: str, environments: Path, folder: Path, torch_index: str | None, style: str) -> int:
    """Measure a release against the one before it on the registry, as `perfgate gate cpu-moe` does.

    Both are installed where they are not there yet. The exit code is the verdict's.
    """
    version = parse_requirement(release, ENGINE)
    with show_progress() as progress:
        target = add_release(version, environments, folder, progress, torch_index)
    [step] = [one for one in list_steps(folder) if one.folder == target]
    told = {"base": step.base, "candidate": step.candidate, "outcome": step.verdict.outcome, "folder": target}
    print_result(style, told, f"{step.base} -> {step.candidate}: {step.verdict.outcome.value}; {target}")
    return step.verdict.find_exit_code()


@command.command()
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the page there.")
def show(*, folder: Path, output: Path | None) -> None:
    """Write the ledger in FOLDER as one page of markdown, each session judged anew from its raw windows."""
    write_output(write_ledger(list_steps(folder)).encode(), output)
