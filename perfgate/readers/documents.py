"""JSON documents of other load generators: one file, one document, told apart by their keys.

`vllm bench sweep serve` writes each result with line breaks, and all of a setting as a list, guidellm a list of benchmarks,
aiperf and genai-perf one block of statistics a metric, SGLang's one-batch benchmarks a record for each size (as lines, or as a
list in its nightly runs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import orjson

from perfgate.core import Remark, RemarkKind, Run
from perfgate.errors import EvidenceError
from perfgate.readers.run_checks import as_count, as_number, check_run

Record = Mapping[str, Any]
MS_PER_S = 1000.0

# What of a distribution is which metric: name of perfgate.metrics.METRICS -> place in the document and factor to its unit.
GUIDELLM = {
    "mean_e2e_ms": ("request_latency", "mean", MS_PER_S),
    "median_e2e_ms": ("request_latency", "median", MS_PER_S),
    "p99_e2e_ms": ("request_latency", "p99", MS_PER_S),
    "mean_ttft_ms": ("time_to_first_token_ms", "mean", 1.0),
    "median_ttft_ms": ("time_to_first_token_ms", "median", 1.0),
    "p99_ttft_ms": ("time_to_first_token_ms", "p99", 1.0),
    "mean_itl_ms": ("inter_token_latency_ms", "mean", 1.0),
    "median_itl_ms": ("inter_token_latency_ms", "median", 1.0),
    "p95_itl_ms": ("inter_token_latency_ms", "p95", 1.0),
    "p99_itl_ms": ("inter_token_latency_ms", "p99", 1.0),
}
AIPERF = {
    "mean_e2e_ms": ("request_latency", "avg"),
    "median_e2e_ms": ("request_latency", "p50"),
    "p99_e2e_ms": ("request_latency", "p99"),
    "mean_ttft_ms": ("time_to_first_token", "avg"),
    "median_ttft_ms": ("time_to_first_token", "p50"),
    "p99_ttft_ms": ("time_to_first_token", "p99"),
    "mean_itl_ms": ("inter_token_latency", "avg"),
    "median_itl_ms": ("inter_token_latency", "p50"),
    "p95_itl_ms": ("inter_token_latency", "p95"),
    "p99_itl_ms": ("inter_token_latency", "p99"),
    "output_tok_per_s": ("output_token_throughput", "avg"),
    "request_per_s": ("request_throughput", "avg"),
}
TO_UNIT = {"ms": 1.0, "s": MS_PER_S, "sec": MS_PER_S, "us": 1 / MS_PER_S, "ns": 1e-6}
"""To milliseconds; units of throughputs are not in it."""
BY_REQUEST = "mean gap of a request"
"""guidellm, aiperf and genai-perf average the gaps of a request first, so that their percentiles are not those of gaps."""
ONE_BATCH = ("batch_size", "input_len", "output_len")
LAST_OF_BATCH = "last request of a batch"
WHOLE_BATCH = "batch size over output throughput"
"""bench_one_batch_server times its batch, not each request; the gap that it prints counts first tokens too."""


def is_document(content: bytes) -> bool:
    """Whether a file is one JSON document of a known kind, and no line of its own is one."""
    head = content.lstrip()[:1]
    if head == b"[":
        return b'"batch_size"' in content or b'"completed"' in content
    if head != b"{":
        return False
    first = content.lstrip().split(b"\n", 1)[0]
    if _is_json(first):
        return b'"benchmarks"' in first or b'"batch_size"' in first or b'"request_latency"' in first
    return _is_json(content)


def parse_document(content: bytes, source: str, read_other: Callable[[Record, str], Run]) -> tuple[Run, ...]:
    """Read the runs of such a file; `read_other` reads one of bench_serving. Raise EvidenceError naming the field."""
    records = list(_list_records(content, source))
    if not records:
        raise EvidenceError(f"{source}: holds no result; give what the load generator wrote")
    is_only = len(records) == 1
    named = ((record, source if is_only else f"{source}:{number}") for number, record in enumerate(records, 1))
    return tuple(run for record, name in named for run in _read(record, name, read_other))


def _list_records(content: bytes, source: str) -> Iterator[Record]:
    if _is_json(content):
        found = orjson.loads(content)
        for record in found if isinstance(found, list) else [found]:
            if not isinstance(record, dict):
                raise EvidenceError(f"{source}: expected JSON objects, one for each result")
            yield record
        return
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise EvidenceError(f"{source}:{number}: not valid JSON ({error}); measure again") from None
            if not isinstance(record, dict):
                raise EvidenceError(f"{source}:{number}: expected the JSON object of one run")
            yield record


def _is_json(content: bytes) -> bool:
    try:
        orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    return True


def _read(record: Record, source: str, read_other: Callable[[Record, str], Run]) -> Iterator[Run]:
    if "benchmarks" in record:
        benchmarks = record["benchmarks"]
        if not isinstance(benchmarks, list) or not benchmarks:
            raise EvidenceError(f"{source}: benchmarks: holds none; give the JSON that `guidellm` wrote")
        only = len(benchmarks) == 1
        for index, benchmark in enumerate(benchmarks, 1):
            yield _read_guidellm(benchmark, source if only else f"{source}:{index}")
    elif isinstance(record.get("request_latency"), dict):
        yield _read_aiperf(record, source)
    elif all(name in record for name in ONE_BATCH):
        yield _read_one_batch(record, source)
    elif "completed" in record or "request_throughput" in record:
        yield read_other(record, source)
    else:
        raise EvidenceError(
            f"{source}: is JSON of no load generator that perfgate reads (bench_serving, vLLM, guidellm, aiperf, genai-perf, "
            "bench_one_batch); docs/how-to/compare.md lists them"
        )


def _read_guidellm(benchmark: Any, source: str) -> Run:
    metrics = _take(benchmark, "metrics", source)
    totals = _take(metrics, "request_totals", source)
    counts = {name: as_count(totals.get(name), source, f"metrics.request_totals.{name}") or 0 for name in totals}
    clock = _open(benchmark, "scheduler_metrics")
    ends = [as_number(clock.get(name), source, name) for name in ("measure_start_time", "measure_end_time")]
    values = {name: _find(metrics, source, key, "successful", part) for name, (key, part, _) in GUIDELLM.items()}
    incomplete = counts.get("incomplete", 0)
    return check_run(
        Run(
            source=source,
            values={name: value * GUIDELLM[name][2] for name, value in values.items() if value is not None},
            workload=_describe_guidellm(benchmark),
            requested=counts.get("successful", 0) + counts.get("errored", 0),
            completed=counts.get("successful", 0),
            input_tokens=_sum(metrics, "prompt_token_count", source),
            output_tokens=_sum(metrics, "output_token_count", source),
            duration_s=ends[1] - ends[0] if ends[0] is not None and ends[1] is not None else None,
            notes=(Remark(kind=RemarkKind.CUT_OFF, found=incomplete),) if incomplete else (),
            estimators=dict.fromkeys((name for name in GUIDELLM if "itl" in name), BY_REQUEST),
        )
    )


def _describe_guidellm(benchmark: Record) -> dict[str, str | int | float]:
    """Facts that two runs must share: how requests were sent, and to what model."""
    config = _open(benchmark, "config")
    strategy, backend = (_open(config, name) for name in ("strategy", "backend"))
    facts = {
        "backend": "guidellm",
        "strategy": strategy.get("type_"),
        "max_concurrency": strategy.get("max_concurrency"),
        "request_rate": strategy.get("rate"),
        "model": backend.get("model"),
    }
    return {name: fact for name, fact in facts.items() if isinstance(fact, (str, int, float)) and not isinstance(fact, bool)}


def _sum(metrics: Record, name: str, source: str) -> int | None:
    total = _find(metrics, source, name, "successful", "total_sum")
    return None if total is None else round(total)


def _read_aiperf(record: Record, source: str) -> Run:
    values = {}
    for name, (key, part) in AIPERF.items():
        value = _find(record, source, key, part)
        unit = record[key].get("unit") if isinstance(record.get(key), dict) else None
        if value is not None:
            values[name] = value * TO_UNIT.get(str(unit), 1.0)
    failed = _find(record, source, "error_request_count", "avg") or 0
    is_cut = record.get("was_cancelled") or record.get("is_complete") is False
    completed = round(_find(record, source, "request_count", "avg") or 0)
    return check_run(
        Run(
            source=source,
            values=values,
            workload=_describe_aiperf(record),
            requested=completed + round(failed),
            completed=completed,
            input_tokens=_total(record, source, completed, "input_sequence_length", "total_isl"),
            output_tokens=_total(record, source, completed, "output_sequence_length", "total_osl", "total_output_tokens"),
            duration_s=_read_duration(record, source, completed),
            problems=(Remark(kind=RemarkKind.CANCELLED),) if is_cut else (),
            estimators=dict.fromkeys((name for name in AIPERF if "itl" in name), BY_REQUEST),
        )
    )


def _total(record: Record, source: str, completed: int, mean: str, *totals: str) -> int | None:
    """Tokens of all requests; genai-perf tells their `mean` alone."""
    for name in totals:
        if total := _find(record, source, name, "avg"):
            return round(total)
    per_request = _find(record, source, mean, "avg")
    return None if per_request is None else round(per_request * completed)


def _read_duration(record: Record, source: str, completed: int) -> float | None:
    """How long requests were sent and answered, in seconds.

    aiperf divides by the time of the whole phase, and tells as `benchmark_duration` that between the first request and the last
    response of those that succeeded. genai-perf tells no duration, only the rate that it made with one.
    """
    begun, ended = record.get("start_time"), record.get("end_time")
    if isinstance(begun, str) and isinstance(ended, str):
        try:
            took = datetime.fromisoformat(ended) - datetime.fromisoformat(begun)
        except (ValueError, TypeError):
            raise EvidenceError(f"{source}: start_time, end_time: expected two moments as ISO 8601 writes them") from None
        return as_number(took.total_seconds(), source, "end_time")
    if (told := _find(record, source, "benchmark_duration", "avg")) is not None:
        return told
    rate = _find(record, source, "request_throughput", "avg")
    return as_number(completed / rate, source, "count over request_throughput") if rate else None


def _describe_aiperf(record: Record) -> dict[str, str | int | float]:
    """Facts that two runs must share.

    aiperf's schema 1.4 has phases and models, older ones one load and names at the endpoint; genai-perf has a stimulus.
    """
    given = _open(record, "input_config")
    phase = next((one for one in _list_objects(given, "phases") if one.get("kind") == "profiling"), {})
    stimulus = _open(_open(given, "perf_analyzer"), "stimulus")
    load = {**_open(given, "loadgen"), **stimulus}
    names = _open(given, "endpoint").get("model_names", given.get("model_names"))
    models = [one.get("name") for one in _list_objects(_open(given, "models"), "items")]
    models += names if isinstance(names, list) else []
    facts = {
        "backend": "aiperf" if "schema_version" in record or "aiperf_version" in record else "genai-perf",
        "strategy": phase.get("type", next(iter(stimulus), None)),
        "max_concurrency": phase.get("concurrency", load.get("concurrency")),
        "request_rate": phase.get("rate", load.get("request_rate")),
        "model": models[0] if models else None,
    }
    return {name: fact for name, fact in facts.items() if isinstance(fact, (str, int, float)) and not isinstance(fact, bool)}


def _read_one_batch(record: Record, source: str) -> Run:
    """One batch of equal requests: `bench_one_batch` times a model, `bench_one_batch_server` a server, also in nightly runs.

    An answer may end early, and then only `total_output_tokens` says how many tokens came.
    """
    sizes = {name: as_count(record[name], source, name) or 0 for name in ONE_BATCH}
    batch, length, answer = sizes.values()
    latency = _number(record, source, "total_latency", "latency")
    answered = as_count(record.get("total_output_tokens"), source, "total_output_tokens")
    is_server = "latency" in record
    decoding = _number(record, source, "output_throughput") if answer > 1 else None
    values = {
        "total_tok_per_s": _number(record, source, "overall_throughput"),
        "mean_e2e_ms": _scale(latency),
        "mean_ttft_ms": _scale(_number(record, source, "prefill_latency", "last_ttft")),
        "median_itl_ms": _scale(_number(record, source, "median_decode_latency")),
        "mean_itl_ms": _scale(as_number(batch / decoding, source, "batch over output_throughput")) if decoding else None,
    }
    facts = {"model": record["model_path"]} if isinstance(record.get("model_path"), str) else {}
    made = {"mean_e2e_ms": LAST_OF_BATCH, "mean_ttft_ms": LAST_OF_BATCH, "mean_itl_ms": WHOLE_BATCH}
    return check_run(
        Run(
            source=source,
            values={name: value for name, value in values.items() if value is not None},
            workload={
                "backend": "bench_one_batch_server" if is_server else "bench_one_batch",
                **facts,
                **sizes,
            },
            requested=batch,
            completed=batch,
            input_tokens=batch * length,
            output_tokens=batch * answer if answered is None else answered,
            duration_s=latency,
            estimators=made if is_server else {},
        )
    )


def _number(record: Record, source: str, *names: str) -> float | None:
    return next((as_number(record[name], source, name) for name in names if record.get(name) is not None), None)


def _scale(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MS_PER_S


def _open(record: Record, name: str) -> Record:
    """An inner object; empty where there is none."""
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def _list_objects(record: Record, name: str) -> list[Record]:
    """The inner objects of a list; none where it is no list."""
    found = record.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _take(record: Any, name: str, source: str) -> Record:
    found = record.get(name) if isinstance(record, dict) else None
    if not isinstance(found, dict):
        raise EvidenceError(f"{source}: {name}: is missing; give the whole JSON that the load generator wrote")
    return found


def _find(record: Record, source: str, *keys: str) -> float | None:
    """A number below `keys`, or below `percentiles` of their last but one; None where it is not."""
    found: Any = record
    for key in keys:
        inner = found.get("percentiles") if isinstance(found, dict) and key not in found else None
        found = (inner if isinstance(inner, dict) else found).get(key) if isinstance(found, dict) else None
    return None if found is None else as_number(found, source, ".".join(keys))
