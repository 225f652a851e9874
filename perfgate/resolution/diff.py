"""How two arms differ: pure, from what both resolved to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perfgate.core import Arm
from perfgate.resolution.rules import FLAG, GONE, NEW, RULES, is_loss
from perfgate.resolution.values import (
    ArmComparison,
    ArmReading,
    Case,
    Difference,
    Kind,
    Resolution,
    TunedTable,
    Unread,
    UnreadKind,
    list_answered,
)
from perfgate.storage.rounding import format_interval, format_percent

_SHOWN = 6
_Found = tuple[Case, Any, Any]


def compare(base: Resolution, candidate: Resolution, accepted: Mapping[str, str]) -> ArmComparison:
    """Compare what both arms read; `accepted` gives reasons by key, `KEY` or `KEY@MODEL`."""
    cases = tuple(case for case in base.readings if case in candidate.readings)
    found: dict[tuple[str, Kind, str | None, str], list[_Found]] = defaultdict(list)
    for case in cases:
        for key, one, other in _list_changes(base.readings[case], candidate.readings[case]):
            is_lost = is_loss(key, one, other)
            reason = (accepted.get(f"{key}@{case[0]}") or accepted.get(key)) if is_lost else None
            kind = Kind.CHANGED if not is_lost else Kind.LOST if reason is None else Kind.ACCEPTED
            found[key, kind, reason, _group(key, one, other)].append((case, one, other))
    differences = [_describe(key, kind, reason, rows) for (key, kind, reason, _), rows in found.items()]
    differences.sort(key=lambda one: (one.kind.order, one.key.startswith(FLAG), one.key, one.base))
    return ArmComparison(
        base=base,
        candidate=candidate,
        cases=cases,
        differences=tuple(differences),
        unverified=tuple(_list_unread(base, candidate)),
    )


def _list_changes(base: ArmReading, candidate: ArmReading) -> Iterator[tuple[str, Any, Any]]:
    """Every key whose value differs. A choice that one arm could not read is no difference, it is unverified."""
    for key in (key for key in base.choices if key in candidate.choices):
        if base.choices[key] != candidate.choices[key]:
            yield key, base.choices[key], candidate.choices[key]
    if not base.flags or not candidate.flags:
        return
    for name in sorted(base.flags.keys() & candidate.flags.keys()):
        if base.flags[name] != candidate.flags[name]:
            yield FLAG + name, base.flags[name], candidate.flags[name]
    # An argument that is off changes nothing by coming or going.
    if new := _tell_extra(candidate.flags, base.flags):
        yield NEW, None, new
    if gone := _tell_extra(base.flags, candidate.flags):
        yield GONE, gone, None


def _tell_extra(flags: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    """The arguments that only one arm knows and that are not off, in one text."""
    return ", ".join(f"{name}={_show(flags[name])}" for name in sorted(flags.keys() - others.keys()) if flags[name])


def _group(key: str, one: Any, other: Any) -> str:
    """What stands in one line: equal changes; of numbers that each model has its own of, those of one direction."""
    if _is_count(key):
        return "less" if other < one else "more"
    return f"{one!s} -> {other!s}"


def _is_count(key: str) -> bool:
    return key in RULES and RULES[key].is_count


def _describe(key: str, kind: Kind, reason: str | None, rows: list[_Found]) -> Difference:
    cases = tuple(case for case, _, _ in rows)
    pairs = {(str(one), str(other)) for _, one, other in rows}
    _, one, other = rows[0]
    if len(pairs) == 1:
        base, candidate = show_pair(one, other)
        candidate += f" ({format_percent((other - one) / one, is_signed=True)})" if _is_count(key) else ""
    else:
        shares = sorted((after - before) / before for _, before, after in rows)
        base, candidate = f"{one}", f"{other} ({format_interval(shares[0], shares[-1])}; the first is shown)"
    return Difference(key=key, kind=kind, base=base, candidate=candidate, cases=cases, reason=reason)


def show_pair(one: Any, other: Any) -> tuple[str, str]:
    """Both values as text; of two lists the second by what it has more and less."""
    if isinstance(one, list) and isinstance(other, list):
        more, less = [x for x in other if x not in one], [x for x in one if x not in other]
        told = [f"{sign}{_shorten(part)}" for sign, part in (("+", more), ("-", less)) if part]
        return _shorten(one), f"{_shorten(other)} ({', '.join(told) or 'in another order'})"
    return _show(one), _show(other)


def _show(value: Any) -> str:
    if isinstance(value, list):
        return _shorten(value)
    if isinstance(value, tuple):
        return name_tables(value)
    return {True: "on", False: "off", None: "none"}[value] if value is None or isinstance(value, bool) else str(value)


def name_tables(tables: Iterable[TunedTable]) -> str:
    """Each table once: its name, whose Triton it was tuned for, and its digest; or which one is not found."""
    return ", ".join(sorted({_name_table(one) for one in tables}))


def _name_table(table: TunedTable) -> str:
    if not table.triton:
        return f"none for {table.name}"
    return f"{table.name} of {'its own' if table.is_own else 'another'} Triton {table.triton} ({table.digest})"


def _shorten(values: list[Any]) -> str:
    """A list, its middle left out where it is long."""
    words = [str(value) for value in values]
    if len(words) <= _SHOWN:
        return f"[{', '.join(words)}]"
    return f"[{', '.join(words[:3])}, ... {words[-1]}: {len(words)}]"


def _list_unread(base: Resolution, candidate: Resolution) -> Iterator[Unread]:
    """What one arm could not read or did not report; cases that share it are one entry."""
    answered = list_answered(base, candidate)
    for arm, other, name in ((base, candidate, Arm.BASE), (candidate, base, Arm.CANDIDATE)):
        found: dict[tuple[UnreadKind, str, str], list[Case]] = defaultdict(list)
        for case in answered:
            for gap in _list_gaps(arm.readings.get(case), other.readings.get(case)):
                found[gap].append(case)
        for (kind, part, why), cases in found.items():
            yield Unread(arm=name, kind=kind, cases=tuple(cases), part=part, why=why)


def _list_gaps(reading: ArmReading | None, other: ArmReading | None) -> Iterator[tuple[UnreadKind, str, str]]:
    if reading is None:
        yield UnreadKind.NO_ANSWER, "", ""
        return
    for part, why in reading.unverified.items():
        yield UnreadKind.UNREADABLE, part, why
    told = {} if other is None else other.choices
    # Where a part could not be read, its choices are missing for that reason, which is told.
    if not reading.unverified:
        yield from ((UnreadKind.UNTOLD, key, "") for key in told if key not in reading.choices)
