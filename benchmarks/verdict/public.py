"""Read public nightly results in which the same commit was measured several times, and pair its nights as A/A comparisons.

The file is a copy of the nightly vLLM serving results that neuralmagic/nm-vllm published in 2024 (branch nm-gh-pages), as
CSV with the columns commit, gpu, workload_id, python, script, metric, date and value. It is not part of this project; scripts
take its folder as `--data`. Runs of one commit, GPU, workload and Python version form a group; nothing but the night differs
inside one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FILE = "nm_vllm_serving.csv.gz"
KEYS = ["gpu", "workload_id", "python", "commit"]

# Published name -> practical margin, by the same families as perfgate's own metrics. All of them are better when lower.
MARGINS: Mapping[str, float] = {
    "mean_tpot_ms": 0.03,
    "median_tpot_ms": 0.03,
    "p90_tpot_ms": 0.06,
    "p99_tpot_ms": 0.10,
    "mean_ttft_ms": 0.06,
    "median_ttft_ms": 0.06,
    "p90_ttft_ms": 0.10,
    "p99_ttft_ms": 0.10,
    "median_request_latency": 0.03,
    "p90_request_latency": 0.06,
    "p99_request_latency": 0.05,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The nights of one commit under one workload, oldest first; `logs` is (nights, metrics) of log values."""

    gpu: str
    workload: str
    python: str
    commit: str
    logs: Floats

    @property
    def differences(self) -> Floats:
        """Log difference of each night and the one before: the D of one A/A block; (nights - 1, metrics)."""
        return np.diff(self.logs, axis=0)

    @property
    def deviations(self) -> Floats:
        """Each night's distance from the group's mean, enlarged for the degree of freedom that the mean took."""
        count = len(self.logs)
        deviations: Floats = (self.logs - self.logs.mean(axis=0)) * np.sqrt(count / (count - 1))
        return deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """One A/A comparison: `blocks` is (blocks, 2 arms, metrics) of log values; the stored evidence comes from other groups.

    `stored_differences` (blocks, metrics) and `stored_deviations` (nights, metrics) belong to the same GPU and workload but to
    other commits or Python versions, so that nothing of the judged nights leaks into the bands.
    """

    group: Group
    blocks: Floats
    stored_differences: Floats
    stored_deviations: Floats


def load_groups(data: Path, gpu: str, metrics: tuple[str, ...] = tuple(MARGINS)) -> list[Group]:
    """Read all groups of at least two complete nights on `gpu` (the start of its published name)."""
    import pandas as pd

    frame = pd.read_csv(data / FILE)
    chosen = frame["gpu"].str.startswith(gpu) & frame["script"].eq("benchmark_serving.py") & frame["metric"].isin(metrics)
    frame = frame[chosen].fillna({"python": "not recorded"}).sort_values("date", kind="stable")
    # Tails and centres of one night were pushed seconds apart, so a night is the n-th value of each metric, not a date.
    frame["night"] = frame.groupby([*KEYS, "metric"]).cumcount()
    groups = []
    for key, rows in frame.groupby(KEYS, sort=True):
        name, workload, python, commit = map(str, key)
        nights = rows.pivot_table(index="night", columns="metric", values="value").reindex(columns=list(metrics)).dropna()
        if len(nights) > 1:
            logs = np.log(nights.to_numpy(dtype=np.float64))
            groups.append(Group(gpu=name, workload=workload, python=python, commit=commit, logs=logs))
    return groups


def pair_nights(groups: list[Group], blocks: int = 1) -> Iterator[Pairing]:
    """Pair neighbouring nights of each group as base and candidate, `blocks` pairs to a comparison.

    One block slides by a night, so every two neighbours are compared once; more blocks slide by a pair.
    """
    for group in groups:
        others = [one for one in groups if _same_work(one, group) and one is not group]
        for first in range(0, len(group.logs) - 2 * blocks + 1, 1 if blocks == 1 else 2):
            yield _pairing(group, group.logs[first : first + 2 * blocks].reshape(blocks, 2, -1), others)


def pair_commits(groups: list[Group], blocks: int) -> Iterator[Pairing]:
    """Gather at least `blocks` separate pairs of neighbouring nights of one commit, over its Python versions.

    Both nights of a pair ran under the same Python version, whose level therefore cancels within the block.
    """
    heads = {(one.gpu, one.workload, one.commit): one for one in groups}
    for head in heads.values():
        mine = [one for one in groups if _same_work(one, head) and one.commit == head.commit]
        pairs = np.concatenate([one.logs[: len(one.logs) // 2 * 2].reshape(-1, 2, one.logs.shape[1]) for one in mine])
        if len(pairs) >= blocks:
            yield _pairing(head, pairs, [one for one in groups if _same_work(one, head) and one.commit != head.commit])


def _same_work(one: Group, other: Group) -> bool:
    return (one.gpu, one.workload) == (other.gpu, other.workload)


def _pairing(group: Group, blocks: Floats, others: list[Group]) -> Pairing:
    return Pairing(
        group=group,
        blocks=blocks,
        stored_differences=np.concatenate([one.differences for one in others]),
        stored_deviations=np.concatenate([one.deviations for one in others]),
    )
