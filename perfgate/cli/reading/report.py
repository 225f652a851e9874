"""`perfgate report`: the pull request comment of a result folder, judged from its raw windows."""

from __future__ import annotations

import re
from pathlib import Path

import click
from click.core import ParameterSource

from perfgate.cli.output import FILE, open_page, say, write_output
from perfgate.errors import InputError
from perfgate.gate.case import load_case
from perfgate.gate.pages import write_page
from perfgate.gate.reports import build_report
from perfgate.report.render import render_as
from perfgate.report.table import choose_layout, lay_out
from perfgate.results.folders import find_latest, require_apart
from perfgate.storage.stream import STREAM

PAGE = "report.html"


@click.command(name="report")
@click.argument("folder", metavar="[RESULT_DIR]", type=FILE, required=False)
@click.option("--output", metavar="FILE", type=FILE, help="Write to FILE instead of standard output.")
@click.option(
    "--baselines",
    metavar="DIR",
    multiple=True,
    type=FILE,
    help="Folder of baselines; may be given several times. Default: as for `perfgate check`.",
)
@click.option(
    "--html",
    metavar="FILE",
    type=FILE,
    help="Write a page with figures to FILE (- is standard output); it works offline. Only --output then writes the comment.",
)
@click.option(
    "--layers",
    metavar="PATH",
    multiple=True,
    type=FILE,
    help="Timings of MoE layers for the page: a JSON file or a folder of them; may be given several times.",
)
@click.option("--open", "is_opened", is_flag=True, help="Open the page in a browser; without --html it goes into RESULT_DIR.")
@click.option("--link", metavar="URL", default="", help="Address of the full report, for a link in the comment.")
@click.option("--format", "style", type=click.Choice(["markdown", "text", "json"]), default="markdown", show_default=True)
def command(
    *,
    folder: Path | None,
    output: Path | None,
    baselines: tuple[Path, ...],
    html: Path | None,
    layers: tuple[Path, ...],
    is_opened: bool,
    link: str,
    style: str,
) -> int:
    """Judge RESULT_DIR again and render the verdict as a comment, or as a page with figures.

    RESULT_DIR defaults to the newest result in perfgate-results. With --html it may also be the folder of a matrix, or
    timings of MoE layers.

    The exit code is always 0, so that a script can post the comment; `perfgate check` has the verdict's.
    """
    folder = folder or find_latest()
    html = folder / PAGE if is_opened and html is None else html
    if is_opened and html == STREAM:
        raise InputError("--open: a browser opens a file; give --html FILE in place of -")
    outputs = {"--html": html, "--output": output}
    require_apart({option: path for option, path in outputs.items() if path is not None}, [folder])
    if html is not None and output is None:
        refuse_what_only_a_comment_takes(link)
    if html is not None:
        write_page(folder, html, baselines, layers)
        say(f"page: {html}", err=True)
        if is_opened:
            open_page(html)
        if output is None:
            return 0
    elif layers:
        raise InputError("--layers: only a page shows timings of layers; give --html FILE too")

    report = build_report(folder, load_case(folder, baselines), check_link(link))
    write_output(render_as(style, report, choose_layout() if output is None else lay_out), output, is_text=style == "text")
    return 0


def refuse_what_only_a_comment_takes(link: str) -> None:
    """Raise InputError where --format or --link were given to a call that writes no comment."""
    is_style_given = click.get_current_context().get_parameter_source("style") is not ParameterSource.DEFAULT
    if is_style_given or link:
        name = "--format" if is_style_given else "--link"
        raise InputError(f"{name}: is for the comment, which --html alone does not write; give --output FILE too")


def check_link(link: str) -> str:
    """Return an address that may stand in markdown as it is. Raise InputError for any other."""
    if link and not re.fullmatch(r"https?://[A-Za-z0-9._~:/?#@!$&'*+,;=%-]+", link):
        raise InputError(f"--link {link[:80]!r}: no address; give one that begins with https:// and has no spaces or brackets")
    return link
