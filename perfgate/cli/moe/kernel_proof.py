"""`perfgate kernels prove`: build and examine what a pull request makes of the kernels, before anything is measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from perfgate.cli.moe.kernel_builds import require_torch
from perfgate.cli.moe.kernel_check import PROCESSES
from perfgate.cli.output import add_format_option, print_result, say
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
@arm_option("--base-python", metavar="PROGRAM", help="The same for the base.")
@folder_option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The proof, for --kernel-proof.",
)
@_case_option("--impl", "names", multiple=True, default=["sglang"], show_default=True, metavar="NAME", help="Repeatable.")
@_case_option(
    "--matrix",
    type=click.Choice(["quick", "exam", "full"]),
    help="Which cases to run. Default: exam on a GPU (the quick ones and real layers), else quick.",
)
@_case_option("--case", "texts", multiple=True, metavar="CASE", help="Run this case instead; repeatable.")
@_case_option(
    "--processes", type=PROCESSES, metavar="N", help="Share an arm's cases among N. Default: by cores, memory and cases."
)
@_case_option("--device", default="cuda", show_default=True, help="Torch device.")
@_case_option(
    "--time-blocks",
    type=click.IntRange(0, MAX_TIMED_BLOCKS),
    metavar="N",
    help="Starts of each arm for the timing of layers. Default: 4 on a GPU, else 0.",
)
@_build_option(
    "--shape", "shapes", multiple=True, metavar="NAME", help="Layer to build and test; repeatable. Default: all known ones."
)
@_build_option("--arch", default="sm_90", show_default=True, help="sm_80, sm_90 or sm_100.")
@arm_option("--caches", type=TREE, metavar="DIR", help="Compile caches, one folder per arm, as for `perfgate run`.")
@_build_option(
    "--wheels", type=TREE, default="wheels", show_default=True, metavar="DIR", help="Folder for wheels and their logs."
)
@add_format_option
def prove_kernels(*, output: Path, style: str, **options: Any) -> int:
    """Build both arms' kernels and compare their answers with the oracle; exit code 1 if the candidate's are worse.

    Both run the same cases; a case that the base already gets wrong does not count against the candidate. If the sources of
    sgl-kernel differ, both wheels are built and installed first. `perfgate run --kernel-proof FILE` copies the proof into the
    result folder.

    If nothing is wrong, the layers of both arms are timed in turns at 1, 16, 256 and 4096 tokens. Reports show which became
    slower; the times change no verdict.
    """
    require_torch()
    from perfgate.cli.moe.kernel_work import prove_sides  # noqa: PLC0415 - loads torch

    proof = prove_sides(options, partial(say, err=True))
    save_proof(proof, output)
    problems = list(check_kernels(proof))
    content = {"file": output, "kernels": describe_proof(proof), "problems": problems}
    layers = judge_times(proof)
    times = summarise_layers(layers).sentence if layers else "not measured"
    print_result(style, content | {"times": times}, f"{describe_proof(proof)}\ntimes of the layer: {times}")
    for problem in problems:
        say(f"perfgate: {problem}", err=True)
    return 1 if problems else 0
