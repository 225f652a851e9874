"""Stored noise: one file for each machine and scenario, found, read, checked and written, and how it grows.

It grows by sessions that were admitted, and never to a worse level by itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import orjson

from perfgate.core import Fingerprint
from perfgate.errors import BaselineError, InputError, SlowerError
from perfgate.scenario.schema import NAME, Scenario
from perfgate.storage.places import open_folder, write_file
from perfgate.storage.rounding import round_number
from perfgate.storage.stream import read_written
from perfgate.verdict.baselines import Baseline, Change, describe_baseline, format_baseline, parse_baseline
from perfgate.verdict.noise import Anchor, NoiseModel, Response
from perfgate.verdict.recorded import Recorded, Row, collect_rows, find_slower, is_faster

KEPT_STARTS = 60
"""So many starts of A/A blocks are kept, and as many of other sessions; older ones make way."""


def find_path(folder: Path, fingerprint: Fingerprint, scenario: str) -> Path:
    """Where below `folder` the baseline of `scenario` on this hardware lies.

    Both names come from a result folder that a stranger may have written. Raise InputError for one that is no plain name, which
    could lead out of `folder`.
    """
    for what, name in (("hardware", fingerprint.hardware), ("scenario", scenario)):
        if not re.fullmatch(NAME, name):
            raise InputError(f"{what} {name[:80]!r}: no plain name; a baseline is kept under one like nvidia-h20-96gb")
    return folder / fingerprint.hardware / f"{scenario}.json"


def find_baseline(folders: Iterable[Path], scenario: Scenario, fingerprint: Fingerprint) -> Baseline | None:
    """Load the first baseline of this scenario on this hardware; None when no folder holds one.

    Whether what was found fits the session in workload, design and software is decided and reported by the verdict.
    """
    paths = (find_path(folder, fingerprint, scenario.name) for folder in folders)
    return next((load_baseline(path) for path in paths if path.exists()), None)


def load_baseline(path: Path | str) -> Baseline:
    """Read a baseline and derive everything again. Raise BaselineError when it is broken or was edited by hand."""
    path = Path(path)
    try:
        return parse_baseline(read_written(path), str(path))
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read ({error.strerror}); `perfgate baseline add` writes one") from None


def verify_baseline(path: Path | str) -> Baseline:
    """Load a baseline and compare the numbers that it shows with those that its values give. Raise BaselineError naming one."""
    path = Path(path)
    baseline = load_baseline(path)
    shown = orjson.loads(read_written(path))["metrics"]
    for name, metric in describe_baseline(baseline)["metrics"].items():
        for key, value in metric["derived"].items():
            if shown[name]["derived"].get(key) != value:
                raise BaselineError(
                    f"{path}: metrics.{name}.derived.{key}: shows what its values do not give; add to it to rewrite it"
                )
    return baseline


def save_baseline(baseline: Baseline, path: Path | str) -> None:
    """Write `baseline` whole or not at all. Raise InputError when the place cannot be written."""
    path = Path(path)
    open_folder(path.parent)
    write_file(format_baseline(baseline), path)


def build_baseline(
    scenario: Scenario, fingerprint: Fingerprint, recorded: Sequence[Recorded], *, release: str = ""
) -> Baseline:
    """Build a first baseline from admitted sessions and pin its level as the anchor. Raise BaselineError without evidence.

    A/A sessions teach what a block's difference does when nothing changed; of any other session only the base arm counts.
    """
    rows = collect_rows(scenario, fingerprint, recorded, epoch=1)
    _refuse_copies(rows)
    empty = Baseline(
        scenario=scenario.name,
        workload_hash=scenario.workload_hash,
        fingerprint=fingerprint,
        windows=scenario.blocks.windows,
        resident=scenario.blocks.resident,
        metrics={},
    )
    built = record_change(_fill(empty, rows, {}), "built", recorded)
    return pin_anchor(built, max(one.at for one in recorded), release or "first measured", built.metrics)


def extend_baseline(
    baseline: Baseline, scenario: Scenario, recorded: Sequence[Recorded], *, accept_slower: str | None = None
) -> Baseline:
    """Add sessions to `baseline`. Raise SlowerError when they are slower than it may become without a reason to accept that.

    A change of level, accepted or for the better, starts a new epoch: only what comes after it tells the level. What was
    accepted becomes the anchor of the metrics that it concerns; a gain moves no anchor.
    """
    slower = find_slower(baseline, scenario, recorded)
    if slower and not accept_slower:
        raise SlowerError(next(iter(slower.values())))
    faster = not slower and is_faster(baseline, scenario, recorded)
    newest = max(start.epoch for start in baseline.starts)
    rows = collect_rows(scenario, baseline.fingerprint, recorded, epoch=newest + (bool(slower) or faster))
    _refuse_copies(rows, _list_rows(baseline))
    grown = _fill(baseline, [*_list_rows(baseline), *rows], baseline.metrics)
    action: Literal["accepted slower", "became faster", "added"] = (
        "accepted slower" if slower else "became faster" if faster else "added"
    )
    grown = record_change(grown, action, recorded, (accept_slower or "") if slower else "")
    at = max(one.at for one in recorded)
    return pin_anchor(grown, at, f"accepted: {accept_slower}", slower)


def _refuse_copies(rows: Iterable[Row], stored: Iterable[Row] = ()) -> None:
    """Raise BaselineError for a start that is stored already or given twice, be it under another name."""
    known = {key for row in stored for key in _identify(row)}
    for row in rows:
        keys = _identify(row)
        if not known.isdisjoint(keys):
            raise BaselineError(
                f"session {row[0].session} is in the baseline already or given twice, maybe under another name; leave it out: "
                "its noise would count twice"
            )
        known.update(keys)


def _identify(row: Row) -> tuple[object, object]:
    """What no two starts share: their place in a session of that name, and the same place with the same values."""
    start, values = row
    return (start.session, start.block, start.arm), (start.at, start.block, start.arm, frozenset(values.items()))


def _list_rows(baseline: Baseline) -> list[Row]:
    columns = {name: noise.values for name, noise in baseline.metrics.items()}
    return [
        (start, {name: values[index] for name, values in columns.items() if values[index]})
        for index, start in enumerate(baseline.starts)
    ]


def _fill(baseline: Baseline, rows: Sequence[Row], before: Mapping[str, NoiseModel]) -> Baseline:
    kept = _keep_newest(rows)
    newest = max(start.epoch for start, _ in kept)
    measured = {name for start, values in kept if start.epoch == newest for name in values}
    metrics = {}
    for name in sorted(measured):
        old = before.get(name)
        metrics[name] = NoiseModel(
            metric=name,
            starts=tuple(start for start, _ in kept),
            values=tuple(values.get(name, ()) for _, values in kept),
            anchor=old.anchor if old else Anchor(log_mean=0.0, at="", release=""),
            sensitivity=old.sensitivity if old else (),
        )
        if old is None:
            metrics[name] = _pin(metrics[name], kept[-1][0].at, "first measured")
    return replace(baseline, metrics=metrics, checksum="")


def _keep_newest(rows: Sequence[Row]) -> list[Row]:
    """Keep the newest starts of each kind, in the order of time; A/A blocks are kept whole."""
    ordered = sorted(rows, key=lambda row: (row[0].at, row[0].session, row[0].block, row[0].arm))
    paired = [row for row in ordered if row[0].is_aa][-KEPT_STARTS:]
    single = [row for row in ordered if not row[0].is_aa][-KEPT_STARTS:]
    return sorted([*paired, *single], key=lambda row: (row[0].at, row[0].session, row[0].block, row[0].arm))


def expire_baseline(baseline: Baseline, before: str, at: str) -> Baseline:
    """Drop starts measured before the time `before`. Raise BaselineError when nothing would be left."""
    kept = [row for row in _list_rows(baseline) if row[0].at >= before]
    if not kept:
        raise BaselineError(
            f"every start is older than {before}; measure anew with `perfgate calibrate` instead of emptying it"
        )
    gone = tuple(sorted({start.session for start in baseline.starts} - {start.session for start, _ in kept}))
    grown = _fill(baseline, kept, baseline.metrics)
    return replace(
        grown, history=(*baseline.history, Change(action="expired", at=at, sessions=gone, reason=f"before {before}"))
    )


def record_change(
    baseline: Baseline,
    action: Literal["built", "added", "accepted slower", "became faster"],
    recorded: Iterable[Recorded],
    reason: str = "",
) -> Baseline:
    """Write into the baseline's own history what was done to it."""
    sessions = list(recorded)
    change = Change(
        action=action, at=max(one.at for one in sessions), sessions=tuple(one.name for one in sessions), reason=reason
    )
    return replace(baseline, history=(*baseline.history, change))


