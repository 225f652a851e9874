"""`perfgate model`: is this the mixture of experts it should be, and those that need no download."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from perfgate.cli.completion import complete_scenario
from perfgate.cli.given import Number
from perfgate.cli.output import FILE, add_format_option, print_json, print_table, say
from perfgate.errors import InputError, ModelError
from perfgate.report.expert_use import REASONS, tabulate_use
from perfgate.results.expert_use import unpack
from perfgate.scenario.catalog import load_scenario
from perfgate.serving.experts.attached import ask_routing
from perfgate.serving.experts.expert_recorder import VARIABLE
from perfgate.serving.model.location import Drawn, write_chosen
from perfgate.serving.model.model_guard import ModelFacts, find_config, read_config, verify_model, verify_moe_config
from perfgate.serving.model.routed_recipe import DEFAULT_IMBALANCE, DEFAULT_SEED
from perfgate.serving.model.routed_shapes import FORMATS, Choice, Format
from perfgate.serving.model.served_model import digest_weights
from perfgate.stats.expert_use import ExpertUse, Unknown, find_faults, measure_use
from perfgate.verdict.validity.routing import describe_fault


@click.group(name="model")
def command() -> None:
    """Verify a model, or make one without a download."""


@command.command()
@click.argument("folder", metavar="[DIR]", required=False, type=FILE)
@click.option(
    "--scenario",
    "scenario_name",
    metavar="NAME",
    shell_complete=complete_scenario,
    help="Also require this scenario's model, field by field.",
)
@click.option("--routing", "url", metavar="URL", help="Ask the SGLang server at URL which experts its tokens choose.")
@click.option(
    "--recorded-in",
    metavar="FOLDER",
    envvar=VARIABLE,
    type=FILE,
    help=f"With --routing: the folder that {VARIABLE} named when the server was started.",
)
@add_format_option
def verify(*, folder: Path | None, scenario_name: str | None, url: str | None, recorded_in: Path | None, style: str) -> None:
    """Read config.json in DIR and refuse a dense model, or one that differs from the scenario's (exit code 3).

    With --routing, refuse a running server whose router does not choose experts by token; DIR is then the model's folder
    (default: the one that the server reports).
    """
    if folder is not None or url is None:
        _verify_config(folder, scenario_name, style, is_shown=url is None)
    if url is not None:
        _verify_routing(url, recorded_in, folder, style)


def _verify_config(folder: Path | None, scenario_name: str | None, style: str, *, is_shown: bool) -> None:
    if folder is None:
        raise InputError("DIR is missing: give the folder that holds the model, or --routing URL")
    if scenario_name is None:
        facts = verify_moe_config(read_config(folder), str(find_config(folder)))
    else:
        facts = verify_model(folder, load_scenario(scenario_name).model)
    if is_shown:
        _show(facts, folder, style)


def _verify_routing(url: str, recorded: Path | None, folder: Path | None, style: str) -> None:
    if recorded is None:
        raise InputError(f"--recorded-in is missing: start the server with {VARIABLE}=FOLDER and give the same folder here")
    found = ask_routing(url, recorded, folder)
    if isinstance(found, Unknown):
        raise ModelError(f"{url}: expert use unknown: {REASONS[found]}")
    use = measure_use(unpack(found))
    _show_use(use, style)
    for fault in find_faults(use):
        raise ModelError(describe_fault(fault, use, f"as {url} serves it"))


def _show_use(use: ExpertUse, style: str) -> None:
    if style == "json":
        print_json(asdict(use))
    else:
        print_table(tabulate_use(use))


@command.command()
@click.argument("name", metavar="NAME")
@click.argument("folder", metavar="DIR", type=FILE)
@click.option(
    "--weights",
    type=click.Choice(["random", "routed"]),
    help="How the weights are drawn: random by default for tiny models; large shapes have routed only.",
)
@click.option(
    "--dtype", "numbers", type=click.Choice(FORMATS), help="Number format of a large shape's experts. [default: as published]"
)
@click.option("--layers", type=click.IntRange(min=1), metavar="N", help="Layers of a large shape. [default: as published]")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=DEFAULT_SEED,
    metavar="N",
    show_default=True,
    help="Seed of the random weights.",
)
@click.option(
    "--imbalance",
    type=Number(min=1.0),
    metavar="X",
    help=f"Load of a layer's most popular expert over the mean load. [default: {DEFAULT_IMBALANCE:g}]",
)
@add_format_option
def make(
    name: str,
    folder: Path,
    weights: Drawn | None,
    numbers: Format | None,
    layers: int | None,
    seed: int,
    imbalance: float | None,
    style: str,
) -> None:
    """Write the model NAME into DIR; nothing is downloaded.

    NAME is tiny-qwen3-moe or tiny-gpt-oss, a checkpoint of a few megabytes, or gpt-oss-20b-shape, qwen3-30b-a3b-shape or
    deepseek-fp8-shape (5 layers): published sizes without weights; a server with --load-format dummy makes them.
    """
    write_chosen(folder, name, weights, Choice(format=numbers, layers=layers, seed=seed, imbalance=imbalance))
    _show(verify_moe_config(read_config(folder), str(find_config(folder))), folder, style)


def _show(facts: ModelFacts, folder: Path, style: str) -> None:
    if style == "json":
        print_json({**asdict(facts), "weights": digest_weights(folder)})
        return
    say(
        f"{facts.architecture}: {facts.experts} experts, {facts.top_k} per token, {facts.layers} layers, "
        f"hidden size {facts.hidden}, quantization {facts.quantization}, config {facts.digest}, "
        f"weights {digest_weights(folder)}"
    )
    if facts.warning:
        say(f"WARNING: {facts.warning}")
