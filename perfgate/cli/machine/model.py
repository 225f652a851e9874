"""`perfgate model`: is this the mixture of experts it should be, and those that need no download."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from perfgate.cli.output import add_format_option, print_json
from perfgate.scenario.schema import load_scenario
from perfgate.serving.model.generated_model import Drawn, write_chosen
from perfgate.serving.model.model_guard import ModelFacts, find_config, read_config, verify_model, verify_moe_config
from perfgate.serving.model.routed_recipe import DEFAULT_IMBALANCE, DEFAULT_SEED
from perfgate.serving.model.routed_shapes import FORMATS, Choice, Format
from perfgate.serving.model.served_model import digest_weights


@click.group(name="model")
def command() -> None:
    """Verify a model before it is measured, or make one that needs no download."""


@command.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--scenario", "scenario_name", metavar="NAME", help="Also require this scenario's model, field by field.")
@add_format_option
def verify(folder: Path, scenario_name: str | None, style: str) -> None:
    """Read config.json in DIR and refuse a dense model, or one that is not the scenario's (exit code 3)."""
    if scenario_name is None:
        facts = verify_moe_config(read_config(folder), str(find_config(folder)))
    else:
        facts = verify_model(folder, load_scenario(scenario_name).model)
    _show(facts, folder, style)


@command.command()
@click.argument("name", metavar="NAME")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--weights",
    type=click.Choice(["random", "routed"]),
    help="How they are drawn: tiny models default to random, the large shapes have only routed.",
)
@click.option("--dtype", "numbers", type=click.Choice(FORMATS), help="Of a large shape's experts. [default: as published]")
@click.option("--layers", type=click.IntRange(min=1), metavar="N", help="Layers of a large shape. [default: as published]")
@click.option("--seed", type=click.IntRange(min=0), default=DEFAULT_SEED, metavar="N", show_default=True, help="Of the draws.")
@click.option(
    "--imbalance",
    type=click.FloatRange(min=1.0),
    metavar="X",
    help=f"Load of a layer's most popular expert over the mean load. [default: {DEFAULT_IMBALANCE:g}]",
)
@add_format_option
def make(  # noqa: PLR0913, PLR0917 - one for each option
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
    deepseek-fp8-shape (5 layers): published sizes without weights, which a server with --load-format dummy draws itself.
    """
    write_chosen(folder, name, weights, Choice(format=numbers, layers=layers, seed=seed, imbalance=imbalance))
    _show(verify_moe_config(read_config(folder), str(find_config(folder))), folder, style)


def _show(facts: ModelFacts, folder: Path, style: str) -> None:
    if style == "json":
        print_json({**asdict(facts), "weights": digest_weights(folder)})
        return
    click.echo(
        f"{facts.architecture}: {facts.experts} experts, {facts.top_k} per token, {facts.layers} layers, "
        f"hidden size {facts.hidden}, quantization {facts.quantization}, config {facts.digest}, "
        f"weights {digest_weights(folder)}"
    )
    if facts.warning:
        click.echo(f"WARNING: {facts.warning}")
