"""What a run's own totals must satisfy before its latencies are used; shared by all readers of such output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """One run as counted by the load generator. A zero in `values` still stands for "no data" here; `as_run` leaves it out."""

    source: str
    values: Mapping[str, float]
    workload: Mapping[str, str | int | float]
    requested: int | None
    completed: int
    input_tokens: int | None
    output_tokens: int | None
    retokenized: int | None
    duration_s: float | None
    problems: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()
    estimators: Mapping[str, str] = field(default_factory=dict)


def as_run(totals: Totals) -> Run:
    """Check the totals and turn them into a Run; every failed check becomes one of its problems."""
    values = {**_rates(totals), **{name: value for name, value in totals.values.items() if value >= LEAST}}
    workload = {**totals.workload, "num_prompts": totals.completed if totals.requested is None else totals.requested}
    if totals.input_tokens is not None:
        workload["input_tokens"] = totals.input_tokens
    return Run(
        source=totals.source,
        values=values,
        workload=workload,
        requested=totals.requested,
        completed=totals.completed,
        input_tokens=totals.input_tokens,
        output_tokens=totals.output_tokens,
        duration_s=totals.duration_s,
        problems=(*totals.problems, *_find_problems(totals)),
        notes=totals.notes,
        estimators={name: made for name, made in totals.estimators.items() if name in values},
    )


def _rates(totals: Totals) -> dict[str, float]:
    """Throughputs that follow from the totals, for formats that do not print them."""
    duration_s = totals.duration_s
    if not duration_s or duration_s < LEAST:
        return {}
    counts = {"request_per_s": totals.completed, "output_tok_per_s": totals.output_tokens}
    if totals.input_tokens is not None and totals.output_tokens is not None:
        counts["total_tok_per_s"] = totals.input_tokens + totals.output_tokens
    return {name: count / duration_s for name, count in counts.items() if count}


def _find_problems(totals: Totals) -> list[Remark]:
    if totals.completed == 0:
        return [Remark(kind=RemarkKind.NO_REQUEST)]
    return [*_check_completed(totals), *_check_text(totals), *_check_latencies(totals), *_check_throughput(totals)]


def _check_completed(totals: Totals) -> Iterator[Remark]:
    if totals.requested is not None and totals.requested != totals.completed:
        yield Remark(kind=RemarkKind.INCOMPLETE, found=totals.completed, due=totals.requested)


def _check_text(totals: Totals) -> Iterator[Remark]:
    counted, again = totals.output_tokens, totals.retokenized
    if not counted:
        yield Remark(kind=RemarkKind.UNCOUNTED)
    elif again is not None and again < MIN_RETOKENIZED_RATIO * counted:
        yield Remark(kind=RemarkKind.LOST_TEXT, found=again, due=counted)


def _check_latencies(totals: Totals) -> Iterator[Remark]:
    if totals.values.get("mean_ttft_ms") == 0:
        yield Remark(kind=RemarkKind.ZERO_TTFT)
    has_gaps = (totals.output_tokens or 0) > totals.completed
    itls = [totals.values[name] for name in ("mean_itl_ms", "median_itl_ms") if name in totals.values]
    if has_gaps and itls and not any(itls):
        yield Remark(kind=RemarkKind.ZERO_ITL)


def _check_throughput(totals: Totals) -> Iterator[Remark]:
    if not totals.duration_s or totals.duration_s < LEAST:
        yield Remark(kind=RemarkKind.NO_DURATION)
    for name, expected in _rates(totals).items():
        reported = totals.values.get(name)
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
