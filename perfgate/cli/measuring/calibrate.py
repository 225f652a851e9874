"""`perfgate calibrate`: store what noise looks like here, and what responds to a known slow-down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfgate.cli.options import add_arm_options, add_scenario_argument, build_arms, choose_folder, read_scenario
from perfgate.cli.output import FILE, add_format_option, print_result
from perfgate.cli.sections import SectionCommand, folder_option, judging_option, option_of
from perfgate.core import Arm
from perfgate.errors import InputError
from perfgate.gate.baselines import find_path, save_baseline
from perfgate.gate.calibrate import Calibration, calibrate
from perfgate.gate.recorded_calibration import calibrate_from, parse_slowed
from perfgate.scenario.schema import Scenario
from perfgate.serving.progress import show_progress
from perfgate.storage.state import find_machine_baselines

MAX_PERCENT = 1000.0
"""Of a decode step: what slows it more is a fault and no effect to calibrate by."""


_recorded_option = option_of("Bands of recorded sessions")


@click.command(name="calibrate", cls=SectionCommand)
@add_scenario_argument()
@judging_option("--blocks", type=click.IntRange(min=2), help="A/A blocks to measure (default: the scenario's).")
@judging_option(
    "--inject", "injections", multiple=True, metavar="KIND:SIZE", help="Measure the response to this slow-down too."
)
@judging_option(
    "--effects",
    metavar="PERCENT,...",
    help="Measure slow-downs of a decode step by these percentages, such as 1,2,3,5,10.",
)
@add_arm_options
@_recorded_option(
    "--from",
    "recorded",
    type=FILE,
    multiple=True,
    metavar="RESULT_DIR",
    help="Measure nothing: take the A/A blocks of this result folder; repeatable.",
)
@_recorded_option(
    "--injected",
    "slowed",
    multiple=True,
    metavar="[RATIO:]RESULT_DIR",
    help="With --from: a folder whose candidate was slowed down, and by how much (default: as its server logs say).",
)
@folder_option("--to", "target", type=FILE, help="Folder of baselines (default: this machine's own).")
@folder_option("--out", type=FILE, help="Folder of the raw data (default: a new one in --parent).")
@folder_option("--resume", is_flag=True, help="Continue the interrupted calibration in --out.")
@folder_option("--parent", type=FILE, default=Path("perfgate-results"), show_default=True)
@add_format_option
def command(*, scenario: str, target: Path | None, style: str, **options: Any) -> int:
    """Measure A/A blocks of SCENARIO and store this machine's noise bands; they replace the old ones.

    First a session of equal arms, then one for each slow-down. The same command with --resume continues an interrupted
    calibration. With --from nothing is measured: the bands come from existing sessions.
    """
    text, parsed = read_scenario(scenario)
    if options["recorded"] or options["slowed"]:
        _refuse_to_measure(options)
        baseline = calibrate_from(parsed, options["recorded"], [parse_slowed(one) for one in options["slowed"]])
    else:
        calibration = _plan(text, parsed, options)
        with show_progress() as progress:
            baseline = calibrate(calibration, progress)
    path = find_path(target or find_machine_baselines(), baseline.fingerprint, baseline.scenario)
    save_baseline(baseline, path)
    print_result(style, {"baseline": path, "aa_blocks": baseline.blocks}, path)
    return 0


def _refuse_to_measure(options: dict[str, Any]) -> None:
    """Raise InputError where recorded sessions come with options of a measurement."""
    if not options["recorded"] or any(options[name] for name in ("blocks", "injections", "effects", "out", "resume")):
        raise InputError(
            "--injected belongs to --from, and --from measures nothing: leave out --blocks, --inject, --effects, --out and "
            "--resume"
        )


def _plan(text: str, scenario: Scenario, options: dict[str, Any]) -> Calibration:
    if options["resume"] and options["out"] is None:
        raise InputError("--resume: needs --out FOLDER, the folder in which the calibration was cut off")
    effects = options["effects"]
    return Calibration(
        scenario=scenario,
        text=text,
        spec=build_arms(options)[Arm.BASE],
        folder=choose_folder(f"{scenario.name}-calibration", options["out"], options["parent"], resume=options["resume"]),
        blocks=options["blocks"] or scenario.blocks.calibration_blocks,
        injections=options["injections"] or (() if effects else scenario.blocks.calibration_injections),
        effects=parse_effects(effects) if effects else (),
        model=options["model"],
        resume=options["resume"],
    )


def parse_effects(text: str) -> tuple[float, ...]:
    """Shares of a step from percents such as `1,2,3,5,10`, each once. InputError for anything else."""
    try:
        percents = [float(word) for word in text.split(",")]
    except ValueError:
        percents = []
    if not percents or not all(0 < percent <= MAX_PERCENT for percent in percents):
        raise InputError(
            f"--effects {text}: give percents above 0 and at most {MAX_PERCENT:.0f} with commas, such as 1,2,3,5,10"
        )
    return tuple(percent / 100 for percent in dict.fromkeys(percents))
