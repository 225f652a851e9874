"""`perfgate calibrate`: store what noise looks like here, and what responds to a known slow-down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.options import add_arm_options, build_arms, choose_folder
from perfgate.cli.output import add_format_option, print_json
from perfgate.errors import InputError

if TYPE_CHECKING:
    from perfgate.evidence.baselines import Baseline
    from perfgate.scenario import Scenario


@click.command(name="calibrate")
@click.argument("scenario")
@click.option("--blocks", type=click.IntRange(min=2), help="A/A blocks to measure (default: the scenario's).")
@click.option("--inject", "injections", multiple=True, metavar="KIND:SIZE", help="Measure the response to this slow-down too.")
@click.option(
    "--from",
    "recorded",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="RESULT_DIR",
    help="Measure nothing: take the A/A blocks of this result folder; repeatable.",
)
@click.option(
    "--injected",
    "slowed",
    multiple=True,
    metavar="[RATIO:]RESULT_DIR",
    help="With --from: a folder whose candidate was slowed, and by how much (default: what its servers' logs say).",
)
@click.option("--to", "target", type=click.Path(path_type=Path), help="Folder of baselines (default: this machine's own).")
@click.option("--parent", type=click.Path(path_type=Path), default=Path("perfgate-results"), show_default=True)
@add_arm_options
@add_format_option
def command(  # noqa: PLR0913, PLR0917 - click hands over one argument an option
    scenario: str,
    blocks: int | None,
    injections: tuple[str, ...],
    target: Path | None,
    parent: Path,
    style: str,
    **options: Any,
) -> int:
    """Measure A/A blocks of SCENARIO and store this machine's noise bands, replacing those that it had.

    With --from nothing is measured: the bands come from sessions that are there already.
    """
    from perfgate.core import Arm  # noqa: PLC0415
    from perfgate.scenario import parse_scenario, read_scenario_text  # noqa: PLC0415
    from perfgate.serving.calibration import Calibration, calibrate  # noqa: PLC0415
    from perfgate.serving.progress import show_progress  # noqa: PLC0415

    text, source = read_scenario_text(scenario)
    parsed = parse_scenario(text, source)
    recorded, slowed = options.pop("recorded"), options.pop("slowed")
    if recorded or slowed:
        if not recorded or blocks or injections:
            raise InputError("--injected belongs to --from, and --from measures nothing: leave out --blocks and --inject")
        return _store(_read_recorded(parsed, recorded, slowed), target, style)
    spec = build_arms(options)[Arm.BASE]
    folder = choose_folder(f"{parsed.name}-calibration", None, parent)
    calibration = Calibration(
        scenario=parsed,
        text=text,
        spec=spec,
        folder=folder,
        blocks=blocks or parsed.blocks.calibration_blocks,
        injections=injections or parsed.blocks.calibration_injections,
        model=options["model"],
    )
    with show_progress() as progress:
        return _store(calibrate(calibration, progress), target, style)


def _read_recorded(scenario: Scenario, recorded: tuple[Path, ...], slowed: tuple[str, ...]) -> Baseline:
    from perfgate.serving.recorded_calibration import calibrate_from, parse_slowed  # noqa: PLC0415 - as above

    return calibrate_from(scenario, recorded, [parse_slowed(text) for text in slowed])


def _store(baseline: Baseline, target: Path | None, style: str) -> int:
    from perfgate.evidence.baselines import find_path, save_baseline  # noqa: PLC0415 - as above
    from perfgate.state import find_machine_baselines  # noqa: PLC0415 - as above

    path = find_path(target or find_machine_baselines(), baseline.fingerprint, baseline.scenario)
    save_baseline(baseline, path)
    if style == "json":
        print_json({"baseline": path, "aa_blocks": baseline.blocks})
    else:
        click.echo(path)
    return 0
