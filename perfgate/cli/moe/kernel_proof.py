"""`perfgate kernels prove`: build and examine what a pull request makes of the kernels, before anything is measured."""

from __future__ import annotations

from pathlib import Path

import click

from perfgate.cli.moe.kernel_builds import require_torch
from perfgate.cli.output import add_format_option, print_json
from perfgate.errors import InputError
from perfgate.results.records import save_proof
from perfgate.serving.engine.arms import list_caches
from perfgate.verdict.validity.kernel_proof import check_kernels, describe_proof
from perfgate_moe.errors import BuildError
from perfgate_moe.proof.values import ArmName, KernelProof

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
def prove_kernels(  # noqa: PLR0913 - one parameter for each option
    *,
    checkout: Path,
    base_checkout: Path,
    python: str | None,
    base_python: str | None,
    output: Path,
    names: tuple[str, ...],
    matrix: str,
    texts: tuple[str, ...],
    device: str,
    shapes: tuple[str, ...],
    arch: str,
    caches: Path | None,
    wheels: Path,
    style: str,
) -> int:
    """Build both arms' kernels and compare their answers with the oracle; exit code 1 if the candidate is worse than the base.

    Both are asked the same cases: what the base gets wrong already does not count against the change. Where the sources of
    sgl-kernel differ, both trees' wheels are built and put into their environments first. `perfgate run --kernel-proof FILE`
    takes the proof over into the result folder.
    """
    require_torch()
    from perfgate_moe.build.build import parse_arch  # noqa: PLC0415 - loads Triton
    from perfgate_moe.build.checkout import open_checkout  # noqa: PLC0415 - loads torch
    from perfgate_moe.exam.cases import LayerCase, full_matrix, quick_matrix  # noqa: PLC0415 - loads torch
    from perfgate_moe.exam.implementations import find  # noqa: PLC0415 - loads torch
    from perfgate_moe.proof.proving import Side, bring_wheels, build_side, clean, examine_side  # noqa: PLC0415 - loads torch
    from perfgate_moe.timing.shapes import SIXTEEN_BIT_SHAPES, find_shape  # noqa: PLC0415 - loads torch

    if len(set(names)) < len(names):
        raise InputError("--impl: give each implementation once, for example --impl sglang")
    for name in names:
        find(name)
    cases = tuple(map(LayerCase.parse, texts)) or {"quick": quick_matrix, "full": full_matrix}[matrix]()
    target = parse_arch(arch)
    layers = [(name, find_shape(name)) for name in shapes or SIXTEEN_BIT_SHAPES]
    trees: tuple[tuple[ArmName, Path, str | None, str], ...] = (
        ("base", base_checkout, base_python, "--base-checkout"),
        ("candidate", checkout, python, "--checkout"),
    )
    sides = [
        Side(arm=arm, checkout=open_checkout(tree, program, option), env=list_caches(caches and caches.resolve() / arm))
        for arm, tree, program, option in trees
    ]
    try:
        wheel = bring_wheels(sides, wheels, tell)
    except BuildError as error:
        proof = KernelProof(failure=clean(str(error)))
    else:
        builds = tuple(build_side(side, layers, target, tell) for side in sides)
        exams = tuple(examine_side(side, name, cases, device, tell) for name in names for side in sides)
        proof = KernelProof(builds=builds, exams=exams, wheel=wheel)
    save_proof(proof, output)
    problems = list(check_kernels(proof))
    if style == "json":
        print_json({"file": output, "kernels": describe_proof(proof), "problems": problems})
    else:
        click.echo(describe_proof(proof))
    for problem in problems:
        click.echo(f"perfgate: {problem}", err=True)
    return 1 if problems else 0


def tell(line: str) -> None:
    """Progress, a line for each kernel or case that is not as it should be."""
    click.echo(line, err=True)
