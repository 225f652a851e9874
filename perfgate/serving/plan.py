"""What a session will do, fixed before it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from perfgate.core import Arm
from perfgate.safeguards import Expect, Gsm8k
from perfgate.scenario import Scenario
from perfgate.serving.server import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a session will do, fixed before it begins. `is_decided` is asked after each look and may end it early.

    `noise` holds the stored deviations of a window by metric, those that the judge will hold stalled windows against. `expect`
    is what must be seen of the candidate; `is_profiled` keeps a profile of both arms even where nothing is expected. `gsm8k`
    says what both arms are asked in the first block, if anything.
    """

    scenario: Scenario
    launches: Mapping[Arm, Launch]
    looks: tuple[int, ...]
    is_decided: Callable[[], bool]
    noise: Mapping[str, float] = field(default_factory=dict)
    expect: Expect = field(default_factory=Expect)
    is_profiled: bool = False
    gsm8k: Gsm8k | None = None


def order_arms(block: int) -> tuple[Arm, Arm]:
    """Who goes first in a block: base in odd blocks, candidate in even ones, so that drift cancels (ABBA)."""
    return (Arm.BASE, Arm.CANDIDATE) if block % 2 else (Arm.CANDIDATE, Arm.BASE)
