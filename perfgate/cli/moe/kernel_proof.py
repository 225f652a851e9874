"""`perfgate kernels prove`: build and examine what a pull request makes of the kernels, before anything is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfgate.cli.moe.kernel_builds import require_torch
from perfgate.cli.moe.kernel_check import PROCESSES
from perfgate.cli.output import add_format_option, print_result
from perfgate.cli.sections import SectionCommand, arm_option, folder_option, option_of
from perfgate.report.layers import summarise_layers
from perfgate.results.records import save_proof
from perfgate.verdict.layers import judge_times
from perfgate.verdict.validity.kernel_proof import check_kernels, describe_proof
from perfgate_moe.proof.values import MAX_TIMED_BLOCKS

TREE = click.Path(path_type=Path, file_okay=False)


_case_option = option_of("Cases")
_build_option = option_of("Builds")


@click.command(name="prove", cls=SectionCommand)
@arm_option("--checkout", type=TREE, required=True, metavar="DIR", help="Working tree of the candidate.")
@arm_option("--base-checkout", type=TREE, required=True, metavar="DIR", help="Working tree of the base.")
@arm_option("--python", metavar="PROGRAM", help="The Python that runs the candidate. Default: its tree's .venv's.")
@arm_option("--base-python", metavar="PROGRAM", help="The same, of the base.")
@folder_option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="The proof.")
@_case_option("--impl", "names", multiple=True, default=["sglang"], show_default=True, metavar="NAME", help="Repeatable.")
@_case_option(
    "--matrix",
    type=click.Choice(["quick", "exam", "full"]),
    help="Which cases to ask. Default: exam on a GPU (the quick ones, and real layers), else quick.",
)
@_case_option("--case", "texts", multiple=True, metavar="CASE", help="Ask these instead; repeatable.")
@_case_option(
    "--processes", type=PROCESSES, metavar="N", help="Share an arm's cases among N. Default: by cores, memory and cases."
)
@_case_option("--device", default="cuda", show_default=True, help="Torch device.")
@_case_option(
    "--time-blocks",
    type=click.IntRange(0, MAX_TIMED_BLOCKS),
    metavar="N",
    help="Starts of each arm in which layers are timed by turns. Default: 4 on a GPU, else none.",
)
@_build_option(
    "--shape", "shapes", multiple=True, metavar="NAME", help="Layer to build for and to ask; repeatable. Default: known ones."
)
@_build_option("--arch", default="sm_90", show_default=True, help="sm_80, sm_90 or sm_100.")
@arm_option("--caches", type=TREE, metavar="DIR", help="Compile caches of one folder an arm, as `perfgate run` takes them.")
@_build_option("--wheels", type=TREE, default="wheels", show_default=True, metavar="DIR", help="Where a wheel and its log go.")
@add_format_option
def prove_kernels(*, output: Path, style: str, **options: Any) -> int:
    """Build both arms' kernels and compare their answers with the oracle; exit code 1 if the candidate is worse than the base.

    Both are asked the same cases: what the base gets wrong already does not count against the change. Where the sources of
    sgl-kernel differ, both trees' wheels are built and put into their environments first. `perfgate run --kernel-proof FILE`
    takes the proof over into the result folder.

    Where nothing is wrong, both arms' layer is timed by turns at 1, 16, 256 and 4096 tokens: reports show what became
    slower, and no verdict changes by it.
    """
    require_torch()
    from perfgate.cli.moe.kernel_work import prove_sides  # noqa: PLC0415 - loads torch

    proof = prove_sides(options, print_progress)
    save_proof(proof, output)
    problems = list(check_kernels(proof))
    content = {"file": output, "kernels": describe_proof(proof), "problems": problems}
    layers = judge_times(proof)
    times = summarise_layers(layers).sentence if layers else "not measured"
    print_result(style, content | {"times": times}, f"{describe_proof(proof)}\ntimes of the layer: {times}")
    for problem in problems:
        click.echo(f"perfgate: {problem}", err=True)
    return 1 if problems else 0


def print_progress(line: str) -> None:
    """Progress, a line for each kernel or case that is not as it should be."""
    click.echo(line, err=True)
