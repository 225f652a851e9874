"""`perfgate kernels`: judge fused MoE implementations and build ours ahead of time."""

from __future__ import annotations

from pathlib import Path

import click

from perfgate.errors import InputError


@click.group(name="kernels")
def command() -> None:
    """Judge fused MoE implementations, and build ours ahead of time."""


@command.command(name="list")
def list_implementations() -> None:
    """List what can be judged: built in, or registered under the entry point group `perfgate.kernels`."""
    from perfgate.kernels.implementations import registry  # noqa: PLC0415 - loads torch

    for name, implementation in sorted(registry().items()):
        where = "GPU" if implementation.needs_gpu else "CPU or GPU"
        click.echo(f"{name:20} {where:10} {implementation.target}")


@command.command(name="check")
@click.option("--impl", "name", required=True, metavar="NAME", help="A registered implementation, or module:function.")
@click.option("--case", "texts", multiple=True, metavar="CASE", help="A case as a report prints it; repeatable.")
@click.option("--matrix", type=click.Choice(["quick", "full"]), help="Run a whole matrix instead.")
@click.option("--device", default="cpu", show_default=True, help="Torch device, such as cuda.")
def check_implementation(name: str, texts: tuple[str, ...], matrix: str | None, device: str) -> int:
    """Judge one implementation on cases; one line each, exit code 1 if any answer is wrong."""
    _require_torch()
    from perfgate.kernels.cases import Case, full_matrix, quick_matrix  # noqa: PLC0415 - loads torch
    from perfgate.kernels.conformance import check, prepare  # noqa: PLC0415 - loads torch
    from perfgate.kernels.implementations import find  # noqa: PLC0415 - loads torch
    from perfgate.kernels.problem import NotApplicableError  # noqa: PLC0415 - loads torch

    if bool(texts) == bool(matrix):
        raise InputError("give either --case or --matrix, for example --matrix quick")
    implementation = find(name)
    implementation.load()
    cases = {"quick": quick_matrix, "full": full_matrix}[matrix]() if matrix else tuple(map(Case.parse, texts))
    wrong = left_out = 0
    for case in cases:
        try:
            report = check(implementation, prepare(case, device))
        except NotApplicableError as reason:
            left_out += 1
            click.echo(f"{case}: not covered: {reason}")
            continue
        click.echo(f"{case}: {report}")
        wrong += bool(report.problems)
    judged = len(cases) - left_out
    click.echo(f"{judged - wrong} of {judged} cases sound, {left_out} not covered by {implementation.name}")
    return 1 if wrong or not judged else 0


def _require_torch() -> None:
    """Say what to install rather than fail in an import."""
    try:
        import torch  # noqa: F401, PLC0415 - slow to load, and absent from the light install
    except ModuleNotFoundError as error:
        raise InputError("perfgate kernels needs torch: install the extra `cpu-engine` or `gpu`") from error


@command.command(name="build")
@click.option(
    "--arch", "archs", multiple=True, default=["sm_90"], show_default=True, help="sm_80, sm_90 or sm_100; repeatable."
)
@click.option("--only", default="", metavar="TEXT", help="Build kernels whose name contains TEXT.")
def build_kernels(archs: tuple[str, ...], only: str) -> int:
    """Compile every kernel variant, with or without a GPU; exit code 1 if machine code is refused.

    Refused are spills, too many registers, too much shared memory, products without matrix instructions, and relaxed
    reductions that the compiler fenced.
    """
    _require_torch()
    from perfgate.kernels.build import build, parse_arch  # noqa: PLC0415 - loads Triton
    from perfgate.kernels.recipes import recipes  # noqa: PLC0415 - loads Triton

    chosen = [recipe for recipe in recipes() if only in recipe.name]
    if not chosen:
        raise InputError(f"--only {only}: no kernel's name contains it; run without --only to see the names")
    refused = cached = 0
    for arch in [parse_arch(text) for text in archs]:
        for recipe in chosen:
            built = build(recipe, arch)
            refused += bool(built.problems)
            cached += built.is_cached
            click.echo(str(built))
    total = len(chosen) * len(archs)
    click.echo(f"{total - refused} of {total} kernels accepted, {cached} from Triton's cache")
    return 1 if refused else 0


@command.command(name="plug-in")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def write_plug_in(folder: Path) -> None:
    """Write into FOLDER what lets SGLang find the plug-ins of a checkout that is only on PYTHONPATH.

    Put FOLDER on PYTHONPATH too. Not needed where perfgate is installed.
    """
    from perfgate.kernels.checkout_site import write_site  # noqa: PLC0415 - one command of many

    click.echo(str(write_site(folder)))
