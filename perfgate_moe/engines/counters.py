"""What the plug-in did inside a server: layers computed, layers left to SGLang and why; as a log line and a small file."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from perfgate_moe.engines.switch import PROOF

if TYPE_CHECKING:
    from torch import Tensor

INTERVAL_S = 5.0


@dataclass(slots=True, kw_only=True)
class Counters:
    """Calls of the layer in one process. A replayed CUDA graph makes no calls: it repeats the ones that were `captured`.

    `computed` counts by variant and by how it was launched (`eager`, `captured`); `fallbacks` by reason. With a `path` the same
    numbers are written there at the first call, at each new reason and then at most every INTERVAL_S seconds.
    """

    mode: str
    versions: dict[str, str]
    path: Path | None = None
    computed: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    _published_s: float = 0.0

    def count_computed(self, variant: str, *, is_captured: bool) -> None:
        """One layer was computed here."""
        is_first = not self.computed
        self.computed[f"{variant}/{'captured' if is_captured else 'eager'}"] += 1
        self._publish(is_due=is_first)

    def count_fallback(self, reason: str) -> None:
        """One layer was left to SGLang."""
        is_new = reason not in self.fallbacks
        self.fallbacks[reason] += 1
        self._publish(is_due=is_new)

    def as_json(self) -> dict[str, object]:
        """The file's content."""
        return {
            "mode": self.mode,
            "versions": self.versions,
            "pid": os.getpid(),
            "rank": find_rank(),
            "calls": self.computed.total(),
            "computed": dict(self.computed),
            "fallbacks": dict(self.fallbacks),
        }

    def __str__(self) -> str:
        """One line for the server's log."""
        state = f"{PROOF}: " if self.computed else "perfgate moe: "
        parts = [f"{name} {count}" for name, count in sorted(self.computed.items())]
        left = [f"{count} x {reason}" for reason, count in sorted(self.fallbacks.items())]
        return f"{state}{self.mode}: {', '.join(parts) or 'nothing computed'}; left to SGLang: {', '.join(left) or 'nothing'}"

    def _publish(self, *, is_due: bool) -> None:
        now = time.monotonic()
        if not is_due and now - self._published_s < INTERVAL_S:
            return
        self._published_s = now
        print(str(self), flush=True)
        if self.path is not None:
            replace_file(rank_path(self.path, find_rank()), json.dumps(self.as_json(), indent=1) + "\n")


def is_captured(answer: Tensor) -> bool:
    """Whether what was just computed goes into a CUDA graph."""
    import torch  # noqa: PLC0415 - loaded in a server anyway

    return bool(answer.is_cuda and torch.cuda.is_current_stream_capturing())


def find_rank() -> int:
    """This process's rank in the server, 0 where there is one process."""
    import torch  # noqa: PLC0415 - loaded in a server anyway

    group = torch.distributed
    return group.get_rank() if group.is_available() and group.is_initialized() else 0


def rank_path(path: Path, rank: int) -> Path:
    """The file of one rank: the named one for rank 0, with `.rankN` before the suffix for the others."""
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def replace_file(path: Path, text: str) -> None:
    """Write a file that a reader finds whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
