"""`perfgate completion`: what makes a shell complete commands, options and file names."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from perfgate.cli import program
from perfgate.metrics import METRICS
from perfgate.scenario.catalog import list_matrices, list_scenarios

PROGRAM = "perfgate"


def complete_from(list_names: Callable[[], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """Complete a name that begins like what was typed, or else a file."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in list_names() if name.startswith(begun)]
        return found or [CompletionItem(begun, type="file")]

    return complete


complete_scenario = complete_from(list_scenarios)
complete_matrix = complete_from(list_matrices)
complete_metric = complete_from(lambda: METRICS)


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the completion script of SHELL.

    In ~/.bashrc: eval "$(perfgate completion bash)"; in ~/.zshrc, after compinit: eval "$(perfgate completion zsh)". For fish:
    perfgate completion fish > ~/.config/fish/completions/perfgate.fish.
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"{shell}: click knows no completion for it")
    click.echo(found(program, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source())
    return 0
