"""What a run's own totals must satisfy before its latencies are used; shared by all readers of such output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from typing import Any

from perfgate.core import Remark, RemarkKind, Run
from perfgate.errors import EvidenceError

# Output tokens counted by the server against those counted again in the text it sent. A tokenizer's round trip moves a few
# percent; half of the tokens gone means that answers are missing.
MIN_RETOKENIZED_RATIO = 0.5
# Printed tables carry two decimals and the clock of the load generator is read twice.
THROUGHPUT_TOLERANCE = 0.02
PRINTED_ROUNDING = 0.01
NO_LIMIT = "not set"
# No clock or counter comes near these; beyond them ratios of two values leave the range of doubles.
LEAST, MOST = 1e-9, 1e18


def check_run(told: Run, retokenized: int | None = None) -> Run:
    """Check a run as it was told, where a zero in `values` still stands for "no data"; each failed check is a problem of it.

    `retokenized` are its output tokens, counted again in the text that was sent.
    """
    values = {**_rates(told), **{name: value for name, value in told.values.items() if value >= LEAST}}
    workload = {**told.workload, "num_prompts": told.completed if told.requested is None else told.requested}
    if told.input_tokens is not None:
        workload["input_tokens"] = told.input_tokens
    return replace(
        told,
        values=values,
        workload=workload,
        problems=(*told.problems, *_find_problems(told, retokenized)),
        estimators={name: made for name, made in told.estimators.items() if name in values},
    )


def _rates(told: Run) -> dict[str, float]:
    """Throughputs that follow from the totals, for formats that do not print them."""
    duration_s = told.duration_s
    if not duration_s or duration_s < LEAST:
        return {}
    counts = {"request_per_s": told.completed, "output_tok_per_s": told.output_tokens}
    if told.input_tokens is not None and told.output_tokens is not None:
        counts["total_tok_per_s"] = told.input_tokens + told.output_tokens
    return {name: count / duration_s for name, count in counts.items() if count}


def _find_problems(told: Run, retokenized: int | None) -> list[Remark]:
    if told.completed == 0:
        return [Remark(kind=RemarkKind.NO_REQUEST)]
    return [*_check_completed(told), *_check_text(told, retokenized), *_check_latencies(told), *_check_throughput(told)]


def _check_completed(told: Run) -> Iterator[Remark]:
    if told.requested is not None and told.requested != told.completed:
        yield Remark(kind=RemarkKind.INCOMPLETE, found=told.completed, due=told.requested)


def _check_text(told: Run, retokenized: int | None) -> Iterator[Remark]:
    counted = told.output_tokens
    if not counted:
        yield Remark(kind=RemarkKind.UNCOUNTED)
    elif retokenized is not None and retokenized < MIN_RETOKENIZED_RATIO * counted:
        yield Remark(kind=RemarkKind.LOST_TEXT, found=retokenized, due=counted)


def _check_latencies(told: Run) -> Iterator[Remark]:
    if told.values.get("mean_ttft_ms") == 0:
        yield Remark(kind=RemarkKind.ZERO_TTFT)
    has_gaps = (told.output_tokens or 0) > told.completed
    itls = [told.values[name] for name in ("mean_itl_ms", "median_itl_ms") if name in told.values]
    if has_gaps and itls and not any(itls):
        yield Remark(kind=RemarkKind.ZERO_ITL)


def _check_throughput(told: Run) -> Iterator[Remark]:
    if not told.duration_s or told.duration_s < LEAST:
        yield Remark(kind=RemarkKind.NO_DURATION)
    for name, expected in _rates(told).items():
        reported = told.values.get(name)
        if reported is not None and abs(reported - expected) > max(THROUGHPUT_TOLERANCE * expected, PRINTED_ROUNDING):
            yield Remark(kind=RemarkKind.OTHER_RATE, found=reported, due=expected, detail=name)


def as_number(value: Any, where: str, name: str) -> float | None:
    """Return a finite number of at least zero, None for null. Raise EvidenceError naming place and field for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise EvidenceError(f"{where}: {name}: expected a number, found {_shorten(value)}")
    if not isfinite(value) or value > MOST:
        raise EvidenceError(f"{where}: {name}: {value:g} is no measurement; measure again")
    if value < 0:
        raise EvidenceError(f"{where}: {name}: {value:g} is negative; the file was edited or damaged, measure again")
    return float(value)


def as_count(value: Any, where: str, name: str) -> int | None:
    """Return a whole number of at least zero, None for null. Raise EvidenceError naming place and field for anything else."""
    number = as_number(value, where, name)
    if number is None:
        return None
    if number != int(number):
        raise EvidenceError(f"{where}: {name}: {number:g} is no whole number")
    return int(number)


def read_rate(value: Any) -> str | float | None:
    """Return requests per second as a number, "inf" for a closed loop, or the word that stands for another arrival process."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        rate = float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
    return rate if isfinite(rate) else str(rate)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
