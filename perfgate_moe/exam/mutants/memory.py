"""Wrong buffers: stale, shifted, unwritten, overwritten, or holding the wrong thing."""

from __future__ import annotations

import torch
from torch import Tensor

from perfgate_moe.exam.mutants.registry import impure, mutant
from perfgate_moe.layer import reference
from perfgate_moe.layer.problem import Problem

BLOCK = 32
MANY_ROWS, MANY_COLUMNS = 255, 1024


@mutant
def zeros(problem: Problem) -> Tensor:
    """Nothing is computed."""
    return torch.zeros_like(problem.out)


@impure
def unwritten(problem: Problem) -> Tensor:
    """The output buffer is returned as it came."""
    return problem.out


@mutant
def skipped_hidden_tail(problem: Problem) -> Tensor:
    """A grid rounded down leaves the last columns of the answer at zero."""
    answer = reference.staged(problem)
    answer[:, problem.hidden_size // BLOCK * BLOCK :] = 0
    return answer


@impure
def stale_output(problem: Problem) -> Tensor:
    """Sums are added to what the output buffer held."""
    return problem.out.add_(reference.staged(problem))


@impure
def stale_empty_rows(problem: Problem) -> Tensor:
    """Tokens without any local expert keep what the output buffer held."""
    has_expert = (problem.topk_ids >= 0).any(dim=1, keepdim=True)
    return problem.out.copy_(torch.where(has_expert, reference.staged(problem), problem.out))


@mutant
def shifted_rows(problem: Problem) -> Tensor:
    """Every answer lands one row too far."""
    return reference.staged(problem).roll(1, dims=0)


@mutant
def leaked_nan(problem: Problem) -> Tensor:
    """Padding is handled by multiplying with zero, which keeps another token's NaN."""
    return reference.staged(problem) + 0 * problem.hidden.sum()


@mutant
def swallowed_nan(problem: Problem) -> Tensor:
    """NaN inputs come out as finite numbers."""
    return reference.staged(problem).nan_to_num()


@impure
def wrong_dtype(problem: Problem) -> Tensor:
    """The answer is not in the layer's dtype."""
    return reference.staged(problem).double()


@impure
def overwritten_input(problem: Problem) -> Tensor:
    """The hidden states serve as scratch."""
    answer = reference.staged(problem)
    problem.hidden.copy_(answer)
    return answer


@impure
def out_of_bounds(problem: Problem) -> Tensor:
    """A padded block writes one row past the output."""
    answer = problem.out.copy_(reference.staged(problem))
    rows, columns = answer.shape
    torch.as_strided(answer, (rows + 1, columns), (columns, 1), answer.storage_offset())[rows] = 0
    return answer


@impure
def uninitialised_scratch(problem: Problem) -> Tensor:
    """Slots without an expert are read from scratch memory that no kernel wrote."""
    scratch = torch.empty_like(problem.out)
    has_expert = (problem.topk_ids >= 0).all(dim=1, keepdim=True)
    return torch.where(has_expert, reference.staged(problem), scratch)


@impure
def unstable(problem: Problem) -> Tensor:
    """The order of additions, and so the last bit, changes from run to run."""
    answer = reference.staged(problem)
    return torch.where(
        torch.rand(answer.shape, device=answer.device) < 0.5, answer, answer * (1 + 2 * torch.finfo(answer.dtype).eps)
    )


@mutant
def zero_rows_from_255(problem: Problem) -> Tensor:
    """The index of a row has 8 bits: rows from 255 on stay zero."""
    answer = reference.staged(problem)
    answer[MANY_ROWS:] = 0
    return answer


@mutant
def zero_columns_from_1024(problem: Problem) -> Tensor:
    """One block of threads covers a row: columns from 1,024 on stay zero."""
    answer = reference.staged(problem)
    answer[:, MANY_COLUMNS:] = 0
    return answer


@mutant
def nan_of_a_padded_row(problem: Problem) -> Tensor:
    """Tokens without any local expert are multiplied by zero, and keep their own NaN."""
    has_expert = (problem.topk_ids >= 0).any(dim=1, keepdim=True)
    return torch.where(has_expert, reference.staged(problem), 0 * problem.hidden)


_REMEMBERED: dict[tuple[int, ...], Tensor] = {}


@impure
def remembered_answer(problem: Problem) -> Tensor:
    """What was computed for buffers is taken to hold as long as the buffers lie where they were."""
    key = (problem.hidden.data_ptr(), problem.topk_ids.data_ptr(), *problem.hidden.shape)
    if key not in _REMEMBERED:
        _REMEMBERED.clear()
        _REMEMBERED[key] = reference.staged(problem)
    return _REMEMBERED[key].clone()


_WORKSPACE: dict[tuple[torch.dtype, torch.Size], Tensor] = {}


@impure
def shared_workspace(problem: Problem) -> Tensor:
    """The answer lies in scratch memory that the next call writes to."""
    answer = reference.staged(problem)
    workspace = _WORKSPACE.setdefault((answer.dtype, answer.shape), torch.empty_like(answer))
    return workspace.copy_(answer)
