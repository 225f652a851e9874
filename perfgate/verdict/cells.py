"""The cells of a matrix: each is a session of one arm, which the judge of sessions admits whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from perfgate.core import Window
from perfgate.evidence import CellEvidence
from perfgate.scenario.matrix import Matrix
from perfgate.verdict.validity.admission import admit
from perfgate.verdict.validity.equivalence import describe_equivalence
from perfgate.verdict.validity.pairing import group_starts
from perfgate.verdict.validity.structure import AdmissionLimits

NEEDED = ("output_tok_per_s",)
"""What each window of a cell must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A server under a load: the windows that count, none where a problem voids the cell.

    `equivalence` says in a sentence how far the server's answers are from the first server's; empty where nothing was compared.
    """

    server: str
    load: str
    windows: tuple[Window, ...]
    problems: tuple[str, ...] = ()
    equivalence: str = ""

    def find_level(self, metric: str) -> float | None:
        """The median over rounds of the median of each round's windows; None without a window that carries the metric."""
        levels = self.find_round_levels(metric)
        return median(levels) if levels else None

    def find_round_levels(self, metric: str) -> tuple[float, ...]:
        """The median of each round's windows; their differences are the offsets of starts, and drift."""
        rounds: dict[int, list[float]] = {}
        for window in self.windows:
            if metric in window.run.values:
                rounds.setdefault(window.block, []).append(window.run.values[metric])
        return tuple(median(rounds[number]) for number in sorted(rounds))


def judge_cells(matrix: Matrix, cells: Iterable[CellEvidence]) -> tuple[CellResult, ...]:
    """Find what counts of each cell, in the order given; a cell without result says why."""
    return tuple(_judge_cell(matrix, cell) for cell in cells)


def _judge_cell(matrix: Matrix, cell: CellEvidence) -> CellResult:
    session = cell.session
    limits = AdmissionLimits(scenario=matrix.build_scenario(cell.server, cell.load), gated=NEEDED)
    problems = admit(session, limits)
    whole = [
        start for start in group_starts(session) if len(start.measured) == matrix.windows and start.is_same_work(limits.rules)
    ]
    windows = () if problems else tuple(window for start in whole for window in start.pick_judged(limits.rules))
    if not windows and not problems:
        problems = ("was not measured yet; continue with --resume",)
    return CellResult(
        server=cell.server,
        load=cell.load,
        windows=windows,
        problems=problems,
        equivalence=describe_equivalence(session.answers, matrix.equivalence),
    )
