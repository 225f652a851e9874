"""What `--output-details` adds to a run: every request's first token, inter-token gaps, length, text and error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, dropwhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfgate.core import Remark, RemarkKind
from perfgate.errors import EvidenceError
from perfgate.stats.tails import average_worst, estimate_quantile

# Tokens that arrive in one event leave one gap less. A few are normal; more means that the gaps are not the tokens' own.
MAX_MISSING_ITL_RATIO = 0.05
MS_PER_S = 1e3
TAILS = ("p99_ttft_ms", "p99_ttft_short_ms", "p99_itl_ms")
FIELDS = ("ttfts", "itls", "output_lens")
INPUT_LENS = "input_lens"
"""Not every version of the load generator writes them."""
# As bench_serving tells an error: the whole traceback, of which the exception comes last.
TRACEBACK = "Traceback (most recent call last):"
MAX_ERROR = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """The requests of one run, in the order in which they were sent.

    `ttft_s` and `output_len` have shape (requests,), `itl_s` is flat over all requests, `itl_count` says how many of it belong
    to each request. `input_len` are the tokens of its prompt, None where they were not written. `errors` and `empty_texts`
    count requests.
    """

    ttft_s: NDArray[np.float64]
    itl_s: NDArray[np.float64]
    itl_count: NDArray[np.int64]
    output_len: NDArray[np.int64]
    input_len: NDArray[np.int64] | None
    errors: tuple[str, ...]
    empty_texts: int

    @property
    def requests(self) -> int:
        """How many requests were sent, whatever became of them."""
        return len(self.ttft_s)


def parse_details(record: Mapping[str, Any], where: str) -> Details | None:
    """Read the per-request lists of one JSONL line; None when it has none. Raise EvidenceError naming a field that is wrong."""
    present = [name for name in FIELDS if record.get(name) is not None]
    if not present:
        return None
    told = [*FIELDS, *(name for name in (INPUT_LENS,) if record.get(name) is not None)]
    lists = {name: _as_list(record, name, where) for name in told}
    requests = len(lists["ttfts"])
    errors = _as_list(record, "errors", where) if record.get("errors") is not None else []
    texts = _as_list(record, "generated_texts", where) if record.get("generated_texts") is not None else []
    for name, found in {**lists, "errors": errors or lists["ttfts"], "generated_texts": texts or lists["ttfts"]}.items():
        if len(found) != requests:
            raise EvidenceError(
                f"{where}: {name}: {len(found)} entries for {requests} requests; the line is damaged, measure again"
            )
    gaps = lists["itls"]
    if not all(isinstance(gap, list) for gap in gaps):
        raise EvidenceError(f"{where}: itls: expected one list of seconds for each request")
    counts = np.fromiter(map(len, gaps), dtype=np.int64, count=requests)
    return Details(
        ttft_s=_as_array(lists["ttfts"], where, "ttfts"),
        itl_s=_as_array(chain.from_iterable(gaps), where, "itls", count=int(counts.sum())),
        itl_count=counts,
        output_len=_as_array(lists["output_lens"], where, "output_lens").astype(np.int64),
        input_len=_as_array(lists[INPUT_LENS], where, INPUT_LENS).astype(np.int64) if INPUT_LENS in lists else None,
        errors=tuple(str(error) for error in errors if error),
        empty_texts=sum(not text for text in texts),
    )


def _as_list(record: Mapping[str, Any], name: str, where: str) -> list[Any]:
    found = record.get(name)
    if not isinstance(found, list):
        raise EvidenceError(
            f"{where}: {name}: expected a list with one entry for each request; measure again with --output-details"
        )
    return found


def _as_array(values: Any, where: str, name: str, count: int = -1) -> NDArray[np.float64]:
    """Return numbers as an array; it need not grow if their `count` is known."""
    try:
        array = np.fromiter(values, dtype=np.float64, count=count)
    except (TypeError, ValueError, OverflowError):
        raise EvidenceError(f"{where}: {name}: expected numbers only; the line is damaged, measure again") from None
    # Lengths beyond 2**53 are no lengths, and would not survive the way to integers.
    if array.size and not (np.isfinite(array).all() and array.min() >= 0 and array.max() < 2**53):
        raise EvidenceError(f"{where}: {name}: holds a negative or non-finite number; the line is damaged, measure again")
    return array


def detail_values(details: Details) -> tuple[dict[str, float], dict[str, str]]:
    """Compute latencies from the raw samples, in ms, and say which are made by another estimator than the load generator's.

    Means, medians and P95 are defined as the load generator defines them (linear interpolation). P99 is the Harrell-Davis
    estimate, a weighted mean of the order statistics near the quantile (Harrell & Davis 1982, Biometrika 69), which is steadier
    from run to run than the one or two order statistics that the load generator interpolates; it may differ from the printed
    P99 by several percent, so the two are never compared. ES5 is the mean of the worst 5 % of the gaps. Short prompts have the
    window's median length at most, where lengths differ.
    """
    ttft_ms = details.ttft_s[details.ttft_s > 0] * MS_PER_S
    short_ms = details.ttft_s[_is_short(details) & (details.ttft_s > 0)] * MS_PER_S
    itl_ms = details.itl_s * MS_PER_S
    values: dict[str, float] = {}
    if ttft_ms.size:
        values |= {
            "mean_ttft_ms": float(ttft_ms.mean()),
            "median_ttft_ms": float(np.median(ttft_ms)),
            "p99_ttft_ms": estimate_quantile(ttft_ms, 0.99),
        }
    if short_ms.size:
        values["p99_ttft_short_ms"] = estimate_quantile(short_ms, 0.99)
    if itl_ms.size:
        values |= _itl_values(itl_ms)
    return values, {name: "harrell-davis" for name in TAILS if name in values}


def _is_short(details: Details) -> NDArray[np.bool_]:
    """Which requests have a prompt of at most the median length; none where all prompts are equally long, or untold."""
    lengths = details.input_len
    if lengths is None or not lengths.size or lengths.min() == lengths.max():
        return np.zeros(details.requests, dtype=np.bool_)
    short: NDArray[np.bool_] = lengths <= np.median(lengths)
    return short


def _itl_values(itl_ms: NDArray[np.float64]) -> dict[str, float]:
    median, p95 = np.percentile(itl_ms, (50, 95))
    return {
        "mean_itl_ms": float(itl_ms.mean()),
        "median_itl_ms": float(median),
        "p95_itl_ms": float(p95),
        "p99_itl_ms": estimate_quantile(itl_ms, 0.99),
        "es5_itl_ms": average_worst(itl_ms, 0.05),
        "max_itl_ms": float(itl_ms.max()),
    }


def detail_findings(details: Details, *, shares_events: bool) -> tuple[list[Remark], list[Remark]]:
    """Check every request; return problems and notes. `shares_events` is True where several tokens an event are by design."""
    problems = [
        Remark(kind=kind, found=count, due=details.requests, detail=detail)
        for kind, count, detail in (
            (RemarkKind.FAILED, len(details.errors), name_error(details.errors[0])[:MAX_ERROR] if details.errors else ""),
            (RemarkKind.NO_FIRST_TOKEN, int((details.ttft_s <= 0).sum()), ""),
            (RemarkKind.NO_OUTPUT, int((details.output_len <= 0).sum()), ""),
            (RemarkKind.NO_TEXT, details.empty_texts, ""),
        )
        if count
    ]
    if problems or shares_events:
        return problems, []
    return _check_gaps(details)


def name_error(text: str) -> str:
    """The line of a request's error that says what went wrong: of a traceback its last exception, else all of it."""
    _, mark, traced = text.rpartition(TRACEBACK)
    # Below that headline the frames are indented; the exception is not, nor is what it says on further lines.
    lines = list(dropwhile(lambda line: not line.strip() or line[0].isspace(), traced.splitlines())) if mark else []
    return " ".join(" ".join(lines or [text]).split())


def _check_gaps(details: Details) -> tuple[list[Remark], list[Remark]]:
    """A request of n tokens leaves n - 1 gaps, unless some of them shared an event."""
    due = np.maximum(details.output_len - 1, 0)
    off = int(np.abs(due - details.itl_count).sum())
    total = int(due.sum())
    if not off:
        return [], []
    if off > MAX_MISSING_ITL_RATIO * total:
        return [Remark(kind=RemarkKind.FEW_GAPS, found=details.itl_s.size, due=total)], []
    return [], [Remark(kind=RemarkKind.SHARED_EVENT, found=details.itl_s.size, due=total)]
