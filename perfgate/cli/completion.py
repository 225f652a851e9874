"""`perfgate completion`: what makes a shell complete commands, options and file names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from perfgate.cli import program

PROGRAM = "perfgate"


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
