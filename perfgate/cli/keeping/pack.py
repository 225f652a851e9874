"""`perfgate pack`: a finished session in few files and less than half of the bytes."""

from __future__ import annotations

from pathlib import Path

import click

from perfgate.cli.output import FILE, say
from perfgate.results.raw.packer import pack_folder

BYTES_PER_MB = 1e6


@click.command(name="pack")
@click.argument("folders", nargs=-1, required=True, metavar="RESULT_DIRS...", type=FILE)
@click.option("--cut-off", is_flag=True, help="Also pack an interrupted session, which can then not be continued.")
def command(*, folders: tuple[Path, ...], cut_off: bool) -> int:
    """Move the raw files of finished sessions into one file each, raw.tar.xz, that all commands read.

    Nothing is lost: the packed file is read back and compared before any file is removed, and every verdict stays the same.
    """
    for folder in folders:
        packed = pack_folder(folder, is_cut_off=cut_off)
        sizes = f"{packed.before_bytes / BYTES_PER_MB:.2f} MB became {packed.after_bytes / BYTES_PER_MB:.2f} MB"
        say(f"{folder}: {packed.files} files, {sizes}", err=True)
    return 0
