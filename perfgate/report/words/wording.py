"""The sentences of a report: numbers with their signs, and what each outcome means."""

from __future__ import annotations

from math import isfinite

from perfgate.core import Better, Judgement
from perfgate.metrics import METRICS
from perfgate.storage.rounding import format_interval, format_percent

MISSING = "n/a"
UNMEASURED = "not measured"
ANY_LOSS = "any loss"

CPU_ONLY = "CPU result: it tests plumbing and relative change, not GPU speed."
RANDOM_WEIGHTS = "The model has random weights: its answers are noise."
ROUTED_WEIGHTS = (
    "The model's weights are drawn by a recipe that routes by token and layer: its shapes are real, its answers are noise."
)
SAME_BUILD = "Both arms are the same build: every difference here is noise of this machine."


def shorten(text: str, most: int) -> str:
    """Cut a text to `most` letters."""
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."


def shorten_sentence(text: str, most: int) -> str:
    """Cut a sentence to `most` letters at most: behind a clause that is a third of them or more, else behind a word."""
    if len(text) <= most:
        return text
    clause = text[:most].rpartition("; ")[0]
    if 3 * len(clause) >= most:
        return clause
    words = text[: most - 2].rpartition(" ")[0] or text[: most - 3]
    return f"{words.rstrip(' ,;:')}..."


def percent(ratio: float | None) -> str:
    """Write a signed change, for example "+2.4 %"; a rounded zero has no sign."""
    if ratio is None or not isfinite(ratio):
        return MISSING
    return format_percent(ratio, is_signed=True)


def magnitude(ratio: float | None) -> str:
    """Write a size without direction, for example "2.4 %"."""
    return MISSING if ratio is None or not isfinite(ratio) else format_percent(ratio)


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
    return format_interval(judgement.low, judgement.high)


def sense(judgement: Judgement) -> str:
    """Say whether a change is worse or better; "unclear" where the interval holds no change."""
    if judgement.worse is None or judgement.low is None or judgement.high is None or judgement.low <= 0 <= judgement.high:
        return "unclear"
    return "worse" if judgement.worse > 0 else "better"


def point(judgement: Judgement) -> str:
    """An arrow up or down for the metric's value, and the word that says what that is worth."""
    word = sense(judgement)
    if word == "unclear":
        return word
    arrow = "\N{UPWARDS ARROW}" if (judgement.change or 0.0) > 0 else "\N{DOWNWARDS ARROW}"
    return f"{arrow} {word}"


def loss(metric: str, ratio: float) -> str:
    """Write a loss in the reader's sense: 25 % more time is 20 % less throughput, so "-20.0 %" for a ratio of 0.25."""
    return percent(1 / (1 + ratio) - 1 if METRICS[metric].better is Better.HIGHER else ratio)


def limit(judgement: Judgement) -> str:
    """Write the margin as the worst change allowed."""
    return loss(judgement.metric, judgement.margin_ratio)


def line(judgement: Judgement) -> str:
    """Write the estimate from which this evidence fails the metric."""
    return MISSING if judgement.fails_from is None else loss(judgement.metric, judgement.fails_from)


def found_from(judgement: Judgement) -> str:
    """Write the loss that this evidence finds nine times in ten."""
    return MISSING if judgement.smallest_effect is None else loss(judgement.metric, judgement.smallest_effect)


def excluded(judgement: Judgement) -> str:
    """Write the loss that the evidence rules out over all looks; empty where it rules out none."""
    if judgement.excluded is None:
        return ""
    return ANY_LOSS if judgement.excluded <= 0 else loss(judgement.metric, judgement.excluded)


def band(judgement: Judgement) -> str:
    """Write the stored noise band; without one, nothing is claimed."""
    return "none" if judgement.band is None else f"\N{PLUS-MINUS SIGN}{magnitude(judgement.band)}"


def title(judgement: Judgement) -> str:
    """Name the metric for people."""
    return METRICS[judgement.metric].title


def finding(judgement: Judgement) -> str:
    """Say in a clause what became of one metric, for example "P99 ITL +4.0 % (fails from +5.0 %)"."""
    if judgement.change is None or not isfinite(judgement.change):
        return f"{title(judgement)} not judged"
    shown_only = "" if judgement.gating else ", shown only"
    return f"{title(judgement)} {percent(judgement.change)} (fails from {line(judgement)}{shown_only})"


def outcome(judgement: Judgement) -> str:
    """The outcome, and whether it can fail the change."""
    return judgement.outcome.value if judgement.gating else f"{judgement.outcome.value} (shown only)"
