"""The picture of `perfgate power`: smallest effect found against GPU-minutes, a line for each metric."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perfgate.errors import InputError
from perfgate.metrics import METRICS
from perfgate.power import Curve, Study

FORMATS = (".png", ".svg")


def save_power_plot(study: Study, curves: Sequence[Curve], path: Path) -> None:
    """Draw into `path`, whole or not at all. Raise InputError for another suffix, no matplotlib or an unwritable place."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--picture {path}: the name must end in {' or '.join(FORMATS)}")
    try:
        from matplotlib import rc_context  # noqa: PLC0415 - an extra, and slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InputError("--picture needs matplotlib: pip install 'sglang-perfgate[plots]'") from None
    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    for curve in curves:
        minutes = [reach.minutes for reach in curve.reaches]
        effects = [100 * reach.smallest_effect for reach in curve.reaches]
        axes.plot(minutes, effects, marker="o", linestyle="-" if curve.gating else ":", label=METRICS[curve.metric].title)
    axes.set(
        xlabel="GPU-minutes",
        ylabel="smallest loss found with 90 % power (%)",
        title=f"{study.scenario.name}: what the gate can see ({study.baseline.windows} windows a start)",
        ylim=(0, None),
        xlim=(0, None),
    )
    axes.grid(alpha=0.3)
    axes.legend()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # A fixed salt and no date: the same numbers give the same file.
        with rc_context({"svg.hashsalt": "perfgate"}):
            figure.savefig(
                temporary, format=path.suffix[1:].lower(), metadata={"Date": None} if path.suffix == ".svg" else None
            )
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"--picture {path}: cannot be written ({error.strerror}); choose another place") from None
    finally:
        temporary.unlink(missing_ok=True)
