"""`perfgate engine`: the serving engine of the CPU scenarios, its releases, and what each of them can do here."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from perfgate.cli.options import add_torch_index_option
from perfgate.cli.output import FILE, add_format_option, print_json, print_result, say
from perfgate.core import Outcome
from perfgate.engines.insides import order_version
from perfgate.engines.sglang_insides import SGLANG_INSIDES
from perfgate.engines.sglang_releases import ENGINE
from perfgate.errors import InputError
from perfgate.releases.compatibility import list_unexplained, write_compatibility
from perfgate.releases.registry import find_next, list_versions, require_release
from perfgate.releases.suite import ReleaseRecord, load_releases, store_release, try_release
from perfgate.serving.engine.engine_install import PACKAGES, REQUIRED, install_engine, install_release, read_version
from perfgate.serving.progress import show_progress
from perfgate.storage.places import open_folder

FAILED = Outcome.INVALID.exit_code
"""The exit code where a release lacks something, and no reason is written down."""


_RECORD = click.option("--record", type=FILE, metavar="FOLDER", help="Folder for the findings, one file per release.")


@click.group(name="engine")
def command() -> None:
    """Install the CPU serving engine or one of its releases, and test what a release can do."""


@command.command()
@click.argument("release", metavar="[VERSION]", required=False)
@click.argument("folder", metavar="[DIR]", required=False, type=FILE)
@add_torch_index_option
@add_format_option
def install(*, release: str | None, folder: Path | None, torch_index: str | None, style: str) -> None:
    """Install SGLang in addition to the extra `cpu-engine`; does nothing if it is installed.

    With VERSION and DIR: create an environment for that release in DIR, for --python and --candidate-python.
    """
    if release is not None:
        if folder is None:
            raise InputError(f"{release}: give the folder of its environment, too: perfgate engine install {release} DIR")
        python = install_release(release, folder, torch_index)
        print_result(style, {"python": python, "installed": [f"{ENGINE}=={release}"]}, python)
        return
    if torch_index is not None:
        raise InputError("--torch-index: goes with VERSION and DIR; into this Python, pip installs the extra first")
    installed = install_engine()
    if style == "json":
        print_json({"python": sys.executable, "installed": installed})
        return
    say(f"installed {', '.join(installed)}" if installed else f"engine is complete in {sys.executable}")


@command.command()
@add_format_option
def show(style: str) -> None:
    """Print the versions that serve."""
    versions = {package: read_version(package) for package in [pin.partition("==")[0] for pin in PACKAGES] + list(REQUIRED)}
    if style == "json":
        print_json(versions)
        return
    for package, version in versions.items():
        say(f"{package:16} {version}")


@command.command(name="try")
@click.argument("python", metavar="[PYTHON]", default=sys.executable)
@click.option("--out", type=FILE, help="New folder for logs and raw outputs (default: a temporary one).")
@_RECORD
@add_format_option
def try_(*, python: str, out: Path | None, record: Path | None, style: str) -> int:
    """Start PYTHON's release with a tiny model on this machine's CPU, and test everything that perfgate needs.

    PYTHON is an environment's Python (default: the one running perfgate).

    Exit code 0: everything works, or fails for a known reason; else 3.
    """
    return _tell(_try(python, out, record), style)


@command.command()
@click.option("--environments", type=FILE, required=True, help="Folder for environments, one per release.")
@click.option("--after", help="The previous release (default: the last recorded one, else the last that perfgate knows).")
@_RECORD
@add_torch_index_option
@add_format_option
def bump(*, environments: Path, after: str | None, record: Path | None, torch_index: str | None, style: str) -> int:
    """Install the next release of the package index, test it as `perfgate engine try` does, and report what failed.

    Exit code 0 if there is no newer release.
    """
    versions = list_versions(ENGINE)
    if after is not None:
        require_release(versions, after)
    known = after or max((SGLANG_INSIDES.last, *_list_recorded(record)), key=order_version)
    release = find_next(versions, known)
    if release is None:
        print_result(style, {"package": ENGINE, "known": known, "next": None}, f"{ENGINE} {known} is the newest release")
        return 0
    python = install_release(release, environments / release, torch_index)
    return _tell(_try(str(python), None, record), style)


@command.command()
@click.argument("record", metavar="FOLDER", type=FILE)
def table(record: Path) -> None:
    """Print what each release recorded in FOLDER can do, as one page of markdown."""
    click.echo(write_compatibility(load_releases(record)), nl=False)


def _list_recorded(record: Path | None) -> list[str]:
    found = [] if record is None or not record.is_dir() else load_releases(record)
    return [one.version for one in found if one.package == ENGINE]


def _try(python: str, out: Path | None, record: Path | None) -> ReleaseRecord:
    if record is not None:
        open_folder(record, "--record")
    folder = out or Path(tempfile.mkdtemp(prefix="perfgate-engine-")) / "logs"
    with show_progress() as progress:
        progress.step(f"logs and raw outputs in {folder}")
        found = try_release(python, folder, progress)
    if record is not None:
        progress.step(f"written to {store_release(found, record)}")
    return found


def _tell(found: ReleaseRecord, style: str) -> int:
    unexplained = list_unexplained(found)
    lines = [f"{row.name}: {row.said}" for row in unexplained]
    states = [row.state for row in found.rows if row.state != "inapplicable"]
    print_result(
        style, asdict(found), *lines, f"{found.package} {found.version}: {states.count('works')} of {len(states)} work"
    )
    return FAILED if unexplained else 0