def pin_anchor(baseline: Baseline, at: str, release: str, metrics: Collection[str]) -> Baseline:
    """Pin today's level of `metrics` as the one that creep is measured against."""
    pinned = {name: _pin(noise, at, release) if name in metrics else noise for name, noise in baseline.metrics.items()}
    return replace(baseline, metrics=pinned, checksum="")


def _pin(noise: NoiseModel, at: str, release: str) -> NoiseModel:
    level = round_number(noise.log_mean) or 0.0
    return replace(noise, anchor=Anchor(log_mean=level, at=at, release=release))


def add_responses(baseline: Baseline, responses: Mapping[str, Sequence[Response]], at: str) -> Baseline:
    """Replace the sensitivity tables of the metrics named, as measured with injected slow-downs."""
    if unknown := sorted(responses.keys() - baseline.metrics.keys()):
        raise BaselineError(f"{unknown[0]} is not in the baseline of {baseline.scenario}, so its response cannot be stored")
    metrics = {
        name: replace(noise, sensitivity=tuple(responses.get(name, noise.sensitivity)))
        for name, noise in baseline.metrics.items()
    }
    change = Change(action="calibrated", at=at, reason=f"response of {', '.join(sorted(responses))}")
    return replace(baseline, metrics=metrics, history=(*baseline.history, change), checksum="")
