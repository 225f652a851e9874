"""Which kernels the difference between two arms consists of: the ones that take longer, are new, or are gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfgate.errors import EvidenceError
from perfgate.evidence import CodeChange, KernelTime, KernelTrace, LaunchShape, TracedLayer, TraceKind
from perfgate.results.profiling.host_counts import HostCount
from perfgate.storage.schema import FOREIGN, Amount

_NOTHING = KernelTime(time_us=0.0, count=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDifference:
    """One way to launch a kernel that an arm takes more often: calls per forward step."""

    shape: LaunchShape
    base_count: Amount
    candidate_count: Amount
    __pydantic_config__ = FOREIGN

    @property
    def more(self) -> float:
        """How many more calls a step the candidate launches so."""
        return self.candidate_count - self.base_count


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeDifference:
    """What both arms spend on the same, in microseconds per forward step."""

    base_us: Amount
    candidate_us: Amount

    @property
    def difference_us(self) -> float:
        """How much longer the candidate takes per forward step."""
        return self.candidate_us - self.base_us


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDifference(TimeDifference):
    """One kernel in both arms: microseconds and calls per forward step, and its share of the difference.

    `share` is its own difference divided by the sum of all absolute differences: positive where the candidate takes longer, and
    of size one when nothing else changed. `launches` are those that one arm takes more often. `code` says whether its machine
    code is the same in both arms; nothing where that is not known.
    """

    name: str
    base_count: float
    candidate_count: float
    share: float
    launches: tuple[LaunchDifference, ...] = ()
    code: CodeChange = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDifference(TimeDifference):
    """One kind of layer in both arms: microseconds per forward step, over all layers of that kind."""

    layer: TracedLayer
    __pydantic_config__ = FOREIGN


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Both arms' profiled windows, kernel by kernel. Times are microseconds per forward step and rank.

    `parts` that got slower stand first, the most slower one at the head; then those that got faster, the fastest first.
    `base_us` and `candidate_us` are the sums over all kernels, of which a hand-off brings only some as `parts`; so are
    `base_calls` and `candidate_calls`, calls per forward step and rank, which are 0 where an older version summed none up.
    `layers` are the same sums by kind of layer, what differs most first. `has_launches` says that both traces tell grids,
    `same_code` of how many kernels the machine code is known and the same. `host` is what a step costs outside of them, where
    that was counted.
    """

    kind: TraceKind
    parts: tuple[KernelDifference, ...]
    base_us: float
    candidate_us: float
    base_calls: float = 0.0
    candidate_calls: float = 0.0
    layers: tuple[LayerDifference, ...] = ()
    has_launches: bool = False
    same_code: int = 0
    host: tuple[HostCount, ...] = ()


def compare_code(found: Attribution, base: Mapping[str, str], candidate: Mapping[str, str]) -> Attribution:
    """Say of each kernel that ran in both arms, and that both have a digest of, whether its machine code is the same."""
    known = base.keys() & candidate.keys()
    parts = tuple(
        replace(part, code="same" if base[part.name] == candidate[part.name] else "other")
        if part.name in known and part.base_count > 0 and part.candidate_count > 0
        else part
        for part in found.parts
    )
    return replace(found, parts=parts, same_code=sum(part.code == "same" for part in parts))


def attribute(base: KernelTrace, candidate: KernelTrace, *, base_steps: int, candidate_steps: int) -> Attribution:
    """Rank names by how much slower they got. Raise EvidenceError when one arm has kernels and the other operators."""
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
            launches=_compare_launches(one, other, base_steps=base_steps, candidate_steps=candidate_steps),
        )
        for name, (one, other) in pairs.items()
    ]
    return Attribution(
        kind=base.kind,
        parts=tuple(sorted(parts, key=rank)),
        base_us=base.total_us / base_steps,
        candidate_us=candidate.total_us / candidate_steps,
        base_calls=sum(spent.count for spent in base.spent.values()) / base_steps,
        candidate_calls=sum(spent.count for spent in candidate.spent.values()) / candidate_steps,
        layers=_compare_layers(base, candidate, base_steps=base_steps, candidate_steps=candidate_steps),
        has_launches=all(any(spent.launches for spent in trace.spent.values()) for trace in (base, candidate)),
    )


def _compare_launches(
    base: KernelTime, candidate: KernelTime, *, base_steps: int, candidate_steps: int
) -> tuple[LaunchDifference, ...]:
    """The launches that differ, what the candidate takes less first."""
    found = (
        LaunchDifference(
            shape=shape,
            base_count=base.launches.get(shape, 0) / base_steps,
            candidate_count=candidate.launches.get(shape, 0) / candidate_steps,
        )
        for shape in base.launches.keys() | candidate.launches.keys()
    )
    return _pick_launches(found)


def _pick_launches(found: Iterable[LaunchDifference]) -> tuple[LaunchDifference, ...]:
    """Those that differ by more than two profiles of one build do."""
    told = (one for one in found if abs(one.more) > FEW_CALLS)
    return tuple(sorted(told, key=lambda one: (one.more, one.shape.grid, one.shape.block, one.shape.registers)))


def _compare_layers(
    base: KernelTrace, candidate: KernelTrace, *, base_steps: int, candidate_steps: int
) -> tuple[LayerDifference, ...]:
    found = (
        LayerDifference(
            layer=layer,
            base_us=base.layers.get(layer, 0.0) / base_steps,
            candidate_us=candidate.layers.get(layer, 0.0) / candidate_steps,
        )
        for layer in base.layers.keys() | candidate.layers.keys()
    )
    return tuple(sorted(found, key=rank_layer))


