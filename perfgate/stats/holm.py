"""Many metrics, one chance to cry wolf: Holm's step-down test."""

from __future__ import annotations

from collections.abc import Sequence


def reject(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Say for each p-value whether it is rejected; the family-wise error is at most `alpha`, whatever their dependence.

    Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979): the smallest
    of n is held against alpha/n, the next against alpha/(n-1), and so on until one fails. Lowering a p-value never loses one.
    """
    rejected = [False] * len(p_values)
    for done, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > alpha / (len(p_values) - done):
            break
        rejected[index] = True
    return rejected
