"""`perfgate power`: what the stored noise lets the gate find, and at what cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from perfgate.cli.completion import complete_scenario
from perfgate.cli.given import Number, Ratio
from perfgate.cli.output import FILE, add_format_option, say
from perfgate.cli.reading.designing import choose_all, format_design
from perfgate.cli.sections import SectionCommand, folder_option, option_of
from perfgate.errors import BaselineError, InputError
from perfgate.evidence import Session
from perfgate.gate.baselines import load_baseline
from perfgate.gate.recorded_calibration import calibrate_from
from perfgate.metrics import METRICS
from perfgate.report.chart.picture import save_power_plot
from perfgate.report.table import Table, choose_layout, lay_out
from perfgate.results.results import load_results
from perfgate.scenario.catalog import list_scenarios, load_scenario
from perfgate.scenario.schema import Scenario
from perfgate.storage.rounding import format_percent
from perfgate.storage.state import list_baseline_dirs
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.design import describe_choices, read_cost
from perfgate.verdict.power import CheapestSize, Cost, Curve, Study, describe, draw_curves, find_all_cheapest

_COST = Cost()
_SECONDS = Number(0.0, 1e6, min_open=True)


_noise_option = option_of("Noise")
_question_option = option_of("Question")
_cost_option = option_of("Cost of a start")


@click.command(name="power", cls=SectionCommand)
@_noise_option("--baseline", "baseline_file", type=FILE, help="A baseline file.")
@_noise_option(
    "--scenario",
    "scenario_name",
    shell_complete=complete_scenario,
    help="A scenario by name or file; default: the one that the baseline names, if it ships.",
)
@_noise_option("--baselines", "folders", type=FILE, multiple=True, help="Folder to look for the scenario's baseline in.")
@_noise_option(
    "--from",
    "stored",
    type=FILE,
    multiple=True,
    help="A session of equal arms that replaces the baseline; repeatable. Noise and times come from it.",
)
@_question_option(
    "--design", "view", flag_value="design", help="Choose windows per start, blocks and length with the fewest GPU-minutes."
)
@_question_option("--effect", type=Ratio(), default=0.03, show_default=True, help="The loss to find, as 0.03 or 3%.")
@_cost_option("--start-s", type=_SECONDS, default=_COST.start_s, show_default=True, help="Seconds from start to ready.")
@_cost_option("--window-s", type=_SECONDS, default=_COST.window_s, show_default=True, help="Seconds of one window.")
@_cost_option(
    "--warmups", type=click.IntRange(0, 20), default=_COST.warmups, show_default=True, help="Windows discarded per start."
)
@add_format_option
@folder_option("--picture", type=FILE, help="Also draw the curves into this .svg file.")
def command(
    baseline_file: Path | None,
    scenario_name: str | None,
    folders: tuple[Path, ...],
    stored: tuple[Path, ...],
    view: str | None,
    effect: float,
    start_s: float,
    window_s: float,
    warmups: int,
    style: str,
    picture: Path | None,
) -> None:
    """Show the smallest loss that each look finds with 90 % power, and the cheapest design that finds a loss of --effect.

    The cost is the time of server starts and windows of both arms, one after the other, times the GPUs that a server takes;
    with --from, the time that those sessions took.
    """
    cost = Cost(start_s=start_s, window_s=window_s, warmups=warmups)
    if stored:
        if baseline_file:
            raise InputError("--from: takes the place of --baseline; give one of them")
        study, sessions = _read_stored(stored, scenario_name)
    else:
        study, sessions = _read_baseline(baseline_file, folders, scenario_name, cost), []
    curves = draw_curves(study)
    if view == "design":
        if picture:
            raise InputError("--picture: draws what each look finds, which --design does not print; leave one out")
        _show_design(study, effect, sessions, style)
        return
    cheapest = find_all_cheapest(study, effect)
    if picture:
        save_power_plot(study, curves, picture)
    if style == "json":
        click.echo(json.dumps(describe(study, curves, cheapest, effect), indent=2, sort_keys=True))
    else:
        say(format_text(study, curves, cheapest, effect, choose_layout()))


def _read_baseline(baseline_file: Path | None, folders: tuple[Path, ...], scenario_name: str | None, cost: Cost) -> Study:
    baseline = load_baseline(baseline_file) if baseline_file else _find_only(folders, scenario_name)
    scenario = load_scenario(scenario_name or _name_shipped(baseline))
    _check_match(baseline, scenario)
    return Study(baseline=baseline, scenario=scenario, cost=replace(cost, gpus=max(1, scenario.server.gpus)))


def _read_stored(folders: tuple[Path, ...], scenario_name: str | None) -> tuple[Study, list[Session]]:
    """A study of recorded sessions of equal arms: their noise, and what their blocks took."""
    found = [load_results(folder) for folder in folders]
    for folder, (_, session) in zip(folders, found, strict=True):
        if not session.is_aa:
            raise InputError(f"--from {folder}: its arms differ, so it holds no noise; leave it out")
    scenario = load_scenario(scenario_name) if scenario_name else found[0][0]
    baseline = calibrate_from(scenario, folders, ())
    sessions = [session for _, session in found]
    return Study(baseline=baseline, scenario=scenario, cost=read_cost(sessions)), sessions


def _show_design(study: Study, effect: float, sessions: list[Session], style: str) -> None:
    choices = choose_all(study, effect)
    if style == "json":
        content = {
            "scenario": study.scenario.name,
            "effect": effect,
            "cost": asdict(study.cost),
            "choices": describe_choices(choices),
        }
        click.echo(json.dumps(content, indent=2, sort_keys=True))
    else:
        say(format_design(study, choices, effect, sessions, choose_layout()))


def _find_only(folders: tuple[Path, ...], scenario_name: str | None) -> Baseline:
    """The one baseline of a scenario, of any hardware: the question may be about another machine than this one."""
    if scenario_name is None:
        raise InputError("nothing to study: give --baseline FILE, or --scenario NAME with an optional --baselines DIR")
    name, places = load_scenario(scenario_name).name, list_baseline_dirs(folders)
    found = sorted(path for folder in places for path in folder.glob(f"*/{name}.json"))
    if not found:
        where = ", ".join(map(str, places))
        raise BaselineError(f"no baseline of {name} below {where}; `perfgate calibrate` measures one")
    if len(found) > 1:
        raise BaselineError(f"{len(found)} baselines of {name}: choose one with --baseline {' or '.join(map(str, found))}")
    return load_baseline(found[0])


def _name_shipped(baseline: Baseline) -> str:
    """The scenario that a baseline names, if it ships; else only the reader knows where its file lies."""
    if baseline.scenario not in list_scenarios():
        raise InputError(
            f"--baseline: was measured by {baseline.scenario}, which does not ship with perfgate; give its file with "
            "--scenario PATH"
        )
    return baseline.scenario


def _check_match(baseline: Baseline, scenario: Scenario) -> None:
    if (baseline.scenario, baseline.workload_hash) != (scenario.name, scenario.workload_hash):
        raise InputError(
            f"--scenario: {scenario.name} ({scenario.workload_hash}) is not what the baseline measured, "
            f"{baseline.scenario} ({baseline.workload_hash}); give the scenario file that it was measured with"
        )


def format_text(
    study: Study,
    curves: Sequence[Curve],
    cheapest: Sequence[CheapestSize],
    effect: float,
    lay: Callable[[Table], str] = lay_out,
) -> str:
    """Two tables: what each look finds, and what the wanted effect costs."""
    scenario, cost = study.scenario, study.cost
    looks = [f"{reach.blocks} blocks, {reach.minutes:.1f} GPU-min" for reach in curves[0].reaches]
    found = [
        [
            METRICS[curve.metric].title if curve.gating else f"({METRICS[curve.metric].title})",
            format_percent(curve.block_sd, 2),
            str(curve.stored_blocks),
            format_percent(curve.margin_ratio),
            *(format_percent(reach.smallest_effect, 2) for reach in curve.reaches),
        ]
        for curve in curves
    ]
    rows = [_tabulate_cheapest(found) for found in cheapest]
    hardware = study.baseline.fingerprint.facts.get("hardware", "unnamed hardware")
    lines = [
        f"{scenario.name} on {hardware}, {study.baseline.windows} windows per start",
        f"rule: alpha {scenario.alpha:g} over {len(looks)} looks and {len(study.gating)} gates",
        f"cost: {cost.start_s:g} s a start, {cost.window_s:g} s a window, {cost.warmups} windows of each start discarded",
        "",
        "Smallest loss found with 90 % power",
        lay(Table(header=["metric", "sd of a block", "A/A blocks", "margin", *looks], rows=found)),
        *(["(in brackets: shown, not gating)"] if any(not curve.gating for curve in curves) else []),
        "",
        f"Cheapest design that finds a loss of {format_percent(effect)} with 90 % power",
        lay(Table(header=["metric", "blocks x windows x requests", "GPU-minutes", "power"], rows=rows)),
    ]
    return "\n".join(lines)


def _tabulate_cheapest(found: CheapestSize) -> list[str]:
    title = METRICS[found.metrics[0]].title if len(found.metrics) == 1 else "all gated metrics"
    design = found.design
    if design is None or found.minutes is None or found.power is None:
        return [title, "none of those tried", "-", "-"]
    size = f"{design.blocks} x {design.windows} x {design.request_ratio:g} of the scenario's"
    return [title, size, f"{found.minutes:.1f}", format_percent(found.power)]
