"""Sections in the help of a command that has many options: each option names its own; and options of several commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class SectionOption(click.Option):
    """An option that stands under `section` in the help of a SectionCommand."""

    def __init__(self, *words: Any, section: str, **rest: Any) -> None:
        """Take what click takes, and the title."""
        super().__init__(*words, **rest)
        self.section = section


class SectionCommand(click.Command):
    """A command whose help lists its options in sections, in the order of the options; those that name none come last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list for each section, each with its own first column."""
        sections: dict[str, list[tuple[str, str]]] = {}
        rest: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            line = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if line is not None:
                found = sections.setdefault(parameter.section, []) if isinstance(parameter, SectionOption) else rest
                found.append(line)
        for title, lines in (*sections.items(), ("Other options", rest)):
            with formatter.section(title):
                formatter.write_dl(lines)


def option_of(section: str) -> Callable[..., Decorator]:
    """What makes options of one section, as `click.option` makes others."""
    return partial(click.option, cls=SectionOption, section=section)


def add_options(*options: Decorator) -> Decorator:
    """Give a command several options, in their order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


arm_option = option_of("The arms")
judging_option = option_of("Measurement and verdict")
proof_option = option_of("Proof that the candidate ran the changed code")
folder_option = option_of("Results")
subject_option = option_of("The pull request and its run")
ci_option = option_of("In CI")
"""Sections that several commands have."""


add_share_option = ci_option(
    "--scenarios-in-pr",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    envvar="PERFGATE_SCENARIOS_IN_PR",
    show_envvar=True,
    help="Number of scenarios that judge this pull request; they share one error budget.",
)
"""Says how many scenarios share the error of one pull request."""


add_uncalibrated_option = judging_option(
    "--uncalibrated",
    type=click.Choice(["fail", "report"]),
    default="fail",
    show_default=True,
    envvar="PERFGATE_UNCALIBRATED",
    show_envvar=True,
    help="A REGRESSION on a machine with fewer than 20 stored A/A blocks fails (exit code 1), or is only reported (0).",
)
"""Says what a REGRESSION on an uncalibrated machine does."""
