"""Which kernels the difference between two arms consists of: the ones that take longer, are new, or are gone."""

from __future__ import annotations

from dataclasses import dataclass

from perfgate.errors import EvidenceError
from perfgate.evidence import KernelTime, KernelTrace, TraceKind

_NOTHING = KernelTime(time_us=0.0, count=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDifference:
    """One kernel in both arms: microseconds and calls per forward step, and its share of the difference.

    `share` is its own difference divided by the sum of all absolute differences: positive where the candidate takes longer, and
    of size one when nothing else changed.
    """

    name: str
    base_us: float
    candidate_us: float
    base_count: float
    candidate_count: float
    share: float

    @property
    def difference_us(self) -> float:
        """How much longer the candidate takes per forward step."""
        return self.candidate_us - self.base_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Both arms' profiled windows, kernel by kernel, the largest difference first. Times are microseconds per forward step."""

    kind: TraceKind
    parts: tuple[KernelDifference, ...]
    base_us: float
    candidate_us: float


def attribute(base: KernelTrace, candidate: KernelTrace, *, base_steps: int, candidate_steps: int) -> Attribution:
    """Rank names by their share of the difference. Raise EvidenceError when one arm has kernels and the other operators."""
    if base.kind != candidate.kind:
        raise EvidenceError(f"the base's trace holds {base.kind}s, the candidate's {candidate.kind}s; profile both in one way")
    pairs = {
        name: (base.spent.get(name, _NOTHING), candidate.spent.get(name, _NOTHING))
        for name in base.spent.keys() | candidate.spent.keys()
    }
    differences = {name: other.time_us / candidate_steps - one.time_us / base_steps for name, (one, other) in pairs.items()}
    changed = sum(abs(difference) for difference in differences.values())
    parts = [
        KernelDifference(
            name=name,
            base_us=one.time_us / base_steps,
            candidate_us=other.time_us / candidate_steps,
            base_count=one.count / base_steps,
            candidate_count=other.count / candidate_steps,
            share=differences[name] / changed if changed else 0.0,
        )
        for name, (one, other) in pairs.items()
    ]
    return Attribution(
        kind=base.kind,
        parts=tuple(sorted(parts, key=lambda part: (-abs(part.share), part.name))),
        base_us=base.total_us / base_steps,
        candidate_us=candidate.total_us / candidate_steps,
    )
