"""`perfgate model`: is this the mixture of experts it should be, and the tiny one that needs no download."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from perfgate.cli.output import add_format_option, print_json
from perfgate.scenario.schema import load_scenario
from perfgate.serving.model.model_guard import ModelFacts, find_config, read_config, verify_model, verify_moe_config
from perfgate.serving.model.served_model import digest_weights
from perfgate.serving.model.tiny_model import write_tiny_model


@click.group(name="model")
def command() -> None:
    """Verify a model before it is measured, or make the tiny one."""


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
@add_format_option
def make(name: str, folder: Path, style: str) -> None:
    """Write the tiny model NAME (tiny-qwen3-moe or tiny-gpt-oss) with random weights into DIR."""
    write_tiny_model(folder, name)
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
