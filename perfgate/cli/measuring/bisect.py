"""`perfgate bisect`: which commit made it slower, for a noisy measurement and a given number of GPU-minutes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import orjson
from click.core import ParameterSource

from perfgate import __version__
from perfgate.bisection.guard import Guard
from perfgate.bisection.loop import SearchLoop
from perfgate.bisection.record import SEARCH_FILE, begin
from perfgate.bisection.repository import Line, read_line
from perfgate.bisection.search import Ending
from perfgate.bisection.view import Found, describe, tell
from perfgate.cli.completion import complete_scenario
from perfgate.cli.given import Number, Ratio
from perfgate.cli.measuring.searching import SearchPlan, plan_commanded, plan_served
from perfgate.cli.options import PAIRS
from perfgate.cli.output import FILE, add_format_option, say
from perfgate.cli.sections import SectionCommand, add_options, folder_option, option_of
from perfgate.errors import InputError
from perfgate.machine.folder_lock import lock_folder
from perfgate.metrics import METRICS
from perfgate.report.table import choose_layout
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.progress import show_progress
from perfgate.storage.journal import explain_stop

_search_option = option_of("The search")
_served_option = option_of("With --scenario")
_commanded_option = option_of("With --command")
_SUBJECT = (
    _search_option(
        "--scenario",
        metavar="NAME|FILE",
        shell_complete=complete_scenario,
        help="Serve each commit, and measure this scenario.",
    ),
    _search_option("--command", "shell", metavar="CMD", help="Run this in each commit's checkout: it prints a number or JSON."),
    _search_option("--repo", type=FILE, default=Path(), show_default=True, metavar="PATH", help="The repository."),
    _search_option("--build", default="", metavar="CMD", help="Run this once in each fresh checkout."),
)
SEARCHED = (
    _search_option(
        "--budget",
        type=Number(min=0, min_open=True),
        required=True,
        metavar="GPU_MIN",
        help="Minutes of this machine, times the GPUs that a server takes; a command counts as one.",
    ),
    _search_option("--metric", default="", metavar="M", help="Search by this metric (default: the one with the largest loss)."),
    _search_option("--confidence", type=Number(0.5, 1, max_open=True), default=0.95, show_default=True),
    folder_option("--out", type=FILE, required=True, metavar="DIR", help="Folder of the search."),
    folder_option("--resume", is_flag=True, help="Continue the search in --out that was interrupted or used up its budget."),
    add_format_option,
)
_ENGINE = (
    _served_option(
        "--python",
        default=sys.executable,
        help="Python with the engine's dependencies; each commit is installed over it.",
    ),
    _served_option(
        "--package", default="", metavar="FOLDER", help="Folder of the package below a checkout (default: python, .)."
    ),
)
SERVED = (
    _served_option("--model", type=FILE, help="Folder of the scenario's model on this machine."),
    _served_option("--both-arg", "args", multiple=True, help="Extra server argument for both arms; repeatable."),
    _served_option("--both-env", "env", **PAIRS, help="Environment variable of both arms; repeatable."),
    _served_option("--baselines", multiple=True, type=FILE, help="Folder of baselines; repeatable."),
)
COMMANDED = (
    _commanded_option("--windows", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of --command per arm."),
    _commanded_option(
        "--aa-blocks", type=click.IntRange(min=2), default=4, show_default=True, help="Blocks that compare GOOD with itself."
    ),
    _commanded_option("--margin", type=Ratio(), help="Smallest loss to act on, as 0.03 or 3% [default: 0.03]."),
    _commanded_option("--better", type=click.Choice(["lower", "higher"]), default="lower", show_default=True),
    _commanded_option("--timeout", type=Number(min=0, min_open=True), default=600.0, show_default=True, metavar="S"),
)


# Options that one way of measuring has no use for.
_IDLE = {
    "--scenario": ("windows", "aa_blocks", "margin", "better", "timeout"),
    "--command": ("python", "package", "model", "args", "env", "baselines"),
}


@click.command(name="bisect", cls=SectionCommand)
@click.argument("good")
@click.argument("bad")
@add_options(*_SUBJECT, *SEARCHED, *_ENGINE, *SERVED, *COMMANDED)
def command(good: str, bad: str, **options: Any) -> int:
    """Find the commit after GOOD, up to BAD, that made it slower.

    Each measurement compares one commit with GOOD in blocks, as `perfgate gate` does. The next commit is the one with the most
    information per minute. {commit} and {checkout} in --command and --build stand for the hash and its folder. The search
    ends when one commit is certain enough, or when the budget is used up. Exit code 0 if it found a commit, else 3. The same
    command with --resume continues an interrupted search, also with a larger --budget.
    """
    check_search(options)
    return run_search(read_line(options["repo"], good, bad), options, plan_search(options))


def plan_search(options: dict[str, Any]) -> SearchPlan:
    """How the options measure: by serving, or by a command."""
    return plan_served(options) if options["scenario"] else plan_commanded(options)


def run_search(line: Line, options: dict[str, Any], plan: SearchPlan) -> int:
    """Search a line and print what was found; return the exit code. Without `repo` its places are packages.

    Raise EvidenceError where the folder of the search takes no more.
    """
    try:
        with _open(line, options, plan) as loop:
            search, answer = loop.run()
    except OSError as error:
        raise explain_stop(options["out"], error) from error
    found = Found(repo=options["repo"], line=line, search=search, answer=answer, record=loop.record)
    if options["style"] == "json":
        click.echo(orjson.dumps(describe(found), option=orjson.OPT_INDENT_2).decode())
    else:
        say("\n".join(tell(found, choose_layout())))
    return 0 if answer.ending is Ending.FOUND else 3


def check_search(options: dict[str, Any]) -> None:
    """Raise InputError for options that do not go together."""
    if (options["scenario"] is None) == (options["shell"] is None):
        raise InputError("give either --scenario, to serve each of them, or --command, to run one there")
    if options["metric"] and options["metric"] not in METRICS:
        raise InputError(f"--metric {options['metric']}: no such metric; one of {', '.join(METRICS)}")
    _refuse_idle("--scenario" if options["scenario"] else "--command")
    if options["metric"] and _is_given("better"):
        raise InputError("--better: a metric of --metric has its own direction; leave it out")
    for name in ("--command", "--build"):
        _check_words(name, options["shell" if name == "--command" else "build"] or "true")


def _refuse_idle(mode: str) -> None:
    """Raise InputError for an option that this way of measuring would ignore."""
    for parameter in click.get_current_context().command.params:
        if parameter.name in _IDLE[mode] and _is_given(parameter.name):
            raise InputError(f"{parameter.opts[0]}: has no effect with {mode}; leave it out")


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _check_words(name: str, text: str) -> None:

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"{name} {text}: {error}") from None
    if not words:
        raise InputError(f"{name}: is empty; give a program and its arguments")


@contextmanager
def _open(line: Line, options: dict[str, Any], plan: SearchPlan) -> Iterator[SearchLoop]:
    """Lock the folder, begin its record or go on with it, and put together what measures."""
    folder: Path = options["out"]
    if options["resume"] and not (folder / SEARCH_FILE).exists():
        raise InputError(f"{folder}: has no search to continue; leave out --resume to start one")
    with ExitStack() as stack:
        lock = stack.enter_context(lock_folder(folder))
        record = begin(folder, _fix(line, options) | plan.facts, resume=options["resume"])
        progress = stack.enter_context(show_progress())
        reaper = stack.enter_context(Reaper(lock))
        checkouts = plan.build_checkouts(Guard(reaper=reaper))
        bench = plan.build_bench(checkouts, progress)
        yield SearchLoop(line=line, rules=plan.rules, record=record, checkouts=checkouts, bench=bench, progress=progress)


def _fix(line: Line, options: dict[str, Any]) -> dict[str, Any]:
    """What makes this search the one it is; the budget is not among it."""
    return {
        "schema": 1,
        "perfgate": __version__,
        "good": line.good.sha,
        "bad": line.commits[-1].sha,
        "commits": [commit.sha for commit in line.commits],
        "metric": options["metric"],
        "build": options["build"],
    }
