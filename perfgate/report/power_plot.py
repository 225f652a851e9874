"""The picture of `perfgate power`: smallest effect found against GPU-minutes, a line for each metric."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfgate.metrics import METRICS
from perfgate.power import Curve, Study
from perfgate.report.figure import save_picture


def save_power_plot(study: Study, curves: Sequence[Curve], path: Path) -> None:
    """Draw into `path`, whole or not at all. Raise InputError for another suffix, no matplotlib or an unwritable place."""

    def draw(axes: Any) -> None:
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

    save_picture(path, draw)
