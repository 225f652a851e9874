"""`perfgate scheduler`: what a change costs on the host, without a GPU."""

from __future__ import annotations

import sys
from typing import Any

import click

from perfgate.cli.measuring.resolve import split_reason
from perfgate.cli.output import FILE, add_format_option, print_result
from perfgate.errors import InputError
from perfgate.resolution.arms import find_source
from perfgate.resolution.values import EXIT_CODES
from perfgate.results.profiling.host_counts import store_host
from perfgate.results.records import read_record
from perfgate.scheduler.ask import measure_arms
from perfgate.scheduler.judge import RULES, compare_work
from perfgate.scheduler.report import list_counts, write_document, write_lines


@click.command(name="scheduler")
@click.option("--base", required=True, metavar="ARM", help="A release of SGLang (0.5.22), a working tree, or a Python.")
@click.option("--candidate", required=True, metavar="ARM", help="The same for the change.")
@click.option("--python", default=sys.executable, help="Python with the CPU engine, for arms that are a release or a tree.")
@click.option("--accept", "accepted", multiple=True, metavar="KEY: REASON", help="Accept a loss of KEY; repeatable.")
@click.option("--into", type=FILE, metavar="RESULT_DIR", help="Store the instructions of a step with this session's profiles.")
@add_format_option
def command(**options: Any) -> int:
    """Compare what two arms cost on the host: instructions, syncs, copies, log lines.

    The engine's own scheduler, detokenizer and tokenizer manager run the same requests without a forward pass, under valgrind
    and without. No GPU is used. Exit codes: 0 same or changed, 1 the host does more work, 2 bad input, 3 a number is
    not repeatable.
    """
    accepted = parse_accepted(options["accepted"])
    sources = [find_source(options[arm], options["python"], option=f"--{arm}") for arm in ("base", "candidate")]
    if options["into"] is not None:
        read_record(options["into"])
    comparison = compare_work(*measure_arms(*sources), accepted)
    if options["into"] is not None:
        store_host(options["into"], list_counts(comparison))
    print_result(options["style"], write_document(comparison), *write_lines(comparison))
    return EXIT_CODES[comparison.answer]


def parse_accepted(given: tuple[str, ...]) -> dict[str, str]:
    """Reasons by key, of `KEY: reason`. Raise InputError for a key that cannot be lost and for one without a reason."""
    accepted = dict(map(split_reason, given))
    for key in accepted:
        if key not in RULES:
            raise InputError(f"--accept {key}: is no key that can be lost; one is scheduler.decode_step.instructions")
    return accepted
