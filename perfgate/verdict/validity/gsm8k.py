"""Does the candidate answer as many of GSM8K's questions as the base? Log-probs may drift in ways that only answers show.

Both arms are asked once, in the first block. A greedy answer flips with the last bit of a sum, in both directions; so a loss
counts once it is more than the scenario allows and more than flips without a direction would give.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import comb

from perfgate.core import Arm
from perfgate.scenario.safeguards import Gsm8k
from perfgate.storage.rounding import format_percent

# A loss that fair flips would give more often than this is none.
CHANCE = 0.01


def check_gsm8k(marks: Mapping[Arm, str], rules: Gsm8k) -> Iterator[str]:
    """Name every reason why the candidate's answers are not as good as the base's."""
    for arm in Arm:
        if not re.fullmatch("[01]+", marks.get(arm, "")):
            yield f"{arm.value}: it was never asked the GSM8K questions, or what it was told is damaged; measure again"
            return
    base, candidate = marks[Arm.BASE], marks[Arm.CANDIDATE]
    if len(base) != len(candidate):
        yield f"the arms were asked {len(base)} and {len(candidate)} GSM8K questions; measure again"
        return
    loss = (base.count("1") - candidate.count("1")) / len(base)
    if loss > rules.max_loss and measure_chance(base, candidate) <= CHANCE:
        yield (
            f"candidate: its answers are wrong, however fast: {_tell(candidate)} GSM8K answers right, the base {_tell(base)} "
            f"(limit {format_percent(rules.max_loss)} less); correct the candidate"
        )


def measure_chance(base: str, candidate: str) -> float:
    """How often at least so many of the answers that differ would favour the base if none of the two were better.

    The sign test over questions that one arm alone gets right: McNemar, "Note on the sampling error of the difference between
    correlated proportions or percentages", Psychometrika 12 (1947), with exact binomial probabilities.
    """
    pairs = list(zip(base, candidate, strict=True))
    lost, won = pairs.count(("1", "0")), pairs.count(("0", "1"))
    count = lost + won
    return sum(comb(count, number) for number in range(lost, count + 1)) / (1 << count)


def describe_gsm8k(marks: Mapping[Arm, str], rules: Gsm8k) -> str:
    """Say in one sentence what was found; empty where nothing was asked."""
    if any(not re.fullmatch("[01]+", marks.get(arm, "")) for arm in Arm):
        return ""
    base = marks[Arm.BASE]
    blind = "" if "1" in base else "; with none right a loss could not show"
    return (
        f"GSM8K: {_tell(marks[Arm.CANDIDATE])} answers of the candidate right, {_tell(base)} of the base "
        f"(limit {format_percent(rules.max_loss)} less){blind}"
    )


def _tell(marks: str) -> str:
    return f"{marks.count('1')} of {len(marks)}"
