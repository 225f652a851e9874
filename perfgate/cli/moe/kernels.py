"""`perfgate kernels`: judge fused MoE implementations and build ours ahead of time."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from perfgate.cli.given import Number
from perfgate.cli.moe.kernel_builds import build_kernels, require_torch
from perfgate.cli.moe.kernel_check import check_implementation, parse_tokens
from perfgate.cli.moe.kernel_proof import prove_kernels
from perfgate.cli.output import add_format_option, print_json, print_result, say
from perfgate_moe.build.site import write_site


@click.group(name="kernels")
def command() -> None:
    """Judge fused MoE implementations, and compile perfgate's own ahead of time."""


command.add_command(build_kernels)
command.add_command(check_implementation)
command.add_command(prove_kernels)


@command.command(name="list")
@add_format_option
def list_implementations(style: str) -> None:
    """List the implementations: built in, or registered under the entry point group `perfgate_moe`."""
    require_torch()
    from perfgate_moe.exam.implementations import registry  # noqa: PLC0415 - loads torch

    if style == "json":
        print_json([asdict(implementation) for _, implementation in sorted(registry().items())])
        return
    for name, implementation in sorted(registry().items()):
        where = "GPU" if implementation.needs_gpu else "CPU or GPU"
        say(f"{name:20} {where:10} {implementation.target}")


@command.command(name="tune")
@click.option(
    "--shape", required=True, metavar="NAME", help="gpt-oss-20b, deepseek-v3-tp8-fp8, ..., or a case such as E=8,k=2,H=64,I=64."
)
@click.option("--tokens", default="1,4,16,64,256,1024,4096", show_default=True, metavar="M,M,...", help="Numbers of tokens.")
@click.option("--seconds", type=Number(min=0), default=60.0, show_default=True, help="Longest search per side.")
@click.option("--plans", type=click.IntRange(min=1), default=200, show_default=True, help="Most plans to time per side.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="The table. Default: this device's in the package."
)
@add_format_option
def tune_plans(*, shape: str, tokens: str, seconds: float, plans: int, out: Path | None, style: str) -> None:
    """Search for the fastest plan of a layer on this GPU, and store it with the details of the search.

    SGLang's kernels are searched with the same tiles and budget, and timed in turns with ours; its runner of 4-bit weights
    chooses its tiles by itself. Entries that the table already has from these versions are kept, so the same command continues
    an interrupted search.
    """
    require_torch()
    from perfgate.cli.moe.kernel_work import Budget, Tuning  # noqa: PLC0415 - loads torch

    counts = parse_tokens(tokens)
    tuning = Tuning.open(shape, counts, out, Budget(seconds=seconds, plans=plans))
    if tuning.skipped:
        say(f"in the table already: M = {', '.join(map(str, tuning.skipped))}", err=style == "json")
    results = []
    for result in tuning.run():
        results.append(result)
        say(describe_tuned(result), err=style == "json")
    content = {"table": tuning.path, "shape": tuning.key, "already_tuned": tuning.skipped, "tuned": results}
    print_result(style, content, tuning.path)


def describe_tuned(result: dict[str, Any]) -> str:
    """One line for one tuned number of tokens."""
    tried = ", ".join(f"{count} plans of {name}" for name, count in result["tried"].items())
    cut = " (cut short by the budget)" if any(result["is_cut_short"].values()) else ""
    line = f"M = {result['tokens']}: ours {result['ours_us']:.1f} us"
    if "upstream_us" in result:
        ratio, low, high = result["upstream_over_ours"]
        line += f", SGLang {result['upstream_us']:.1f} us, ratio {ratio:.3f} [{low:.3f}, {high:.3f}]"
    return f"{line}; timed {tried}{cut}"


@command.command(name="plug-in")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@add_format_option
def write_plug_in(folder: Path, style: str) -> None:
    """Write metadata into FOLDER so that SGLang finds the plug-ins of a checkout that is only on PYTHONPATH.

    Put FOLDER on PYTHONPATH too. Not needed if perfgate is installed.
    """
    path = write_site(folder)
    print_result(style, {"file": path}, path)
