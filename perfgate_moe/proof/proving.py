"""Build and examine the kernels of two working trees alike, each in its own environment: what a session takes over as proof.

A pull request's code runs here, so anything that it does counts as an answer: a process that dies or stops answering is wrong
in the case that it was at, and a new one is asked the rest.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from perfgate_moe.build.checkout import Checkout, are_kernels_equal, build_triton, build_wheel, end_group, install_wheel
from perfgate_moe.errors import BuildError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.examiner import BROKEN_DEVICE
from perfgate_moe.proof.values import MAX_FINDINGS, MAX_LINE, ArmName, Build, Exam, KernelError, KernelFinding, KernelProof

ANSWER_TIMEOUT_S = 300.0
"""A case that compiles takes seconds; one without an answer for so long hangs."""

LOAD_TIMEOUT_S = 300.0
"""A process that is not ready by then hangs, too: it loads torch and the engine."""

MOST_SHARE = 1e12
"""No error of a right answer is a larger share of its limit."""

AGAIN = "again"
"""How a process ends whose device a case has broken: another process is asked the rest."""

MAX_PROCESSES = 8
"""A broken device fails every case; after so many processes that broke, the rest is not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One arm: its working tree with the Python that runs it, and what its environment adds, such as compile caches."""

    arm: ArmName
    checkout: Checkout
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRequest:
    """What both sides are put to: `layers` by name to build kernels for, and the cases that `implementations` answer."""

    layers: Sequence[tuple[str, LayerCase]]
    arch: int
    implementations: Sequence[str]
    cases: Sequence[LayerCase]
    device: str


def prove(sides: Sequence[Side], request: ProofRequest, wheels: Path, tell: Callable[[str], None]) -> KernelProof:
    """Build and examine both sides alike; `tell` takes a line for each kernel or case that is not as it should be."""
    try:
        wheel = bring_wheels(sides, wheels, tell)
    except BuildError as error:
        return KernelProof(failure=clean(str(error)))
    builds = tuple(build_side(side, request.layers, request.arch, tell) for side in sides)
    exams: list[Exam] = []
    with ThreadPoolExecutor(len(sides)) as pool:  # nothing is timed, so both arms are asked at once
        for name in request.implementations:
            ask = partial(examine_side, name=name, cases=request.cases, device=request.device, tell=tell)
            exams += pool.map(ask, sides)
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


def build_side(side: Side, layers: Sequence[tuple[str, LayerCase]], arch: int, tell: Callable[[str], None]) -> Build:
    """Compile the kernels that a side's SGLang launches for `layers`, into the cache that its server will read."""
    refused, kernels = [], 0
    try:
        for built in build_triton(side.checkout, layers, arch, side.env):
            kernels += 1
            if built.problems:
                tell(clean(f"{side.arm}: {built}"))
                refused.append(KernelFinding(name=clean(built.recipe), problem=clean("; ".join(built.problems))))
    except BuildError as error:
        tell(clean(f"{side.arm}: {error}"))
        # By a name that only this arm has: a candidate that does not compile is refused even where the base does not either.
        refused.append(KernelFinding(name=f"{side.arm}'s fused MoE kernel", problem=clean(str(error))))
    return Build(arm=side.arm, arch=f"sm_{arch}", kernels=kernels, refused=tuple(refused[:MAX_FINDINGS]))


def examine_side(side: Side, name: str, cases: Sequence[LayerCase], device: str, tell: Callable[[str], None]) -> Exam:
    """Ask a side's implementation each of `cases`, and count what is right, wrong and not covered."""
    sound, worst = 0, 0.0
    wrong: list[KernelFinding] = []
    left_out: list[KernelFinding] = []
    errors: list[KernelError] = []
    for answer in _ask_all(side, name, [str(case) for case in cases], device):
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


def _ask_all(side: Side, name: str, cases: Sequence[str], device: str) -> Iterator[dict[str, Any]]:
    """An answer to each case, in order, from as many processes as it takes up to MAX_PROCESSES."""
    left = list(cases)
    for _ in range(MAX_PROCESSES):
        end = ""
        for answer in _ask(side, name, left, device):
            if "ended" in answer:
                end = answer["ended"]
                break
            left.remove(answer["case"])
            yield answer
        if not left:
            return
        if end != AGAIN:
            yield {"case": left.pop(0), "problems": [end or "its process ended too early"]}
    yield from ({"case": case, "not_covered": f"not asked: {MAX_PROCESSES} processes had broken by then"} for case in left)


def _ask(side: Side, name: str, cases: Sequence[str], device: str) -> Iterator[dict[str, Any]]:
    """The answers of one process, and how it ended if that was not well; AGAIN where another shall go on."""
    if not cases:
        return
    request = json.dumps({"implementation": name, "cases": list(cases), "device": device})
    command = [side.checkout.python, "-W", "ignore", "-m", "perfgate_moe.exam.examiner"]
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as question:
        question.write(request)
        question.seek(0)
        process = subprocess.Popen(
            command,
            env=side.checkout.build_environment(side.env),
            stdin=question,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        expected = list(cases)
        with process, _HangWatch(process) as watch:
            for line in process.stdout or ():
                watch.restart(ANSWER_TIMEOUT_S)
                answer = _read_answer(line)
                # Anything else that the working tree's code writes is no answer.
                if answer is not None and expected and answer["case"] == expected[0]:
                    yield answer
                    expected.pop(0)
            process.wait()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["it said nothing"])[-1]
    if watch.is_timed_out:
        yield {"ended": f"no answer within {watch.limit_s:.0f} s: it hangs"}
    elif process.returncode == BROKEN_DEVICE:
        yield {"ended": AGAIN}
    elif process.returncode:
        yield {"ended": f"its process ended with {process.returncode}: {last}"}


def _read_answer(line: str) -> dict[str, Any] | None:
    """One answer; None for a line that is none."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("case"), str):
        return None
    if isinstance(answer.get("not_covered"), str):
        return answer
    are_numbers = _is_size(answer.get("share")) and _is_size(answer.get("error"))
    return answer if isinstance(answer.get("problems"), list) and (are_numbers or answer["problems"]) else None


def _is_size(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 <= value < MOST_SHARE


class _HangWatch:
    """Kill a process that writes no line for as long as it may take: to load, then for each answer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._timer: threading.Timer | None = None
        self.is_timed_out = False
        self.limit_s = LOAD_TIMEOUT_S

    def __enter__(self) -> Self:
        self.restart(self.limit_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        end_group(self._process)

    def restart(self, limit_s: float) -> None:
        self._stop()
        self.limit_s = limit_s
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        self.is_timed_out = True
        end_group(self._process)
