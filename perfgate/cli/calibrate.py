"""`perfgate calibrate`: store what noise looks like here, and what responds to a known slow-down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfgate.cli.options import add_arm_options, build_arms, choose_folder


@click.command(name="calibrate")
@click.argument("scenario")
@click.option("--blocks", type=click.IntRange(min=2), help="A/A blocks to measure (default: the scenario's).")
@click.option("--inject", "injections", multiple=True, metavar="KIND:RATIO", help="Measure the response to this slow-down too.")
@click.option("--to", "target", type=click.Path(path_type=Path), help="Folder of baselines (default: this machine's own).")
@click.option("--parent", type=click.Path(path_type=Path), default=Path("perfgate-results"), show_default=True)
@add_arm_options
def command(
    scenario: str, blocks: int | None, injections: tuple[str, ...], target: Path | None, parent: Path, **options: Any
) -> int:
    """Measure A/A blocks of SCENARIO and store this machine's noise bands, replacing those that it had."""
    from perfgate.core import Arm  # noqa: PLC0415
    from perfgate.evidence.baselines import find_path, save_baseline  # noqa: PLC0415
    from perfgate.scenario import parse_scenario, read_scenario_text  # noqa: PLC0415
    from perfgate.serving.calibration import Calibration, calibrate  # noqa: PLC0415
    from perfgate.serving.progress import show_progress  # noqa: PLC0415
    from perfgate.state import find_machine_baselines  # noqa: PLC0415

    text, source = read_scenario_text(scenario)
    parsed = parse_scenario(text, source)
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
        baseline = calibrate(calibration, progress)
    path = find_path(target or find_machine_baselines(), baseline.fingerprint, parsed.name)
    save_baseline(baseline, path)
    click.echo(path)
    return 0
