"""`perfgate demo`: a session that was measured on a GPU, judged here and now, without a GPU or a server."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

import perfgate
from perfgate.check import Case, judge
from perfgate.cli.output import open_page, say, write_output
from perfgate.cli.reading.report import PAGE
from perfgate.core import Outcome, Role, Window
from perfgate.errors import InputError
from perfgate.gate.case import load_case
from perfgate.gate.pages import write_page
from perfgate.gate.reports import build_report
from perfgate.report.render import render_text
from perfgate.report.table import choose_layout
from perfgate.results.folders import DEMOS
from perfgate.results.records import SESSION_FILE
from perfgate.storage.places import write_file
from perfgate.storage.rounding import VERDICT_FILE, format_verdict

SPEED = 60.0
"""How many times faster than it was measured `--live` plays a session."""
DUMMY = "gpt-oss-20b's shape in bf16 with plain dummy weights: every token took the same 4 of 32 experts"
ROUTED = "gpt-oss-20b's shape in MXFP4, with random weights whose router chooses by token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded session that ships: where a checkout keeps it, and in a sentence what was measured."""

    folder: str
    about: str


RECORDINGS = {
    "regression": Recording(
        folder="benchmarks/h100/serving/mxfp4-mixed-c16-gpu-15-profiled",
        about=f"One NVIDIA H100, {ROUTED}. The candidate's GPU was slowed down on purpose, by 5.6 % of a decode step.",
    ),
    "pass": Recording(
        folder="benchmarks/h200/serving/routed/mxfp4-mixed-c16-graphs-aa-2",
        about=f"One NVIDIA H200, {ROUTED}. Base and candidate are the same build.",
    ),
    "inconclusive": Recording(
        folder="benchmarks/h200/serving/routed/mxfp4-mixed-c16-graphs-aa-3",
        about=f"One NVIDIA H200, {ROUTED}. Base and candidate are the same build; four blocks were too few on this machine.",
    ),
    "invalid": Recording(
        folder="benchmarks/h200/serving/routed/dummy-closed-c16",
        about=f"One NVIDIA H200, {DUMMY}. perfgate asked the router, and refused to measure a MoE kernel on it.",
    ),
}


@click.command(name="demo")
@click.argument("outcome", type=click.Choice(list(RECORDINGS)), default="regression")
@click.option(
    "--live", is_flag=True, help=f"Play windows and looks as they came, {SPEED:g} times faster than they were measured."
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Where the copy goes [default: perfgate-demo/OUTCOME]."
)
@click.option("--open", "is_opened", is_flag=True, help="Open the page in a browser.")
def command(*, outcome: str, live: bool, out: Path | None, is_opened: bool) -> int:
    """Judge a session that was recorded on a GPU: verdict, page and next commands. Needs no GPU and no server.

    The exit code is always 0.
    """
    recording = RECORDINGS[outcome]
    folder = copy_recording(outcome, out or DEMOS / outcome)
    say(f"{recording.about}\n")
    case = load_case(folder)
    if live:
        for pause_s, line in play(case):
            time.sleep(pause_s / SPEED)
            say(line)
        say()
    report = build_report(folder, case)
    write_output(render_text(report, choose_layout()).encode(), None, is_text=True)
    # As a gate leaves it, so that `perfgate list` knows the outcome.
    write_file(format_verdict(report.verdict), folder / VERDICT_FILE)
    write_page(folder, folder / PAGE, ())
    say(f"\npage: {folder / PAGE}\n\nnext:")
    for line in list_next(outcome, folder):
        say(f"  {line}")
    if is_opened:
        open_page(folder / PAGE)
    return 0


def list_next(outcome: str, folder: Path) -> Iterator[str]:
    """Three commands that a reader of the demo types next."""
    other = "invalid" if outcome == "regression" else "regression"
    rows = (
        (f"perfgate explain {folder}", "why"),
        (f"perfgate demo {other}", "another outcome"),
        ("perfgate doctor", "what this machine can measure"),
    )
    width = max(len(command) for command, _ in rows)
    yield from (f"{command:{width}}  # {meaning}" for command, meaning in rows)


def copy_recording(outcome: str, target: Path) -> Path:
    """Copy a recording to `target`, where all commands can read it. Raise InputError where something else lies there."""
    source = find_recording(outcome)
    if target.exists():
        kept = target / SESSION_FILE
        if not kept.is_file() or kept.read_bytes() != (source / SESSION_FILE).read_bytes():
            raise InputError(f"{target}: holds something else than this demo; give another folder with --out")
        return target
    # Half a copy would pass for the whole one the next time.
    part = target.with_name(f".{target.name}.part")
    try:
        shutil.copytree(source, part, dirs_exist_ok=True)
        part.replace(target)
    except OSError as error:
        reason = error.args[0][0][-1] if isinstance(error, shutil.Error) else error.strerror
        raise InputError(f"{target}: cannot be written ({reason}); give another folder with --out") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def find_recording(outcome: str) -> Path:
    """Where a recording lies: in the installed package, or in a checkout of the project. Raise InputError where in neither."""
    package = Path(perfgate.__file__).parent
    places = (package / "demos" / outcome, package.parent / RECORDINGS[outcome].folder)
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise InputError(f"{package}: holds no demos/{outcome}; install perfgate from its wheel or run it from its checkout")
    return found


def play(case: Case) -> Iterator[tuple[float, str]]:
    """Each line of a session as it came, with the seconds that went before it."""
    begun_s = 0.0
    windows = sorted(case.session.windows, key=lambda window: window.ended_s)
    for number, window in enumerate(windows):
        if number == 0 or window.block != windows[number - 1].block:
            yield 0.0, f"block {window.block}"
        yield window.ended_s - begun_s, _describe(window)
        begun_s = window.ended_s
        is_last = number + 1 == len(windows) or windows[number + 1].block != window.block
        if is_last and window.block in case.scenario.blocks.looks:
            yield 0.0, _look(case, window.block)


def _describe(window: Window) -> str:
    throughput, p99 = (window.run.values.get(name, float("nan")) for name in ("output_tok_per_s", "p99_itl_ms"))
    minutes, seconds = divmod(int(window.ended_s), 60)
    return f"[{minutes:2d}:{seconds:02d}]   {window.arm:9} {window.role:8} {throughput:8.1f} tok/s   P99 ITL {p99:7.2f} ms"


def _look(case: Case, block: int) -> str:
    """What the rule said after `block`."""
    seen = tuple(window for window in case.session.windows if window.block <= block)
    outcome = judge(replace(case.session, windows=seen), case.scenario, case.baseline).outcome
    more = "measure another block" if outcome is Outcome.INCONCLUSIVE and block < case.scenario.blocks.looks[-1] else "stop"
    measured = sum(window.role is not Role.WARMUP for window in seen)
    return f"look after block {block}, {measured} windows: {outcome}; {more}"
