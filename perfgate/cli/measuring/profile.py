"""`perfgate profile`: which kernels two arms differ by, from the traces that a result folder keeps."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from perfgate.cli.output import FILE, add_format_option, print_json, print_table, say
from perfgate.errors import EvidenceError
from perfgate.gate.case import load_case
from perfgate.report.words.breakdown import build_breakdown
from perfgate.results.profiling.profiles import read_attribution
from perfgate.results.records import read_record


@click.command(name="profile")
@click.argument("folder", metavar="RESULT_DIR", type=FILE)
@add_format_option
def command(folder: Path, style: str) -> int:
    """Rank the kernels of RESULT_DIR's profiles by their share of the difference between the arms.

    `perfgate gate` profiles both arms after a regression, with `--profile always` after the first block of every session. On
    a CPU the rows are PyTorch's operators.
    """
    read_record(folder)
    found = read_attribution(folder)
    if isinstance(found, str):
        raise EvidenceError(found)
    if found is not None and style == "json":
        print_json(asdict(found))
        return 0
    breakdown = build_breakdown(found, load_case(folder).verdict.judgements)
    if breakdown is None or breakdown.table is None:
        raise EvidenceError(f"{folder}: holds no profile of both arms; measure with `perfgate gate --profile always`")
    say(breakdown.sentence)
    print_table(breakdown.table)
    return 0
