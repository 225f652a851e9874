"""`perfgate ab`: one change against the same server without it, in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from perfgate.cli.measuring.gate import judge_arms
from perfgate.cli.options import (
    PAIRS,
    add_blocks_option,
    add_caches_option,
    add_folder_options,
    add_profile_option,
    add_proof_options,
    add_scenario_argument,
    build_arms,
)
from perfgate.cli.output import FILE, add_format_option
from perfgate.cli.sections import SectionCommand, add_share_option, add_uncalibrated_option, arm_option, judging_option
from perfgate.errors import InputError

EXAMPLE = "--env SGLANG_MOE_FUSE_DOWN_SUM_REDUCE=1"
# What is said of the candidate here is said of both arms elsewhere.
_CHANGES = {
    "python": "candidate_python",
    "checkout": "candidate_checkout",
    "args": "candidate_args",
    "env": "candidate_env",
    "inject": "candidate_inject",
}


@click.command(name="ab", cls=SectionCommand)
@add_scenario_argument()
@arm_option("--env", **PAIRS, help="Environment variable of the candidate; repeatable.")
@arm_option(
    "--arg", "args", multiple=True, help="Extra server argument of the candidate, for example --arg=--flag; repeatable."
)
@arm_option("--python", help="Python of the candidate, for example one with the pull request's SGLang.")
@arm_option(
    "--checkout",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Working tree of the candidate, such as a clone of SGLang with a change in it.",
)
@arm_option("--inject", metavar="KIND:SIZE", help="Slow the candidate down on purpose: gpu:10, host:500, step:0.25.")
@arm_option("--base-python", help="Python of the base (default: the one running perfgate).")
@judging_option("--model", type=FILE, help="Folder of the scenario's model on this machine.")
@judging_option("--baselines", multiple=True, type=FILE, help="Folder of baselines; repeatable.")
@add_caches_option
@add_blocks_option
@add_profile_option
@add_uncalibrated_option
@add_share_option
@add_folder_options
@add_proof_options
@add_format_option
def command(scenario: str, base_python: str | None, **options: Any) -> int:
    """Measure SCENARIO with and without one change, judge it and report.

    The options describe the candidate; the base is the unchanged scenario. Everything else, exit codes included, is as in
    `perfgate gate`.
    """
    changes = {theirs: options.pop(ours) for ours, theirs in _CHANGES.items()}
    if not any(changes.values()):
        raise InputError(f"ab: nothing sets the candidate apart from the base; give a change, for example {EXAMPLE}")
    base = {"python": base_python or sys.executable, "args": (), "env": (), "caches": options.pop("caches")}
    return judge_arms(scenario, build_arms({**base, **changes}), options)
