"""`perfgate kernels check`: judge one implementation, in lines or as a page with its time beside its peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from perfgate.cli.moe.kernel_builds import require_torch
from perfgate.cli.output import add_format_option, print_json, say
from perfgate.errors import InputError
from perfgate.readers.layer_timings import LayerCurve, LayerPoint
from perfgate.report.html.kernel_page import KernelCase, KernelReport, build_kernel_page
from perfgate.report.html.page import render_page
from perfgate.storage.places import write_file

PROCESSES = click.IntRange(min=1, max=64)
PEERS = {"cuda": ("triton", "sglang", "vllm"), "cpu": ("torch-float32", "vllm")}
TIMED = {"cuda": "gpt-oss-20b", "cpu": "E=8,k=2,H=256,I=256,dtype=bfloat16"}


@click.command(name="check")
@click.option("--impl", "name", required=True, metavar="NAME", help="A registered implementation, or module:function.")
@click.option("--case", "texts", multiple=True, metavar="CASE", help="A case as a report prints it; repeatable.")
@click.option("--matrix", type=click.Choice(["quick", "exam", "full"]), help="Run a whole matrix instead.")
@click.option("--device", default="cpu", show_default=True, help="Torch device, such as cuda.")
@click.option("--processes", type=PROCESSES, metavar="N", help="Share the cases among N. Default: by cores, memory and cases.")
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page too: what is wrong and why, errors, and the time beside its peers.",
)
@click.option(
    "--peer", "peers", multiple=True, metavar="NAME", help="Peer to time on the page; repeatable. Default: known ones."
)
@click.option("--shape", metavar="NAME", help="Layer to time on the page. Default: gpt-oss-20b, or a small one without a GPU.")
@click.option("--tokens", default="1,16,256", show_default=True, metavar="M,M,...", help="Numbers of tokens to time.")
@add_format_option
def check_implementation(
    *,
    name: str,
    texts: tuple[str, ...],
    matrix: str | None,
    device: str,
    processes: int | None,
    page: Path | None,
    style: str,
    **timed: Any,
) -> int:
    """Judge one implementation on cases, one line per case; exit code 1 if any answer is wrong.

    A line begins with two times in seconds: inputs with oracle, and implementation with compilation. The order of lines does
    not depend on --processes. A case that crashes its process is wrong, and the other cases still run.

    Wrong answers are compared with those of known mistakes; the line names the mistake that explains them.
    """
    require_torch()
    from perfgate.cli.moe.kernel_work import ask, choose_cases, explain, find  # noqa: PLC0415 - loads torch

    if bool(texts) == bool(matrix):
        raise InputError("give either --case or --matrix, for example --matrix quick")
    counts = parse_tokens(timed["tokens"])
    implementation = find(name)
    implementation.load()
    is_quiet = style == "json"
    found, has_ended = [], False
    for answer in ask(name, choose_cases(texts, matrix), device, processes):
        found.append(read_answer(answer))
        has_ended = has_ended or "last" in answer
        say(describe_answer(answer), err=is_quiet)
    # The mistake is looked for in this process, which a kernel that ended its own, or never answered, would end, too.
    diagnosis = "" if has_ended else explain(implementation, found, device)
    report = KernelReport(implementation=implementation.name, device=device, cases=tuple(found), diagnosis=diagnosis)
    if page is not None:
        report = add_times(report, timed["peers"], timed["shape"], counts)
        write_file(render_page(build_kernel_page(report)), page, "--page")
    tell(report, style)
    return 1 if report.wrong or not report.sound else 0


def describe_answer(answer: dict[str, Any]) -> str:
    """One line: what came of a case, behind the seconds that its inputs and oracle took, and the implementation."""
    told = answer.get("told") or f"not covered: {answer['not_covered']}"
    return f"{answer['asked_s']:6.2f} + {answer['answered_s']:6.2f} s {answer['case']}: {told}"


def read_answer(answer: dict[str, Any]) -> KernelCase:
    """One answer of the examiner."""
    if "not_covered" in answer:
        return KernelCase(case=answer["case"], left_out=answer["not_covered"])
    problems = tuple(answer["problems"])
    return KernelCase(case=answer["case"], problems=problems, error=answer["error"], share=answer["share"])


def add_times(report: KernelReport, peers: Sequence[str], shape: str | None, counts: Sequence[int]) -> KernelReport:
    """The report with the kernel's time beside its peers' on its device."""
    from perfgate.cli.moe.kernel_work import describe_device, find, find_shape, survey  # noqa: PLC0415 - loads torch

    kind = report.device.partition(":")[0]
    layer = shape or TIMED.get(kind, TIMED["cpu"])
    names = dict.fromkeys((report.implementation, *(peers or PEERS.get(kind, PEERS["cpu"]))))
    cells = list(survey([find(name) for name in names], find_shape(layer), counts, report.device))
    points = tuple(
        LayerPoint(tokens=cell.tokens, floor_us=cell.floor_us, samples_us=cell.samples_us) for cell in cells if cell.samples_us
    )
    untimed = {f"{name}, M = {cell.tokens}": reason for cell in cells for name, reason in cell.left_out.items()}
    device = ", ".join(f"{name} {value}" for name, value in describe_device().items() if value != "absent")
    return replace(report, device=device, curve=LayerCurve(shape=layer, points=points) if points else None, untimed=untimed)


def tell(report: KernelReport, style: str) -> None:
    """The sum of a check: how many are sound, and what the wrong ones have in common."""
    judged = len(report.sound) + len(report.wrong)
    left_out = len(report.cases) - judged
    if report.diagnosis:
        say(f"what is wrong: {report.diagnosis}", err=style == "json")
    line = f"{len(report.sound)} of {judged} cases sound, {left_out} not covered by {report.implementation}"
    say(line, err=style == "json")
    if style == "json":
        cases = [
            {"case": one.case, "not_covered": one.left_out} if one.left_out else {"case": one.case, "problems": one.problems}
            for one in report.cases
        ]
        content = {"implementation": report.implementation, "cases": cases, "judged": judged, "wrong": len(report.wrong)}
        print_json(content | {"diagnosis": report.diagnosis})


def parse_tokens(text: str) -> list[int]:
    """Numbers of tokens from `1,16,256`, in order, each once. InputError for anything else."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        raise InputError(f"--tokens {text}: give whole numbers above 0 with commas, such as 1,16,256")
    return sorted({int(word) for word in words})
