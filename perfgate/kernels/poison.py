"""Fill freshly allocated tensors with garbage, so that a kernel that reads what it never wrote is caught every time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

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
