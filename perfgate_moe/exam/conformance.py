"""Run one case through one implementation and say every way in which the answer is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from perfgate_moe.errors import NotApplicableError, VacuousCaseError
from perfgate_moe.exam.accuracy import TOLERANCES, Errors, Tolerance, measure
from perfgate_moe.exam.data import build
from perfgate_moe.exam.implementations import Implementation
from perfgate_moe.layer.reference import oracle

if TYPE_CHECKING:
    from perfgate_moe.exam.cases import LayerCase
    from perfgate_moe.layer.problem import Problem


FLOAT_POISON = float("nan")
INT_POISON = -77
BYTE_POISON = 0x7F  # NaN among 8-bit floats


@contextmanager
def poisoned_allocations() -> Iterator[None]:
    """Within the block, torch.empty and its relatives return NaN (floats) or a wild negative number (integers)."""
    allocators = {torch.empty, torch.empty_like, torch.Tensor.new_empty}

    class Poison(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            result = func(*args, **(kwargs or {}))
            if func in allocators and result.element_size() == 1:
                result.view(torch.uint8).fill_(BYTE_POISON)
            elif func in allocators:
                result.fill_(FLOAT_POISON if result.is_floating_point() else INT_POISON)
            return result

    with Poison():
        yield


GUARD_ROWS = 8
GUARD_VALUE = 12345.0
RERUNS = 2
# What a kernel author's code may raise: anything, and the end of the program. Who crashes on a case has failed it.
CRASHES = (Exception, SystemExit)
ROOT_MEAN_SQUARE_RANGE = (0.1, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseReport:
    """What one implementation did with one case; `problems` is empty for a sound answer."""

    case: LayerCase
    implementation: str
    errors: Errors | None
    problems: tuple[str, ...]

    @property
    def reproduction(self) -> str:
        """One shell line that shows it again."""
        return f"perfgate kernels check --impl {self.implementation} --case {self.case}"

    def __str__(self) -> str:
        """One line: the verdict, the distances, the command."""
        numbers = (
            "" if self.errors is None else " ".join(f"{e.name}={getattr(self.errors, e.name):.2e}" for e in fields(self.errors))
        )
        state = "ok" if not self.problems else "WRONG: " + "; ".join(self.problems)
        return f"{state} [{numbers}] reproduce: {self.reproduction}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCase:
    """A case with its tensors, the float64 answer, and copies of the inputs to compare with afterwards; reusable."""

    case: LayerCase
    problem: Problem
    reference: Tensor
    originals: dict[str, Tensor]

    def copy_inputs(self) -> dict[str, Tensor]:
        """Fresh copies of what an implementation must leave alone, but for scales, as fields of a problem."""
        return {name: tensor.clone() for name, tensor in self.originals.items() if "." not in name}


def prepare(case: LayerCase, device: str = "cpu") -> PreparedCase:
    """Build a case on `device` and compute its float64 answer; VacuousCaseError when its tolerances would say nothing."""
    problem = build(case, device)
    reference = oracle(problem)
    require_meaningful(case, reference)
    return PreparedCase(case=case, problem=problem, reference=reference, originals=_inputs(problem))


def check(
    implementation: Implementation, exam: PreparedCase, tolerance: Tolerance | None = None, reruns: int = RERUNS
) -> CaseReport:
    """Judge one answer: finite where it must be, near the oracle, rerun alike, its own, nothing else written."""
    guarded, guards = _guard(exam.problem)
    run = implementation.load()
    try:
        with poisoned_allocations():
            held = run(guarded)
            answer = held.clone()
    except NotApplicableError:
        raise
    except CRASHES as error:
        problem = f"raised {type(error).__name__}: {str(error).strip().splitlines()[:1]}"
        return CaseReport(case=exam.case, implementation=implementation.name, errors=None, problems=(problem,))
    if form := describe_form(answer, guarded.out):
        return CaseReport(case=exam.case, implementation=implementation.name, errors=None, problems=(form,))
    tolerance = tolerance or TOLERANCES[exam.case.precision]
    errors, findings = judge(answer, exam, tolerance)
    if not findings and exam.case.M > 1:
        findings += _reuse(run, exam, held, tolerance)
    if implementation.is_deterministic:
        findings += _rerun(run, replace(exam, problem=guarded), answer, tolerance, reruns)
    findings += _side_effects(exam, guards)
    return CaseReport(case=exam.case, implementation=implementation.name, errors=errors, problems=tuple(findings))


def require_meaningful(case: LayerCase, reference: Tensor) -> None:
    """Refuse a case whose reference is not of the order of one: an all-zero answer must never pass."""
    finite = reference[reference.isfinite().all(dim=1)]
    if case.mask == "all" or not finite.numel():
        return
    size = float(finite.square().mean().sqrt())
    low, high = ROOT_MEAN_SQUARE_RANGE
    if not low <= size <= high:
        raise VacuousCaseError(
            f"case {case}: its answer has root mean square {size:.3g}, outside [{low}, {high}]: rescale its data"
        )


def _guard(problem: Problem) -> tuple[Problem, Tensor]:
    """Put the output between guard rows; returns the problem that writes there and the whole buffer."""
    rows, columns = problem.out.shape
    buffer = problem.out.new_full((rows + 2 * GUARD_ROWS, columns), GUARD_VALUE)
    out = buffer[GUARD_ROWS : GUARD_ROWS + rows]
    out.fill_(float("nan"))
    return replace(problem, out=out), buffer


def _inputs(problem: Problem) -> dict[str, Tensor]:
    """Copies of the tensors that an implementation must leave alone."""
    return {name: tensor.clone() for name, tensor in _tensors(problem).items()}


def _tensors(problem: Problem) -> dict[str, Tensor]:
    names = ("hidden", "gate_up", "down", "gate_up_bias", "down_bias", "topk_weights", "topk_ids")
    found = {name: getattr(problem, name) for name in names}
    if problem.scales is not None:
        found |= {"scales.gate_up": problem.scales.gate_up, "scales.down": problem.scales.down}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _side_effects(exam: PreparedCase, buffer: Tensor) -> list[str]:
    """Name damaged inputs, and restore them so that the exam can be used again."""
    found = []
    tensors = _tensors(exam.problem)
    for name, original in exam.originals.items():
        tensor = tensors[name]
        if not _is_same(original, tensor):
            found.append(f"input {name} was overwritten")
            tensor.copy_(original)
    if not all(bool((rows == GUARD_VALUE).all()) for rows in (buffer[:GUARD_ROWS], buffer[-GUARD_ROWS:])):
        found.append("rows outside the output were written")
    return found


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same values; NaN is NaN, and 8-bit floats are compared by their bits."""
    if one.element_size() == 1:
        return bool(torch.equal(one.view(torch.uint8), other.view(torch.uint8)))
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()))


