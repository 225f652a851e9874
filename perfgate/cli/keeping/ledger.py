"""`perfgate ledger`: what each release of SGLang won or lost against the one before it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from perfgate.cli.options import add_torch_index_option
from perfgate.cli.output import FILE, add_format_option, print_result, write_output
from perfgate.core import Arm, Outcome
from perfgate.engines.sglang_releases import ENGINE
from perfgate.errors import InputError
from perfgate.releases.capabilities import STARTS
from perfgate.releases.ledger import LedgerRow, ReleaseStep, add_release, add_session, load_rows, prepare_step, write_ledger
from perfgate.releases.registry import parse_requirement
from perfgate.releases.suite import try_release
from perfgate.serving.progress import Progress, show_progress


@click.group(name="ledger")
def command() -> None:
    """Measure each release against the one before it, and show all of them."""


@command.command()
@click.argument("release", metavar="sglang==VERSION")
@click.option("--environments", type=FILE, help="Folder for environments, one per release.")
@click.option("--session", type=FILE, metavar="FOLDER", help="Measure nothing: add a session that was measured elsewhere.")
@click.option("--to", "folder", type=FILE, required=True, help="The ledger: a folder with one file per row.")
@click.option("--check", "is_checked", is_flag=True, help="Only check that both releases start and answer.")
@add_torch_index_option
@add_format_option
def add(
    *,
    release: str,
    environments: Path | None,
    session: Path | None,
    folder: Path,
    is_checked: bool,
    torch_index: str | None,
    style: str,
) -> int:
    """Measure a release against the previous one in the package index, as `perfgate gate cpu-moe` does, and write its row.

    Releases that are missing are installed first. The same command continues an interrupted session. Sessions are kept below
    the folder of environments, rows of a few KB in the ledger. The exit code is the verdict's.

    With --check nothing is measured: each release starts, generates a few tokens and stops.

    With --session the row is that of a finished or interrupted session of any scenario on any machine, whose candidate is the
    release and whose base is an earlier one. That folder is not changed.
    """
    version = parse_requirement(release, ENGINE)
    if session is not None and not (environments or is_checked or torch_index):
        return _tell(add_session(version, session, folder), folder, style)
    if session is not None or environments is None:
        raise InputError("give --environments, to measure the release here, or --session alone, to add what was measured")
    with show_progress() as progress:
        if is_checked:
            return _check(prepare_step(version, environments, progress, torch_index), progress, style)
        row = add_release(version, environments, folder, progress, torch_index)
    return _tell(row, folder, style)


def _tell(row: LedgerRow, folder: Path, style: str) -> int:
    told = {"base": row.base, "candidate": row.candidate, "outcome": row.outcome, "row": folder / row.name}
    print_result(style, told, f"{row.base} -> {row.candidate}: {row.outcome.value}; {folder / row.name}")
    return row.outcome.exit_code


def _check(step: ReleaseStep, progress: Progress, style: str) -> int:
    names = {Arm.BASE: step.base, Arm.CANDIDATE: step.candidate}
    with tempfile.TemporaryDirectory(prefix="perfgate-ledger-") as folder:
        found = {
            arm: try_release(str(python), Path(folder) / arm.value, progress, STARTS) for arm, python in step.pythons.items()
        }
    failed = [f"{names[arm]}: {row.name}: {row.said}" for arm, one in found.items() for row in one.failed]
    print_result(style, {"failed": failed}, *failed, f"{step.base} -> {step.candidate}: {'fails' if failed else 'both serve'}")
    return Outcome.INVALID.exit_code if failed else 0


@command.command()
@click.argument("folder", metavar="FOLDER", type=FILE)
@click.option("--output", type=FILE, metavar="FILE", help="Write the page to FILE instead of stdout.")
def show(*, folder: Path, output: Path | None) -> None:
    """Write the ledger in FOLDER as one page of markdown."""
    write_output(write_ledger(load_rows(folder)).encode(), output)
