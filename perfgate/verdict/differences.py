"""Differences of two fingerprints, in words."""

from __future__ import annotations

from perfgate.core import FactDifference


def describe_difference(difference: FactDifference) -> str:
    """Name the fact with both values, for example "gpu: H200 here, H100 there"."""
    key, here, there = difference
    return f"{key}: {here} here, {there} there"


def describe_arms(difference: FactDifference) -> str:
    """Name the fact with the values of both arms, where base was compared with candidate."""
    key, base, candidate = difference
    return f"{key}: {base} in base, {candidate} in candidate"
