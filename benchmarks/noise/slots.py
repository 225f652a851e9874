"""What an offset of equal arms goes with: the arm, the order, other work on the host, compile caches, or chance.

Usage: python -m benchmarks.noise.slots

Everything that is not the change belongs to a slot. Who starts, warms up and is measured first is one slot, which the arms
of a session exchange from block to block: the *leader*. Ports are drawn anew for each start. Caches stay with the arm. Of each
stored session of equal arms this counts the mean difference of its blocks, what the scatter of its windows alone makes of that,
and how much of it goes with the leader.

Two questions are asked. Do sessions differ from zero by more than windows explain? Cochran's Q says so of whatever sticks to a
start, a block or a session. Do they by more than their own blocks differ? That is what the rule assumes of an offset, which
more blocks do not average. The ratio F of mean squares says how large it is, and what it may be at most; as sessions scatter
unlike, its chance is counted by flipping the signs of blocks, which what sticks to an arm does not survive.

Arms are summed up by the mean of their windows here, not by the median that the verdict takes, for its error is known from
their scatter. The bounds of the offset's standard deviation are where Cochran's Q leaves the middle 90 % of chi-square
(Viechtbauer, "Confidence intervals for the amount of heterogeneity in meta-analysis", Statistics in Medicine 26, 2007).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, log, sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.error_rates.recordings import Recording, read_list, read_recordings
from benchmarks.error_rates.studies import count_beside
from benchmarks.verdict.record import print_table, write_results
from perfgate.core import Arm
from perfgate.metrics import METRICS
from perfgate.results.records import EVENTS_FILE
from perfgate.stats import special
from perfgate.stats.components import find_offset_variance
from perfgate.storage.journal import read_lines
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.series import read_blocks
from perfgate.verdict.validity.pairing import Block

LIST = Path(__file__).parents[1] / "error_rates" / "sessions.toml"
RATE, STEP = "output_tok_per_s", "median_itl_ms"
SHOWN = (RATE, STEP)
STORED = "gpt-oss-20b-shape-mxfp4-mixed-c16"
"""The one scenario whose noise ships."""
CONFIDENCE = 0.95
FLIPS, SEED = 2000, 7
MOST = 0.1
"""No offset is searched beyond it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """One metric of one session: the mean difference of `differences`, on the log scale, and its error by windows alone.

    `leader` is half of what blocks that the base leads differ by from those that the candidate leads; None of a single block.
    """

    differences: tuple[float, ...]
    error: float
    leader: float | None

    @property
    def mean(self) -> float:
        """Of all blocks: positive where the candidate was slower."""
        return fmean(self.differences)

    @property
    def leader_error(self) -> float:
        """The error of `leader`, by windows alone."""
        odd, even = len(self.differences[::2]), len(self.differences[1::2])
        return self.error * sqrt(len(self.differences)) * sqrt(1 / odd + 1 / even) / 2


def measure_offset(blocks: Sequence[Block], metric: str) -> Offset:
    """Find one metric's offset over the blocks of a session, the first of which the base leads."""
    logs = [[_read(windows, metric) for windows in (block.base, block.candidate)] for block in blocks]
    differences = tuple(fmean(candidate) - fmean(base) for base, candidate in logs)
    scatter = fmean(variance(values) for pair in logs for values in pair)
    error = sqrt(2 * scatter / len(logs[0][0]) / len(logs))
    odd, even = differences[::2], differences[1::2]
    return Offset(differences=differences, error=error, leader=(fmean(odd) - fmean(even)) / 2 if even else None)


def _read(windows: Sequence[Any], metric: str) -> list[float]:
    row = METRICS[metric]
    return [row.sign * log(window.run.values[metric]) for window in windows]


def find_q(offsets: Sequence[Offset], sd: float = 0.0) -> float:
    """Cochran's Q around the zero that equal arms have, if offsets scatter by `sd` besides."""
    return fsum(one.mean**2 / (one.error**2 + sd**2) for one in offsets)


def bound_offset(offsets: Sequence[Offset], probability: float) -> float:
    """The standard deviation at which Q is what chi-square exceeds with `probability`; 0 where Q is below that already."""
    wanted = float(special.chdtri(len(offsets), probability))
    if find_q(offsets) <= wanted:
        return 0.0
    low, high = 0.0, MOST
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if find_q(offsets, middle) > wanted else (low, middle)
    return high


def pool_leader(offsets: Sequence[Offset]) -> tuple[float, float]:
    """The leader's share over sessions, each weighed by its error, and the error of that."""
    known = [(one.leader, one.leader_error**-2) for one in offsets if one.leader is not None]
    total = fsum(weight for _, weight in known)
    return fsum(leader * weight for leader, weight in known) / total, total**-0.5


def count_flips(sessions: Sequence[Sequence[float]], rng: np.random.Generator) -> float:
    """How often blocks with signs drawn anew agree within sessions as much as the recorded ones."""
    found = [np.array(one) for one in sessions]
    seen = _agree(found)
    drawn = ([one * rng.choice((-1.0, 1.0), len(one)) for one in found] for _ in range(FLIPS))
    return sum(_agree(one) >= seen - 1e-12 for one in drawn) / FLIPS


def _agree(sessions: Sequence[NDArray[np.float64]]) -> float:
    """The squared sum of each session's differences over the sum of their squares: 1 by chance, more where they agree."""
    return fsum(float(one.sum() ** 2 / (one**2).sum()) for one in sessions)


def bound_by_ratio(between: float, within: float, df: tuple[int, int], blocks: float) -> float:
    """The largest standard deviation of an offset that leaves a chance of 5 % to as small a ratio of mean squares."""
    least = float(special.fdtri(*df, 1 - CONFIDENCE))
    return sqrt(max(0.0, between / least - within) / blocks)