def describe_form(answer: object, out: Tensor) -> str | None:
    """What sets the form of an answer apart from that of the output that was to be filled; None where nothing does."""
    if not isinstance(answer, Tensor):
        return f"answer is a {type(answer).__name__}, expected a tensor"
    forms = [[tuple(one.shape), one.dtype, one.layout, one.device.type] for one in (answer, out)]
    if forms[0] == forms[1]:
        return None
    # Layout and device are told where they differ.
    places = [place for place in range(len(forms[0])) if place < 2 or forms[0][place] != forms[1][place]]
    is_form, wanted = (" ".join(str(form[place]) for place in places) for form in forms)
    return f"answer is {is_form}, expected {wanted}"


def judge(answer: Tensor, exam: PreparedCase, tolerance: Tolerance) -> tuple[Errors | None, list[str]]:
    """Distances over the rows that are finite in the reference, and what is wrong with them."""
    problem, reference = exam.problem, exam.reference
    if form := describe_form(answer, problem.out):
        return None, [form]
    sound = reference.isfinite().all(dim=1)
    found = []
    # What a token that holds an infinity gets is left open: SiLU at minus infinity is 0 by one formula and NaN by another.
    if exam.case.data != "inf" and bool(answer[~sound].isfinite().all(dim=1).any()):
        found.append("a token with NaN got a finite answer")
    if not bool(answer[sound].isfinite().all()):
        return None, [
            *found,
            f"{int((~answer[sound].isfinite()).sum())} elements are NaN or infinite (unwritten, leaked or overflowed)",
        ]
    if not bool(sound.any()):
        return None, found
    errors = measure(answer[sound], reference[sound], problem.intermediate_size)
    return errors, [*found, *tolerance.violations(errors)]


def _reuse(run: Callable[[Problem], Tensor], exam: PreparedCase, held: Tensor, tolerance: Tolerance) -> list[str]:
    """Other tokens in the same buffers get their own answer, and leave the first one alone, as a replayed graph has it.

    `held` is the first answer as it was handed over. The tokens are moved on by one, so that the oracle's rows move too.
    """
    first = held.clone()
    changing = {name: _tensors(exam.problem)[name] for name in ("hidden", "topk_weights", "topk_ids")}
    for name, tensor in changing.items():
        tensor.copy_(exam.originals[name].roll(1, dims=0))
    again, _ = _guard(exam.problem)
    moved = replace(exam, reference=exam.reference.roll(1, dims=0))
    findings = [f"other tokens in the same buffers: {finding}" for finding in judge(run(again), moved, tolerance)[1]]
    for name, tensor in changing.items():
        tensor.copy_(exam.originals[name])
    return findings if _is_same(first, held) else [*findings, "the next call overwrote an answer"]


def _rerun(
    run: Callable[[Problem], Tensor], exam: PreparedCase, answer: Tensor, tolerance: Tolerance, reruns: int
) -> list[str]:
    """A deterministic implementation gives the same bits again, with other values left in its output buffer.

    A rerun whose values are wrong is told as that: a sum in another order changes bits, memory of others changes more.
    """
    for _ in range(reruns):
        exam.problem.out.fill_(GUARD_VALUE)
        again = run(exam.problem)
        if not bool(((again == answer) | (again.isnan() & answer.isnan())).all()):
            return ["a rerun gave other bits", *(f"a rerun: {finding}" for finding in judge(again, exam, tolerance)[1])]
    return []
