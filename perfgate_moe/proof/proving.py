"""Build and examine the kernels of two working trees alike, each in its own environment: what a session takes over as proof.

A pull request's code runs here, so anything that it does counts as an answer: a process that dies or stops answering is wrong
in the case that it was at, and a new one is asked the rest.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from perfgate_moe.build.checkout import Checkout, are_kernels_equal, build_wheel, install_wheel, read_triton, start_triton
from perfgate_moe.errors import BuildError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.proof.sharing import BYTES_PER_PROCESS, DeviceMemory, Examinee, SharedExam, count_free_bytes, count_processes
from perfgate_moe.proof.values import MAX_FINDINGS, MAX_LINE, ArmName, Build, Exam, KernelError, KernelFinding, KernelProof


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One arm: its working tree with the Python that runs it, and what its environment adds, such as compile caches."""

    arm: ArmName
    checkout: Checkout
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRequest:
    """What both sides are put to: `layers` by name to build kernels for, and the cases that `implementations` answer.

    Each side shares the cases among `processes`; None chooses by cores, memory and the number of cases.
    """

    layers: Sequence[tuple[str, LayerCase]]
    arch: int
    implementations: Sequence[str]
    cases: Sequence[LayerCase]
    device: str
    processes: int | None = None


def prove(sides: Sequence[Side], request: ProofRequest, wheels: Path, tell: Callable[[str], None]) -> KernelProof:
    """Build and examine both sides alike; `tell` takes a line as each step ends, and one for what is not as it should be."""
    try:
        wheel = bring_wheels(sides, wheels, tell)
    except BuildError as error:
        return KernelProof(failure=clean(str(error)))
    builds = build_sides(sides, request, tell)
    exams = [exam for name in request.implementations for exam in examine_sides(sides, name, request, tell)]
    return KernelProof(builds=builds, exams=tuple(exams), wheel=wheel)


def bring_wheels(sides: Sequence[Side], folder: Path, tell: Callable[[str], None]) -> str:
    """Build and install sgl-kernel for both sides where their sources differ; the candidate's wheel's name, or nothing.

    The base's too: its engine brings a released wheel, which another compiler made of other sources. BuildError when one cannot
    be built, since without it a side would run with kernels that are not its own.
    """
    if are_kernels_equal(*(side.checkout.folder for side in sides)):
        return ""
    name = ""
    for side in sides:
        wheel = build_wheel(side.checkout, folder / side.arm)
        install_wheel(side.checkout, wheel)
        tell(f"{side.arm}: {wheel.path.name}: built in {wheel.seconds:.0f} s and installed")
        name = wheel.path.name
    return clean(name)


def build_sides(sides: Sequence[Side], request: ProofRequest, tell: Callable[[str], None]) -> tuple[Build, ...]:
    """Compile the kernels that each side's SGLang launches, all sides at once, into the cache that its server will read."""
    begun = monotonic()
    with ExitStack() as stack:
        started = [stack.enter_context(start_triton(side.checkout, request.layers, request.arch, side.env)) for side in sides]
        builds = tuple(_judge_build(side, one, request.arch, tell) for side, one in zip(sides, started, strict=True))
    counts = ", ".join(f"{build.kernels} of the {build.arm}" for build in builds)
    tell(f"kernels compiled in {monotonic() - begun:.0f} s: {counts}")
    return builds


def _judge_build(side: Side, process: subprocess.Popen[str], arch: int, tell: Callable[[str], None]) -> Build:
    """Wait for a side's kernels, and say which are refused."""
    refused, kernels = [], 0
    try:
        for built in read_triton(side.checkout, process, arch):
            kernels += 1
            if built.problems:
                tell(clean(f"{side.arm}: {built}"))
                refused.append(KernelFinding(name=clean(built.recipe), problem=clean("; ".join(built.problems))))
    except BuildError as error:
        tell(clean(f"{side.arm}: {error}"))
        # By a name that only this arm has: a candidate that does not compile is refused even where the base does not either.
        refused.append(KernelFinding(name=f"{side.arm}'s fused MoE kernel", problem=clean(str(error))))
    return Build(arm=side.arm, arch=f"sm_{arch}", kernels=kernels, refused=tuple(refused[:MAX_FINDINGS]))


def examine_sides(sides: Sequence[Side], name: str, request: ProofRequest, tell: Callable[[str], None]) -> list[Exam]:
    """Ask each side's implementation the cases, all sides at once as nothing is timed, and the device's memory shared."""
    begun = monotonic()
    free_bytes = count_free_bytes(request.device)
    each = request.processes or count_processes(request.cases, free_bytes, len(sides))
    memory = DeviceMemory(free_bytes - each * len(sides) * BYTES_PER_PROCESS)
    with ExitStack() as stack:
        asked = []
        for side in sides:
            env = side.checkout.build_environment(side.env)
            examinee = Examinee(implementation=name, python=side.checkout.python, env=env, device=request.device)
            asked.append(stack.enter_context(SharedExam(examinee, request.cases, each, memory)))
        exams = [_sum_up(side, name, answers, tell) for side, answers in zip(sides, asked, strict=True)]
    tell(clean(f"{name}: {len(request.cases)} cases put to both arms by {each} processes each in {monotonic() - begun:.0f} s"))
    return exams


def _sum_up(side: Side, name: str, answers: Iterable[dict[str, Any]], tell: Callable[[str], None]) -> Exam:
    """Count what is right, wrong and not covered."""
    sound, worst = 0, 0.0
    wrong: list[KernelFinding] = []
    left_out: list[KernelFinding] = []
    errors: list[KernelError] = []
    for answer in answers:
        if "not_covered" in answer:
            left_out.append(KernelFinding(name=answer["case"], problem=clean(answer["not_covered"])))
        elif answer["problems"]:
            wrong.append(KernelFinding(name=answer["case"], problem=clean("; ".join(map(str, answer["problems"])))))
            tell(clean(f"{side.arm}, {name}, {wrong[-1].name}: WRONG: {wrong[-1].problem}"))
        else:
            sound, worst = sound + 1, max(worst, answer["share"])
            errors.append(KernelError(name=answer["case"], error=answer["error"]))
    return Exam(
        arm=side.arm,
        implementation=clean(name),
        sound=sound,
        worst=worst,
        wrong=tuple(wrong),
        left_out=tuple(left_out),
        errors=tuple(errors[:MAX_FINDINGS]),
    )


def clean(text: str) -> str:
    """One printable line of what a working tree's code wrote, no longer than a proof takes."""
    return "".join(char if char.isprintable() else " " for char in text)[:MAX_LINE]
