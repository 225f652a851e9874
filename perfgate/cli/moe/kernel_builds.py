"""`perfgate kernels build`: compile ahead of time, ours or those of an SGLang working tree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from perfgate.cli.output import add_format_option, print_json, say
from perfgate.errors import InputError


def require_torch() -> None:
    """Say what to install rather than fail in an import."""
    try:
        import torch  # noqa: F401, PLC0415 - slow to load, and absent from the light install
    except ModuleNotFoundError as error:
        raise InputError("perfgate kernels needs torch: install the extra `cpu-engine` or `gpu`") from error


@click.command(name="build")
@click.option(
    "--arch", "archs", multiple=True, default=["sm_90"], show_default=True, help="sm_80, sm_90 or sm_100; repeatable."
)
@click.option("--only", default="", metavar="TEXT", help="Build kernels whose name contains TEXT.")
@click.option(
    "--checkout",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Build the kernels of this SGLang working tree instead of ours.",
)
@click.option("--python", metavar="PROGRAM", help="The Python that runs the checkout. Default: its .venv's.")
@click.option("--base", metavar="REF", help="Build the checkout's sgl-kernel wheel too, if it differs from this commit.")
@click.option(
    "--wheels",
    type=click.Path(file_okay=False, path_type=Path),
    default="wheels",
    show_default=True,
    metavar="DIR",
    help="Where that wheel and its log go.",
)
@add_format_option
def build_kernels(
    archs: tuple[str, ...], only: str, checkout: Path | None, python: str | None, base: str | None, wheels: Path, style: str
) -> int:
    """Compile every kernel variant, with or without a GPU; exit code 1 if one is refused.

    Machine code is refused for spills, too many registers, too much shared memory, products without matrix instructions, and
    fences around relaxed reductions. With --checkout, SGLang's MoE kernel is compiled in the checkout's environment with the
    parameters of its launches, so that a server finds it in Triton's cache.
    """
    require_torch()
    if checkout is not None:
        if only:
            raise InputError("--only names kernels of ours: leave it out with --checkout")
        return build_checkout(checkout, python, archs, base, wheels, style)
    if python or base:
        raise InputError("--python and --base are for a checkout: give --checkout DIR")
    from perfgate.cli.moe.kernel_work import build_own  # noqa: PLC0415 - loads Triton

    found = []
    for built in build_own(archs, only):
        found.append(built)
        say(str(built), err=style == "json")
    return tell_built(found, style)


def tell_built(found: Sequence[Any], style: str, **more: Any) -> int:
    """Say how many kernels were accepted, as a line or with all of them in one document; the exit code."""
    refused, cached = sum(bool(built.problems) for built in found), sum(built.is_cached for built in found)
    if style == "json":
        kernels = [
            {
                "kernel": built.recipe,
                "arch": built.arch,
                "registers": built.machine.registers,
                "shared_bytes": built.shared_bytes,
                "seconds": built.seconds,
                "is_cached": built.is_cached,
                "problems": built.problems,
            }
            for built in found
        ]
        print_json({"kernels": kernels, "total": len(found), "accepted": len(found) - refused, **more})
    else:
        say(f"{len(found) - refused} of {len(found)} kernels accepted, {cached} from Triton's cache")
    return 1 if refused or not found else 0


def build_checkout(folder: Path, python: str | None, archs: tuple[str, ...], base: str | None, wheels: Path, style: str) -> int:
    """Build an SGLang working tree's kernels; one line each."""
    from perfgate.cli.moe.kernel_work import SIXTEEN_BIT_SHAPES, parse_arch, sglang  # noqa: PLC0415 - loads Triton and torch

    tree = sglang.open_checkout(folder, python)
    is_wheel_due = base is not None and sglang.is_kernel_changed(tree, base)
    found = []
    for arch in [parse_arch(text) for text in archs]:
        for built in sglang.build_triton(tree, list(SIXTEEN_BIT_SHAPES.items()), arch):
            found.append(built)
            fences = sglang.count_fences(built)
            say(f"{built}" + (f", {fences} fences" if fences else ""), err=style == "json")
    wheel = sglang.build_wheel(tree, wheels) if is_wheel_due else None
    code = tell_built(found, style, wheel=wheel and wheel.path)
    if wheel is not None:
        through = "through ccache" if wheel.has_ccache else "without ccache, which is not installed"
        say(f"{wheel.path}: built in {wheel.seconds:.0f} s {through}", err=style == "json")
    elif base is not None:
        say(f"{sglang.KERNEL_FOLDER} is as in {base}: no wheel needed", err=style == "json")
    return code
