"""Whose processes compute on the GPU: the session's own, or somebody else's.

NVML's numbers mean the session's processes only where both live in one namespace of process numbers. In a container an older
driver tells the numbers of the host, a newer one leaves out what the container cannot see, and some hide everybody. So numbers
are compared with the session's own processes first, and where none of them appears, with what NVML showed before and after the
servers came up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

HIDDEN_BYTES = 2**30
"""Memory in use before any server started, beyond which a process that NVML hides must hold it; a driver alone takes less."""


@dataclass(slots=True)
class Tenants:
    """What is known of the processes on the watched GPUs. `own` is asked for the session's part of a list of numbers."""

    adopted: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    hidden_bytes: float = 0.0

    def note_idle(self, pids: Collection[int], memory_used_bytes: float) -> None:
        """No server of ours lives: whoever computes now is foreign, whatever its number."""
        self.before, self.adopted = set(pids), set()
        self.hidden_bytes = 0.0 if pids else memory_used_bytes

    def note_ready(self, pids: Collection[int]) -> None:
        """A server of ours has come up: what is new since the GPU was idle is taken for its own.

        A foreign process that arrived in the meantime is adopted too where numbers mean nothing; that hole is documented.
        """
        self.adopted |= set(pids) - self.before

    def count_foreign(self, pids: Collection[int], own: Collection[int]) -> int:
        """Count the processes among `pids` that are not the session's; `own` are those that certainly are."""
        known = set(own) if own else self.adopted
        hidden = 1 if self.hidden_bytes > HIDDEN_BYTES else 0
        return max(len(set(pids) - known), hidden)

    def is_visible(self, pids: Collection[int], own: Collection[int]) -> bool:
        """Whether NVML shows the session's own processes at all, by their numbers or by having come with a server."""
        return bool(own) or not self.adopted.isdisjoint(pids)