def list_recordings() -> list[Recording]:
    """Every stored session of equal arms whose servers lived side by side, in the order of the list of error rates."""
    found, _ = read_recordings(tuple(entry for entry in read_list(LIST) if entry.kind == "aa"))
    return [one for one in found if one.scenario.blocks.resident == "both"]


def compare_caches(folder: Path) -> str:
    """Whether the compile caches of both arms held the same after each start; "not told" of older sessions."""
    digests: dict[str, list[str]] = {}
    events = list(read_lines(folder / EVENTS_FILE))
    arms = {event["start"]: event["arm"] for event in events if event.get("event") == "server_started"}
    for event in events:
        if event.get("event") == "server_ready" and "compiled_digest" in event:
            digests.setdefault(arms[event["start"]], []).append(event["compiled_digest"])
    if set(digests) != {arm.value for arm in Arm}:
        return "not told"
    return "the same" if len({tuple(found) for found in digests.values()}) == 1 else "different"


def describe(one: Recording, found: Sequence[Recording]) -> dict[str, Any]:
    """A row: where the session was measured, and the offset of each metric."""
    blocks = read_blocks(one.session, fix_policy(one.session, one.scenario, None))
    return {
        "session": one.name,
        "load": one.scenario.name,
        "gpu": name_card(one.machine.hardware),
        "cores": one.cores,
        "beside": count_beside(one, found),
        "caches": compare_caches(one.entry.folder),
        "offsets": {metric: measure_offset(blocks, metric) for metric in SHOWN},
    }


def name_card(hardware: str) -> str:
    """What tells one card from another in a name of hardware: H200 of nvidia-h200-141gb."""
    return hardware.split("-")[1].upper()


def find_farthest(rows: Sequence[Mapping[str, Any]], metric: str) -> Mapping[str, Any]:
    """The session of several blocks that adds most to the mean square of offsets: its squared mean times its blocks."""
    many = [row for row in rows if len(row["offsets"][metric].differences) > 1]
    return max(many, key=lambda row: len(row["offsets"][metric].differences) * row["offsets"][metric].mean ** 2)


def group(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, list[Mapping[str, Any]]]:
    """The sessions by what they may have in common, and all but the one that lies farthest from zero."""
    far = find_farthest(rows, STEP)
    stored = [row for row in rows if row["load"] == STORED]
    return {
        "all": list(rows),
        f"all but {far['session']}": [row for row in rows if row is not far],
        "mixed-c16": stored,
        **{f"mixed-c16 on {card}s": [row for row in stored if row["gpu"] == card] for card in ("H200", "H100")},
        "alone on the host": [row for row in rows if not row["beside"]],
        "other sessions on the host": [row for row in rows if row["beside"]],
        "caches the same": [row for row in rows if row["caches"] == "the same"],
        "caches different": [row for row in rows if row["caches"] == "different"],
    }


def sum_up(name: str, rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """How much more than windows scatter the sessions of a group scatter, and what goes with the leader."""
    offsets = [row["offsets"][metric] for row in rows]
    leader, leader_error = pool_leader(offsets)
    q = find_q(offsets)
    many = [one.differences for one in offsets if len(one.differences) > 1]
    blocks = sum(map(len, many))
    within = fsum(variance(found) * (len(found) - 1) for found in many) / (blocks - len(many))
    between = fsum(len(found) * fmean(found) ** 2 for found in many) / len(many)
    turns = [[value - leader * (-1) ** place for place, value in enumerate(found)] for found in many]
    return {
        "group": name,
        "metric": metric,
        "sessions": len(offsets),
        "blocks": sum(len(one.differences) for one in offsets),
        "block_sd": round(sqrt(within), 6),
        "f": round(between / within, 3),
        "flips": count_flips(turns, np.random.default_rng(SEED)),
        "offset": round(sqrt(find_offset_variance(many)), 6),
        "offset_most": round(bound_by_ratio(between, within, (len(many), blocks - len(many)), blocks / len(many)), 6),
        "q": round(q, 3),
        "q_p": round(float(special.chdtrc(len(offsets), q)), 5),
        "beyond_windows": [round(bound_offset(offsets, one), 6) for one in (1 - CONFIDENCE, CONFIDENCE)],
        "leader": round(leader, 6),
        "leader_error": round(leader_error, 6),
    }


def as_plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for JSON."""
    plain = {
        metric: {
            "differences": [round(value, 6) for value in one.differences],
            "mean": round(one.mean, 6),
            "error": round(one.error, 6),
        }
        for metric, one in row["offsets"].items()
    }
    return {**row, "offsets": plain}


def main() -> None:
    """Count, print and write."""
    began = time.perf_counter()
    found = list_recordings()
    rows = [describe(one, found) for one in found]
    groups = [sum_up(name, held, metric) for name, held in group(rows).items() if held for metric in SHOWN]
    path = write_results("slots", began, {"sessions": [as_plain(row) for row in rows], "groups": groups})
    print_table(
        ["session", "gpu", "cores", "beside", "caches", *SHOWN],
        [
            [
                row["session"],
                row["gpu"],
                row["cores"],
                str(row["beside"]),
                row["caches"],
                *(f"{100 * one.mean:+.2f} +- {100 * one.error:.2f}" for one in row["offsets"].values()),
            ]
            for row in rows
        ],
    )
    print_table(list(groups[0]), [[str(value) for value in one.values()] for one in groups])
    print(f"written to {path}")


if __name__ == "__main__":
    main()
