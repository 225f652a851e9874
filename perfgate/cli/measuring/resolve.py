"""`perfgate resolve`: what a change makes the engine choose, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import click

from perfgate.cli.output import add_format_option, print_result
from perfgate.errors import InputError
from perfgate.resolution.arms import find_source
from perfgate.resolution.ask import ask_arms
from perfgate.resolution.diff import compare
from perfgate.resolution.report import write_document, write_lines
from perfgate.resolution.rules import FLAG, RULES
from perfgate.resolution.table import GPUS, MODELS
from perfgate.resolution.values import EXIT_CODES

T = TypeVar("T")


@click.command(name="resolve")
@click.option("--base", required=True, metavar="ARM", help="A release of SGLang (0.5.22), a working tree, or a Python.")
@click.option("--candidate", required=True, metavar="ARM", help="The same for the change.")
@click.option(
    "--python",
    default=sys.executable,
    help="Python with torch and transformers, for arms that are a release or a tree.",
)
@click.option(
    "--base-triton", default="", metavar="VERSION", help="Look up tables for this Triton version instead of the release's own."
)
@click.option("--candidate-triton", default="", metavar="VERSION", help="The same for the candidate.")
@click.option("--model", "models", multiple=True, metavar="NAME", help=f"{', '.join(MODELS)}; with commas (default: all).")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help=f"{', '.join(GPUS)}; with commas (default: all).")
@click.option(
    "--accept", "accepted", multiple=True, metavar="KEY: REASON", help="Accept a loss, of KEY or KEY@MODEL; repeatable."
)
@add_format_option
def command(**options: Any) -> int:
    """Compare what two arms choose: tables, backends, graphs, defaults, pool.

    Both arms resolve each model on each GPU with the engine's own code; the GPU is simulated and no weights are loaded. Exit
    codes: 0 same or changed, 1 something was lost, 2 bad input, 3 a part of an arm could not be verified.
    """
    accepted = parse_accepted(options["accepted"])
    models = _choose(MODELS, options["models"], "--model")
    gpus = _choose(GPUS, options["gpus"], "--gpu")
    sources = [
        find_source(options[arm], options["python"], option=f"--{arm}", triton=options[f"{arm}_triton"])
        for arm in ("base", "candidate")
    ]
    base, candidate = ask_arms(sources, models, gpus)
    comparison = compare(base, candidate, accepted)
    print_result(options["style"], write_document(comparison), *write_lines(comparison))
    return EXIT_CODES[comparison.answer]


def _choose(table: Mapping[str, T], names: tuple[str, ...], option: str) -> list[T]:
    """The rows that were asked for. Raise InputError for a name that is none."""
    names = tuple(name for given in names for name in given.split(","))
    for name in names:
        if name not in table:
            raise InputError(f"{option} {name}: choose one of {', '.join(table)}")
    return [table[name] for name in dict.fromkeys(names or table)]


def parse_accepted(given: tuple[str, ...]) -> dict[str, str]:
    """Reasons by key, of `KEY: reason`. Raise InputError for a key that cannot be lost and for one without a reason."""
    accepted = {}
    for text in given:
        key, reason = split_reason(text)
        name, _, model = key.partition("@")
        if name not in RULES and not name.startswith(FLAG):
            raise InputError(f"--accept {key}: is no key that can be lost; choose one of {', '.join(RULES)}")
        if model and model not in MODELS:
            raise InputError(f"--accept {key}: no model {model}; choose one of {', '.join(MODELS)}")
        accepted[key] = reason
    return accepted


def split_reason(text: str) -> tuple[str, str]:
    """Key and reason of `KEY: reason`. Raise InputError where there is no reason."""
    key, _, reason = (part.strip() for part in text.partition(":"))
    if not reason:
        raise InputError(f"--accept {text!r}: has no reason; write 'KEY: reason'")
    return key, reason
