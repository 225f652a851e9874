"""A GPU kernel that spends time and does nothing else. It loads Triton, so it is imported in a slowed server only."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

LENGTH, CALLS, SPENT = range(3)
"""Where the state, three int64 in device memory, keeps the wanted nanoseconds, the calls made and the nanoseconds spent."""


@triton.jit  # type: ignore[untyped-decorator]
def spin(state: tl.tensor) -> None:
    """Wait until the GPU's own clock of nanoseconds has moved on by the wanted length, and count what it was.

    The length is read when the kernel runs, so a captured graph follows a change of it. The clock does not depend on the
    frequency of the multiprocessors.
    """
    wanted = tl.load(state)
    begun = globaltimer()
    now = begun
    while now - begun < wanted:
        now = globaltimer()
    tl.atomic_add(state + 1, 1)
    tl.atomic_add(state + 2, now - begun)
