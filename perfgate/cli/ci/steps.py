"""What the steps of `perfgate github` share: options, and what a step prints for those that follow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import orjson

from perfgate.cli.output import FILE, print_result
from perfgate.cli.sections import add_options, judging_option, option_of
from perfgate.github.outputs import write_outputs
from perfgate.github.planning import name_machines
from perfgate.github.settings import JudgingOptions, load_settings
from perfgate.machine.fingerprint import read_build

left_option = option_of("Results of the jobs")
SETTINGS = judging_option("--settings", type=FILE, default=Path(".github/perfgate.toml"), show_default=True, metavar="FILE")
EVENT = click.option("--event", type=FILE, envvar="GITHUB_EVENT_PATH", required=True, metavar="FILE")
add_judging_options = add_options(
    judging_option("--scenario", "scenarios", multiple=True, metavar="NAME|FILE", help="Scenario to judge by; repeatable."),
    judging_option("--baselines", multiple=True, type=FILE, metavar="DIR", help="Folder of baselines; repeatable."),
)
PAGES = judging_option(
    "--pages",
    type=FILE,
    metavar="DIR",
    help="Last, write a page and a result folder per scenario to DIR/LABEL/SCENARIO; the comment then links this run.",
)


def build_judging(options: Mapping[str, Any], settings: Path) -> JudgingOptions:
    """Say what hand-offs are judged by."""
    rules = load_settings(settings)
    known = rules.list_jobs()
    return JudgingOptions(
        scenarios=options["scenarios"],
        baselines=options["baselines"],
        scenarios_in_pr=len(known),
        machines=len(name_machines(known)),
        uncalibrated=rules.uncalibrated,
        resolved=rules.resolved,
    )


def print_outputs(values: Mapping[str, str], style: str, **more: Any) -> None:
    """Write outputs for the jobs that follow, and show them; as JSON the matrix is no text, and `more` stands beside them.

    Among them is the perfgate that judges what those jobs measure: a machine with another one refuses.
    """
    told = {**values, "build": read_build()}
    write_outputs(told)
    content = {**told, "matrix": orjson.loads(values["matrix"]), **more}
    print_result(style, content, *(f"{name}={value}" for name, value in told.items()))
