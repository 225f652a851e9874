"""`perfgate gate`: the whole gate in one command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from perfgate.cli.options import (
    add_arm_options,
    add_blocks_option,
    add_folder_options,
    add_profile_option,
    add_proof_options,
    add_scenario_argument,
    build_arms,
    build_expect,
    choose_folder,
    read_proof,
    read_scenario,
)
from perfgate.cli.output import FILE, add_format_option, say, write_output
from perfgate.cli.sections import SectionCommand, add_share_option, add_uncalibrated_option, judging_option
from perfgate.core import Arm
from perfgate.gate.gate import GateJob, run_gate
from perfgate.report.render import render_as
from perfgate.report.table import choose_layout
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.progress import show_progress


@click.command(name="gate", cls=SectionCommand)
@add_scenario_argument(default="cpu-moe")
@add_arm_options
@add_blocks_option
@judging_option("--baselines", multiple=True, type=FILE, help="Folder of baselines; repeatable.")
@add_profile_option
@add_uncalibrated_option
@add_share_option
@add_folder_options
@add_proof_options
@add_format_option
def command(*, scenario: str, **options: Any) -> int:
    """Calibrate if necessary, measure SCENARIO, judge it and report.

    Without options that change the candidate, both arms are the same build, and the answer should be PASS. After a crash
    or Ctrl-C, the same command with --resume continues.
    """
    return judge_arms(scenario, build_arms(options), options)


def judge_arms(scenario: str, arms: Mapping[Arm, ArmSpec], options: Mapping[str, Any]) -> int:
    """Run the gate on two arms, print the report and return the verdict's exit code."""
    text, parsed = read_scenario(scenario, options["blocks"])
    folder = choose_folder(parsed.name, options["out"], options["parent"], resume=options["resume"])
    job = GateJob(
        scenario=parsed,
        text=text,
        arms=arms,
        folder=folder,
        baselines=options["baselines"],
        model=options["model"],
        resume=options["resume"],
        expect=build_expect(options),
        profile=options["profile"],
        scenarios_in_pr=options["scenarios_in_pr"],
        kernels=read_proof(options),
    )
    with show_progress() as progress:
        report = run_gate(job, progress)
    write_output(render_as(options["style"], report, choose_layout()), None, is_text=options["style"] == "text")
    say(f"report folder: {folder}", err=options["style"] == "json")
    return report.verdict.find_exit_code(options["uncalibrated"])
