"""The sentences of a report: numbers with their signs, and what to do after each outcome."""

from __future__ import annotations

from math import isfinite

from perfgate.core import Better, Judgement, Outcome
from perfgate.metrics import METRICS
from perfgate.storage.rounding import format_percent

MISSING = "n/a"
UNMEASURED = "not measured"

# What to do, what more can be done, and the command for that: {source} is the result folder, {scenario} the scenario.
ACTIONS = {
    Outcome.IMPROVED: (
        "nothing stands in the way of a merge.",
        "To keep the gain as the new baseline:",
        "perfgate baseline add {source} --to perfgate/baselines",
    ),
    Outcome.PASS: ("nothing stands in the way of a merge.", "", ""),
    Outcome.REGRESSION: (
        "find the cause; measuring the same code again does not undo this.",
        "To accept the loss in review, with a reason:",
        'perfgate baseline add {source} --to perfgate/baselines --accept-slower "the reason"',
    ),
    Outcome.INCONCLUSIVE: (
        "give the scenario more blocks and measure again; repeating until it passes proves nothing.",
        "To see how many it takes:",
        "perfgate power --scenario {scenario}",
    ),
    Outcome.INVALID: ("mend what is named under Why, then measure again.", "", ""),
}

ADVISORY = "This verdict is advisory: too few A/A blocks are stored for this machine to vouch for its error rates."
CPU_ONLY = "CPU result: it tests plumbing and relative change, not GPU speed."
RANDOM_WEIGHTS = "The model has random weights: its answers are noise."
ROUTED_WEIGHTS = (
    "The model's weights are drawn by a recipe that routes by token and layer: its shapes are real, its answers are noise."
)


def percent(ratio: float | None) -> str:
    """Write a signed change, for example "+2.4 %"; a rounded zero has no sign."""
    if ratio is None or not isfinite(ratio):
        return MISSING
    return format_percent(ratio, is_signed=True)


def magnitude(ratio: float | None) -> str:
    """Write a size without direction, for example "2.4 %"."""
    return percent(ratio).lstrip("+")


def value(metric: str, number: float | None, *, has_unit: bool = True) -> str:
    """Write a value with the metric's decimals and unit."""
    if number is None or not isfinite(number):
        return MISSING
    row = METRICS[metric]
    return f"{number:,.{row.decimals}f}" + (f" {row.unit}" if has_unit else "")


def interval(judgement: Judgement) -> str:
    """Write both ends of the interval of the change."""
    if judgement.low is None or judgement.high is None:
        return MISSING
    return f"{percent(judgement.low).removesuffix(' %')} to {percent(judgement.high)}"


def loss(metric: str, ratio: float) -> str:
    """Write a loss in the reader's sense: 25 % more time is 20 % less throughput, so "-20.0 %" for a ratio of 0.25."""
    return percent(1 / (1 + ratio) - 1 if METRICS[metric].better is Better.HIGHER else ratio)


def limit(judgement: Judgement) -> str:
    """Write the margin as the worst change allowed."""
    return loss(judgement.metric, judgement.margin_ratio)


def band(judgement: Judgement) -> str:
    """Write the stored noise band; without one, nothing is claimed."""
    return "none" if judgement.band is None else f"\N{PLUS-MINUS SIGN}{magnitude(judgement.band)}"


def title(judgement: Judgement) -> str:
    """Name the metric for people."""
    return METRICS[judgement.metric].title


def finding(judgement: Judgement) -> str:
    """Say in a clause what became of one metric, for example "P99 ITL +4.0 % (margin +10.0 %)"."""
    if judgement.change is None or not isfinite(judgement.change):
        return f"{title(judgement)} not judged"
    shown_only = "" if judgement.gating else ", shown only"
    return f"{title(judgement)} {percent(judgement.change)} (margin {limit(judgement)}{shown_only})"
