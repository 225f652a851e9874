"""Co-tenants that were put beside a session on purpose: the share of their windows that was void, and of all clean ones.

They stand in the list of recorded sessions as `[[co_tenant]]` tables:
- `folder`: the result folder, relative to the file;
- `kind`: "gpu" (a process that used the session's GPU) or "host" (processes that used the CPUs of its host);
- `bursts`: for "gpu", the file that says when the process lived, relative to the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.h200.serving.co_tenants import Share, count_bursts, count_controls, count_host_load
from perfgate.errors import InputError
from perfgate.results.results import load_results
from perfgate.verdict.validity.admission import MAX_LOST_CPU_SHARE

KEYS = {"gpu": {"folder", "kind", "bursts"}, "host": {"folder", "kind"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoTenant:
    """One co-tenant of the list. `bursts` is there for one that used the GPU."""

    folder: Path
    kind: str
    bursts: Path | None = None


def read_co_tenants(path: Path) -> tuple[CoTenant, ...]:
    """Read the list's co-tenants. Raise InputError naming the table and what is wrong with it."""
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get("co_tenant", [])
    found = []
    for number, row in enumerate(rows, 1):
        where = f"{path}: co_tenant {number}"
        keys = KEYS.get(row.get("kind"))
        if keys is None:
            raise InputError(f"{where}: kind: {row.get('kind')!r} is none of {', '.join(KEYS)}")
        if row.keys() != keys:
            raise InputError(f"{where}: one that used the {row['kind']} has the keys {', '.join(sorted(keys))} and no others")
        bursts = path.parent / row["bursts"] if "bursts" in row else None
        found.append(CoTenant(folder=path.parent / row["folder"], kind=row["kind"], bursts=bursts))
    return tuple(found)


def study_co_tenants(co_tenants: Sequence[CoTenant], sessions: Sequence[Path]) -> dict[str, Any]:
    """Count the void windows beside each co-tenant and of all `sessions`, folders without a co-tenant.

    A folder that cannot be read is no control. One that is void for another's doing is: that is what is counted.
    """
    hosts = [one for one in co_tenants if one.kind == "host"]
    quiet = [loaded for folder in sessions if (loaded := _load(folder)) is not None]
    beside = [loaded for one in hosts if (loaded := _load(one.folder)) is not None]
    controls, gpu_controls = count_controls(quiet), count_controls([*quiet, *beside])
    return {
        "gpu": [_describe_bursts(one) for one in co_tenants if one.bursts is not None],
        "host": [_describe_load(one) for one in hosts],
        # A load on the host leaves the GPU alone.
        "gpu_controls": {"sessions": gpu_controls.sessions, "voided": describe_share(gpu_controls.foreign)},
        "host_controls": {
            "sessions": controls.sessions,
            "voided": describe_share(controls.voided),
            "largest_share": controls.largest_share,
        },
        "threshold": MAX_LOST_CPU_SHARE,
    }


def describe_share(share: Share) -> dict[str, Any]:
    """A share with its bounds, as plain values."""
    return {**asdict(share), "lower95": share.lower95, "upper95": share.upper95}


def _describe_bursts(one: CoTenant) -> dict[str, Any]:
    if one.bursts is None:
        raise InputError(f"{one.folder}: the times of the process were not noted; give its bursts")
    found = count_bursts(one.folder, one.bursts)
    return {
        "folder": one.folder.name,
        "touched": describe_share(found.touched),
        "clean": describe_share(found.clean),
        "unsure": describe_share(found.unsure),
        "outcome": found.outcome.value,
    }


def _describe_load(one: CoTenant) -> dict[str, Any]:
    found = count_host_load(one.folder)
    return {
        "folder": one.folder.name,
        "voided": describe_share(found.voided),
        "above": describe_share(found.above),
        "median_share": found.median_share,
        "largest_share": found.largest_share,
        "outcome": found.outcome.value,
    }


def _load(folder: Path) -> Any:
    try:
        return load_results(folder)
    except InputError:
        return None
