"""`perfgate kernels prove`: build and examine what a pull request makes of the kernels, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfgate.cli.moe.kernel_builds import require_torch
from perfgate.cli.output import add_format_option, print_result
from perfgate.errors import InputError
from perfgate.results.records import save_proof
from perfgate.serving.engine.arms import list_caches
from perfgate.verdict.validity.kernel_proof import check_kernels, describe_proof
from perfgate_moe.proof.values import ArmName

if TYPE_CHECKING:
    from perfgate_moe.proof.proving import ProofRequest, Side

TREE = click.Path(path_type=Path, file_okay=False)


@click.command(name="prove")
@click.option("--checkout", type=TREE, required=True, metavar="DIR", help="Working tree of the candidate.")
@click.option("--base-checkout", type=TREE, required=True, metavar="DIR", help="Working tree of the base.")
@click.option("--python", metavar="PROGRAM", help="The Python that runs the candidate. Default: its tree's .venv's.")
@click.option("--base-python", metavar="PROGRAM", help="The same, of the base.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, metavar="FILE", help="The proof.")
@click.option("--impl", "names", multiple=True, default=["sglang"], show_default=True, metavar="NAME", help="Repeatable.")
@click.option("--matrix", type=click.Choice(["quick", "full"]), default="quick", show_default=True, help="Which cases to ask.")
@click.option("--case", "texts", multiple=True, metavar="CASE", help="Ask these instead; repeatable.")
@click.option("--device", default="cuda", show_default=True, help="Torch device.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME", help="Layer to build for; repeatable. Default: every known one."
)
@click.option("--arch", default="sm_90", show_default=True, help="sm_80, sm_90 or sm_100.")
@click.option("--caches", type=TREE, metavar="DIR", help="Compile caches of one folder an arm, as `perfgate run` takes them.")
@click.option("--wheels", type=TREE, default="wheels", show_default=True, metavar="DIR", help="Where a wheel and its log go.")
@add_format_option
def prove_kernels(*, output: Path, style: str, **options: Any) -> int:
    """Build both arms' kernels and compare their answers with the oracle; exit code 1 if the candidate is worse than the base.

    Both are asked the same cases: what the base gets wrong already does not count against the change. Where the sources of
    sgl-kernel differ, both trees' wheels are built and put into their environments first. `perfgate run --kernel-proof FILE`
    takes the proof over into the result folder.
    """
    require_torch()
    from perfgate_moe.proof.proving import prove  # noqa: PLC0415 - loads torch

    request = _build_request(options)
    proof = prove(_open_sides(options), request, options["wheels"], tell)
    save_proof(proof, output)
    problems = list(check_kernels(proof))
    content = {"file": output, "kernels": describe_proof(proof), "problems": problems}
    print_result(style, content, describe_proof(proof))
    for problem in problems:
        click.echo(f"perfgate: {problem}", err=True)
    return 1 if problems else 0


def _build_request(options: Mapping[str, Any]) -> ProofRequest:
    """What both arms are put to. Raise InputError or MoeError for names that are none."""
    from perfgate_moe.build.build import parse_arch  # noqa: PLC0415 - loads Triton
    from perfgate_moe.exam.cases import LayerCase, full_matrix, quick_matrix  # noqa: PLC0415 - loads torch
    from perfgate_moe.exam.implementations import find  # noqa: PLC0415 - loads torch
    from perfgate_moe.proof.proving import ProofRequest  # noqa: PLC0415 - loads torch
    from perfgate_moe.timing.shapes import SIXTEEN_BIT_SHAPES, find_shape  # noqa: PLC0415 - loads torch

    names = options["names"]
    if len(set(names)) < len(names):
        raise InputError("--impl: give each implementation once, for example --impl sglang")
    for name in names:
        find(name)
    matrices = {"quick": quick_matrix, "full": full_matrix}
    return ProofRequest(
        layers=[(name, find_shape(name)) for name in options["shapes"] or SIXTEEN_BIT_SHAPES],
        arch=parse_arch(options["arch"]),
        implementations=names,
        cases=tuple(map(LayerCase.parse, options["texts"])) or matrices[options["matrix"]](),
        device=options["device"],
    )


def _open_sides(options: Mapping[str, Any]) -> list[Side]:
    """Both arms' working trees, base first."""
    from perfgate_moe.build.checkout import open_checkout  # noqa: PLC0415 - loads torch
    from perfgate_moe.proof.proving import Side  # noqa: PLC0415 - loads torch

    caches = options["caches"] and options["caches"].resolve()
    trees: tuple[tuple[ArmName, Path, str | None, str], ...] = (
        ("base", options["base_checkout"], options["base_python"], "--base-checkout"),
        ("candidate", options["checkout"], options["python"], "--checkout"),
    )
    return [
        Side(arm=arm, checkout=open_checkout(tree, program, option), env=list_caches(caches and caches / arm))
        for arm, tree, program, option in trees
    ]


def tell(line: str) -> None:
    """Progress, a line for each kernel or case that is not as it should be."""
    click.echo(line, err=True)