def rank_layer(one: LayerDifference) -> tuple[float, str]:
    """The place of a kind of layer: by how much it differs."""
    return -abs(one.difference_us), one.layer


TOP = 8
"""Kernels that are handed over for their time, as many more for their calls, for how they are launched and for their code:
what a reader looks for."""

FEW_CALLS = 0.5
"""Calls a step by which two profiles of one build may differ: a prefill more or less in one small window. Those of two recorded
sessions differed by up to that in kernels that neither change touched."""


def summarise(found: Attribution) -> Attribution:
    """The parts that differ most, under short names: instances of one template are one kernel; the sums stay whole.

    Slower ones take three places of four, for faster ones hide a loss as well. Those of the ledger follow.
    """
    parts = sorted(_merge_alike(found.parts), key=rank)
    slower = [part for part in parts if part.difference_us > 0][: TOP * 3 // 4]
    faster = [part for part in parts if part.difference_us <= 0][: TOP - len(slower)]
    timed = [*slower, *faster]
    lists = (list_ledger(found), list_relaunched(found), list_recompiled(found))
    others = dict.fromkeys(part for listed in lists for part in listed[:TOP] if part not in timed)
    return replace(found, parts=tuple(sorted((*timed, *others), key=rank)))


def list_ledger(found: Attribution) -> tuple[KernelDifference, ...]:
    """The kernels, under short names, that one arm calls more often a step than the other, the largest difference first."""
    merged = _merge_alike(found.parts)
    told = (part for part in merged if abs(part.candidate_count - part.base_count) > FEW_CALLS)
    return tuple(sorted(told, key=lambda part: (-abs(part.candidate_count - part.base_count), part.name)))


def list_relaunched(found: Attribution) -> tuple[KernelDifference, ...]:
    """The kernels, under short names, that both arms call as often and launch otherwise, those with most such calls first."""
    merged = _merge_alike(found.parts)
    told = (part for part in merged if part.launches and abs(part.candidate_count - part.base_count) <= FEW_CALLS)
    return tuple(sorted(told, key=lambda part: (-sum(abs(one.more) for one in part.launches), part.name)))


def list_recompiled(found: Attribution) -> tuple[KernelDifference, ...]:
    """The kernels, under short names, whose machine code is another one in the candidate, by name."""
    return tuple(sorted((part for part in _merge_alike(found.parts) if part.code == "other"), key=lambda part: part.name))


def _merge_alike(parts: Iterable[KernelDifference]) -> list[KernelDifference]:
    merged: dict[str, list[KernelDifference]] = {}
    for part in parts:
        merged.setdefault(shorten_name(part.name), []).append(part)
    return [_merge(name, alike) for name, alike in merged.items()]


_CODES: tuple[CodeChange, ...] = ("", "same", "other")
"""Of several instances the last of these decides."""


def _merge(name: str, alike: Sequence[KernelDifference]) -> KernelDifference:
    return KernelDifference(
        name=name,
        base_us=sum(part.base_us for part in alike),
        candidate_us=sum(part.candidate_us for part in alike),
        base_count=sum(part.base_count for part in alike),
        candidate_count=sum(part.candidate_count for part in alike),
        share=sum(part.share for part in alike),
        launches=_merge_launches(one for part in alike for one in part.launches),
        code=max((part.code for part in alike), key=_CODES.index),
    )


def _merge_launches(launches: Iterable[LaunchDifference]) -> tuple[LaunchDifference, ...]:
    merged: dict[LaunchShape, LaunchDifference] = {}
    for one in launches:
        had = merged.get(one.shape, replace(one, base_count=0.0, candidate_count=0.0))
        merged[one.shape] = replace(
            one, base_count=had.base_count + one.base_count, candidate_count=had.candidate_count + one.candidate_count
        )
    return _pick_launches(merged.values())


def rank(part: KernelDifference) -> tuple[bool, float, str]:
    """The place of a part: slower ones by how much, then faster ones by how much."""
    return part.difference_us <= 0, -abs(part.difference_us), part.name


_MANGLED = re.compile(r"_ZN?K?(?=\d)")
_ARGUMENTS = re.compile(r"<[^<>]*>|\([^()]*\)")


def name_unnamed(kind: str, digest: str) -> str:
    """What stands for a kernel of the candidate alone whose name another job left behind: one word, which nothing shortens."""
    return f"unnamed-{kind}-{digest}"


def shorten_name(name: str) -> str:
    """A kernel's name without what its type, its template and its call add: `at::native::add_kernel`.

    A mangled name is read as far as it is a chain of plain names (Itanium C++ ABI, 5.1); any other name stays as it is.
    """
    if mangled := _MANGLED.match(name):
        return _demangle(name[mangled.end() :]) or name
    plain = name.replace("(anonymous namespace)::", "")
    while (shorter := _ARGUMENTS.sub("", plain)) != plain:
        plain = shorter
    return plain.strip().rpartition(" ")[2] or name


def _demangle(rest: str) -> str:
    names = []
    while length := re.match(r"\d+", rest):
        end = length.end() + int(length[0])
        names.append(rest[length.end() : end])
        rest = rest[end:]
    return "::".join(names)
