"""`perfgate run`: measure, and leave the judging to others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfgate.cli.options import (
    add_arm_options,
    add_folder_options,
    add_proof_options,
    add_scenario_argument,
    build_arms,
    build_expect,
    choose_folder,
    read_proof,
    read_scenario,
)
from perfgate.cli.output import add_format_option, print_json, say
from perfgate.cli.sections import SectionCommand, add_share_option, judging_option
from perfgate.gate.case import fix_noise, is_decided, load_case
from perfgate.gate.fresh_profiles import is_profile_due, profile_arms
from perfgate.results.folders import require_cut_off
from perfgate.results.results import load_results
from perfgate.serving.measure import Request, measure
from perfgate.serving.progress import show_progress
from perfgate.verdict.validity.admission import find_problems


@click.command(name="run", cls=SectionCommand)
@add_scenario_argument()
@add_arm_options
@judging_option("--blocks", type=click.IntRange(min=2), help="Measure exactly this many blocks, without looks.")
@judging_option(
    "--profile",
    type=click.Choice(["auto", "never"]),
    default="never",
    show_default=True,
    help="After a regression, profile both arms in fresh servers to find the slow kernel.",
)
@add_share_option
@add_folder_options
@add_proof_options
@add_format_option
def command(*, scenario: str, out: Path | None, parent: Path, resume: bool, blocks: int | None, **options: Any) -> int:
    """Measure SCENARIO in A/B blocks into a result folder.

    Without --blocks the session stops at the first look that decides. `perfgate check` judges the folder. Exit code 3: a
    server, the load generator or the model made the session INVALID. After a crash or Ctrl-C, the same command with
    --resume continues: it keeps complete blocks and measures the interrupted one again on fresh servers.
    """
    text, parsed = read_scenario(scenario)
    folder = choose_folder(parsed.name, out, parent, resume=resume)
    if resume:
        require_cut_off(folder)
    request = Request(
        scenario=parsed,
        scenario_text=text,
        arms=build_arms(options),
        folder=folder,
        purpose="ab",
        looks=(blocks,) if blocks else parsed.blocks.looks,
        is_decided=lambda done: not blocks and is_decided(done),
        fix_noise=lambda begun: fix_noise(begun, ()),
        model=options["model"],
        resume=resume,
        expect=build_expect(options),
        scenarios_in_pr=options["scenarios_in_pr"],
        kernels=read_proof(options),
    )
    with show_progress() as progress:
        measure(request, progress)
        if options["profile"] == "auto" and is_profile_due(folder, parsed.server.engine, load_case(folder).verdict.outcome):
            profile_arms(request, progress)
    _, session = load_results(folder)
    problems = find_problems(session, parsed)
    if options["style"] == "json":
        print_json({"folder": folder, "problems": problems, "is_complete": session.is_complete})
    else:
        say(folder)
    for problem in problems:
        say(f"perfgate: session void: {problem}", err=True)
    return 3 if problems else 0
