"""Where stored noise lies: one file for each machine and scenario, found, read, checked and written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import orjson

from perfgate.core import Fingerprint
from perfgate.errors import BaselineError, InputError
from perfgate.scenario.schema import NAME, Scenario
from perfgate.storage.journal import write_atomically
from perfgate.verdict.baselines import Baseline, describe_baseline, format_baseline, parse_baseline


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
        return parse_baseline(path.read_bytes(), str(path))
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read ({error.strerror}); `perfgate baseline add` writes one") from None


def verify_baseline(path: Path | str) -> Baseline:
    """Load a baseline and compare the numbers that it shows with those that its values give. Raise BaselineError naming one."""
    path = Path(path)
    baseline = load_baseline(path)
    shown = orjson.loads(path.read_bytes())["metrics"]
    for name, metric in describe_baseline(baseline)["metrics"].items():
        for key, value in metric["derived"].items():
            if shown[name]["derived"].get(key) != value:
                raise BaselineError(
                    f"{path}: metrics.{name}.derived.{key}: shows what its values do not give; add to it to rewrite it"
                )
    return baseline


def save_baseline(baseline: Baseline, path: Path | str) -> None:
    """Write `baseline` whole or not at all. Raise BaselineError when the place cannot be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, format_baseline(baseline))
    except OSError as error:
        raise BaselineError(f"{path}: cannot be written ({error.strerror}); choose another folder with --to") from None
