"""Where perfgate keeps what belongs to one machine and to no repository: noise bands, generated models and a history."""

from __future__ import annotations

import os
from pathlib import Path

from perfgate.errors import InputError

VARIABLE = "PERFGATE_STATE"
SHIPPED_BASELINES = Path(__file__).parents[1] / "baselines"


def find_state_dir() -> Path:
    """Return $PERFGATE_STATE, else $XDG_STATE_HOME/perfgate, else ~/.local/state/perfgate.

    Raise InputError for a user without a home, as containers have.
    """
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "perfgate"
    except RuntimeError:
        raise InputError(f"this user has no home folder; set {VARIABLE} to a folder that can be written") from None


def find_machine_baselines() -> Path:
    """The folder of noise bands that were calibrated on this machine."""
    return find_state_dir() / "baselines"


def find_machine_history() -> Path:
    """The store of results for a user who names none."""
    return find_state_dir() / "history"


def list_baseline_dirs(given: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Where to look for a baseline: the given folders only, else this machine's calibration, then the shipped ones."""
    return given or (find_machine_baselines(), SHIPPED_BASELINES)
