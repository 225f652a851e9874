"""How two arms differ: pure, from what both resolved to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from perfgate.resolution.rules import FLAG, is_loss
from perfgate.resolution.values import Case, Comparison, Difference, Kind, Reading, Resolution

_ORDER = (Kind.LOST, Kind.ACCEPTED, Kind.CHANGED)
_SHOWN = 6
_Found = tuple[Case, Any, Any]


def compare(base: Resolution, candidate: Resolution, accepted: Mapping[str, str]) -> Comparison:
    """Compare what both arms read; `accepted` gives reasons by key, `KEY` or `KEY@MODEL`."""
    cases = tuple(case for case in base.readings if case in candidate.readings)
    found: dict[tuple[str, Kind, str | None, str], list[_Found]] = defaultdict(list)
    for case in cases:
        for key, one, other in _list_changes(base.readings[case], candidate.readings[case]):
            is_lost = is_loss(key, one, other)
            reason = (accepted.get(f"{key}@{case[0]}") or accepted.get(key)) if is_lost else None
            kind = Kind.CHANGED if not is_lost else Kind.LOST if reason is None else Kind.ACCEPTED
            found[key, kind, reason, _group(one, other)].append((case, one, other))
    differences = [_describe(key, kind, reason, rows) for (key, kind, reason, _), rows in found.items()]
    differences.sort(key=lambda one: (_ORDER.index(one.kind), one.key.startswith(FLAG), one.key, one.base))
    return Comparison(
        base=base,
        candidate=candidate,
        cases=cases,
        differences=tuple(differences),
        unverified=tuple(_list_unverified(base, candidate, cases)),
    )


def _list_changes(base: Reading, candidate: Reading) -> Iterator[tuple[str, Any, Any]]:
    """Every key whose value differs. A choice that one arm could not read is no difference, it is unverified."""
    for key in (key for key in base.choices if key in candidate.choices):
        if base.choices[key] != candidate.choices[key]:
            yield key, base.choices[key], candidate.choices[key]
    if not base.flags or not candidate.flags:
        return
    for name in sorted({*base.flags, *candidate.flags}):
        one, other = base.flags.get(name), candidate.flags.get(name)
        # A new argument that is off, or an old one that was, changes nothing.
        is_same_off = not one and not other and (name not in base.flags or name not in candidate.flags)
        if one != other and not is_same_off:
            yield FLAG + name, one if name in base.flags else _ABSENT, other if name in candidate.flags else _ABSENT


class _Absent:
    """An argument that a release does not have."""

    def __str__(self) -> str:
        return "no such argument"


_ABSENT = _Absent()


def _group(one: Any, other: Any) -> str:
    """What stands in one line: equal changes; of numbers that each model has its own of, those of one direction."""
    if _is_count(one) and _is_count(other):
        return "less" if other < one else "more"
    return f"{one!s} -> {other!s}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10_000  # noqa: PLR2004 - bytes and tokens


def _describe(key: str, kind: Kind, reason: str | None, rows: list[_Found]) -> Difference:
    cases = tuple(case for case, _, _ in rows)
    pairs = {(str(one), str(other)) for _, one, other in rows}
    _, one, other = rows[0]
    if len(pairs) == 1:
        base, candidate = show_pair(one, other)
    else:
        shares = sorted((after - before) / before for _, before, after in rows)
        base, candidate = f"{one}", f"{other} ({shares[0]:+.1%} to {shares[-1]:+.1%}; the first is shown)"
    return Difference(key=key, kind=kind, base=base, candidate=candidate, cases=cases, reason=reason)


def show_pair(one: Any, other: Any) -> tuple[str, str]:
    """Both values as text; of two lists the second by what it has more and less."""
    if isinstance(one, list) and isinstance(other, list):
        more, less = [x for x in other if x not in one], [x for x in one if x not in other]
        told = [f"{sign}{_shorten(part)}" for sign, part in (("+", more), ("-", less)) if part]
        return _shorten(one), f"{_shorten(other)} ({', '.join(told) or 'in another order'})"
    if _is_count(one) and _is_count(other):
        return str(one), f"{other} ({(other - one) / one:+.1%})"
    return _show(one), _show(other)


def _show(value: Any) -> str:
    if isinstance(value, list):
        return _shorten(value)
    return {True: "on", False: "off", None: "none"}[value] if value is None or isinstance(value, bool) else str(value)


def _shorten(values: list[Any]) -> str:
    """A list, its middle left out where it is long."""
    words = [str(value) for value in values]
    if len(words) <= _SHOWN:
        return f"[{', '.join(words)}]"
    return f"[{', '.join(words[:3])}, ... {words[-1]}: {len(words)}]"


def _list_unverified(base: Resolution, candidate: Resolution, cases: tuple[Case, ...]) -> Iterator[str]:
    """What either arm could not read, a line for equal words."""
    for arm, name in ((base, "base"), (candidate, "candidate")):
        lines: dict[str, list[Case]] = defaultdict(list)
        for case in cases:
            for part, why in arm.readings[case].unverified.items():
                lines[f"{name}: {part} could not be verified: {why}"].append(case)
        for line, concerned in lines.items():
            yield f"{line} ({describe_cases(tuple(concerned), cases)})"


def describe_cases(cases: tuple[Case, ...], asked: tuple[Case, ...]) -> str:
    """Models and GPUs in few words, out of those that were asked for."""
    if set(cases) == set(asked):
        return "all models on all GPUs" if len(asked) > 1 else " on ".join(asked[0])
    by_model: dict[str, list[str]] = defaultdict(list)
    for model, gpu in cases:
        by_model[model].append(gpu)
    by_gpus: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for model, gpus in by_model.items():
        by_gpus[tuple(gpus)].append(model)
    return "; ".join(f"{', '.join(models)} on {', '.join(gpus)}" for gpus, models in by_gpus.items())
