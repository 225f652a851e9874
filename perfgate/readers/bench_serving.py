"""Read what `sglang.bench_serving` writes: JSONL lines of any version of the last year, printed tables and matrix logs."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from perfgate.core import Remark, RemarkKind, Run
from perfgate.errors import EvidenceError
from perfgate.readers.documents import is_document, parse_document
from perfgate.readers.matrix_log import is_matrix_log, parse_matrix_log
from perfgate.readers.printed_table import has_table, parse_tables
from perfgate.readers.request_details import Details, detail_findings, detail_values, parse_details
from perfgate.readers.run_checks import NO_LIMIT, as_count, as_number, check_run, read_rate
from perfgate.results.raw.pack import read_raw
from perfgate.storage.bounded import require_few_lists

UTF8_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# Python writes a closed loop's rate as a bare Infinity, which is no JSON. A quote inside a string is escaped, so this pattern
# can only match a key and its value, never text that a model generated. It begins with a literal because commas are a million.
NOT_JSON = re.compile(rb'("(?<=[{,\s]")\w+"\s*:\s*)(-?Infinity|NaN)\b')

# Name of perfgate.metrics.METRICS -> field names, newest first.
VALUE_FIELDS: dict[str, tuple[str, ...]] = {
    "output_tok_per_s": ("output_throughput",),
    "total_tok_per_s": ("total_throughput", "total_token_throughput"),
    "request_per_s": ("request_throughput",),
    "mean_e2e_ms": ("mean_e2e_latency_ms", "mean_e2el_ms"),
    "median_e2e_ms": ("median_e2e_latency_ms", "median_e2el_ms"),
    "p99_e2e_ms": ("p99_e2e_latency_ms", "p99_e2el_ms"),
    "mean_ttft_ms": ("mean_ttft_ms",),
    "median_ttft_ms": ("median_ttft_ms",),
    "p99_ttft_ms": ("p99_ttft_ms",),
    "mean_tpot_ms": ("mean_tpot_ms",),
    "mean_itl_ms": ("mean_itl_ms",),
    "median_itl_ms": ("median_itl_ms",),
    "p95_itl_ms": ("p95_itl_ms",),
    "p99_itl_ms": ("p99_itl_ms",),
    "max_itl_ms": ("max_itl_ms",),
}
COUNT_FIELDS: dict[str, tuple[str, ...]] = {
    "requested": ("num_prompts",),
    "completed": ("completed", "successful_requests"),
    "input_tokens": ("total_input_tokens", "total_input"),
    "output_tokens": ("total_output_tokens", "total_output"),
    "retokenized": ("total_output_tokens_retokenized", "total_output_retokenized"),
}
# Which arguments decide the prompts, by the start of the data set's name; the others are unused defaults.
DATASET_FIELDS = {
    "random": ("random_input_len", "random_output_len", "random_range_ratio"),
    "sharegpt": ("sharegpt_output_len",),
}


def read_runs(path: Path | str) -> tuple[Run, ...]:
    """Read every run of a file, told apart by content: JSONL (also gzip'ed), printed tables, a matrix log, a JSON document.

    A document is what vLLM, guidellm, aiperf, genai-perf, or SGLang's one-batch and nightly benchmarks wrote.

    Raise EvidenceError naming file and line when the file is none of these. A run that contradicts itself is returned with its
    problems.
    """
    return parse_runs(read_bytes(Path(path)), str(path))


def parse_runs(content: bytes, path: str) -> tuple[Run, ...]:
    """Read every run of a file's content, as `read_runs` does; `path` is what messages call it."""
    whole = _quote_non_numbers(content) if content.lstrip()[:1] in {b"{", b"["} else content
    if is_document(whole):
        return parse_document(whole, path, lambda record, where: _as_run(record, where, where))
    if content.lstrip()[:1] == b"{":
        return _parse_lines(content, path)
    text = decode(content)
    if is_matrix_log(text):
        return tuple(cell.run for cell in parse_matrix_log(text, path))
    if has_table(text):
        return parse_tables(text, path)
    raise EvidenceError(f"{path}: no bench_serving JSONL line, printed result or matrix log in it; give one of these")


def read_window(path: Path | str) -> Run:
    """Read a file that must hold exactly one JSONL line, gzip'ed or not. Raise EvidenceError when it does not."""
    line, where = _read_only_line(Path(path))
    return _parse_line(line, str(path), where)


def read_fields(path: Path) -> dict[str, Any]:
    """The same line as the load generator wrote it: every field, unchecked. Raise EvidenceError when there is none."""
    return _load(*_read_only_line(path))


def count_malformed(raw: bytes, form: str) -> int | None:
    """How many answers of one JSONL line are not of the `form`, a regular expression; None where the line holds no texts."""
    try:
        texts = _load(raw, "window").get("generated_texts")
    except EvidenceError:
        return None
    if not isinstance(texts, list) or not texts:
        return None
    return sum(re.fullmatch(form, str(text)) is None for text in texts)


def _read_only_line(path: Path) -> tuple[bytes, str]:
    lines = _split(read_bytes(path))
    if len(lines) != 1:
        raise EvidenceError(
            f"{path}: {len(lines)} result lines where one window has one; use a fresh output file for each window"
        )
    return lines[0][1], f"{path}:{lines[0][0]}"


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, unpacked if gzip'ed or packed; of standard input for `-`.

    Raise EvidenceError when it is missing, no file, empty or damaged.
    """
    try:
        if path.is_dir():
            raise EvidenceError(f"{path}: is a directory; give the files in it")
        if path.is_char_device() or path.is_block_device():
            raise EvidenceError(f"{path}: is a device; give a file")
        content = read_raw(path)
    except FileNotFoundError:
        raise EvidenceError(f"{path}: no such file; check the path") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise EvidenceError(f"{path}: damaged gzip file ({error}); copy it again") from None
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{path}: cannot be read ({error})") from None
    content = content.removeprefix(UTF8_MARK)
    if not content.strip():
        raise EvidenceError(f"{path}: is empty; the load generator wrote nothing, so read its log")
    return content


def decode(content: bytes) -> str:
    """Decode a pasted log. Bytes that are no text stay visible as replacement characters: only a few lines matter."""
    return content.decode("utf-16" if content.startswith(UTF16_MARKS) else "utf-8", errors="replace")


def _split(content: bytes) -> list[tuple[int, bytes]]:
    return [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]


def _parse_lines(content: bytes, source: str) -> tuple[Run, ...]:
    lines = _split(content)
    seen: dict[bytes, int] = {}
    for number, line in lines:
        if line in seen:
            raise EvidenceError(f"{source}:{number}: repeats line {seen[line]}; a run counts once, so delete one of them")
        seen[line] = number
    only = len(lines) == 1
    return tuple(_parse_line(line, source if only else f"{source}:{number}", f"{source}:{number}") for number, line in lines)


def _parse_line(line: bytes, source: str, where: str) -> Run:
    record = _load(line, where)
    if not any(name in record for names in (*VALUE_FIELDS.values(), COUNT_FIELDS["completed"]) for name in names):
        raise EvidenceError(f"{where}: completed: no field of a bench_serving result is in this line; give its --output-file")
    return _as_run(record, source, where)


def _load(line: bytes, where: str) -> dict[str, Any]:
    require_few_lists(line, where)
    try:
        record = orjson.loads(_quote_non_numbers(line))
    except orjson.JSONDecodeError as error:
        raise EvidenceError(f"{where}: not valid JSON ({error}); the line was cut off or edited, measure again") from None
    if not isinstance(record, dict):
        raise EvidenceError(f"{where}: expected the JSON object of one run")
    return record


def _quote_non_numbers(line: bytes) -> bytes:
    """Make bare Infinity and NaN into strings. Only the head of a line holds them, its megabyte of samples does not."""
    last = max(line.rfind(word) for word in (b"Infinity", b"NaN"))
    if last < 0:
        return line
    # One byte more than the longer word, so that the pattern still sees where the word ends.
    head = last + len(b"Infinity") + 1
    return NOT_JSON.sub(rb'\1"\2"', line[:head]) + line[head:]


def _as_run(record: Mapping[str, Any], source: str, where: str) -> Run:
    numbers = {name: as_number(*_find(record, fields, where)) for name, fields in VALUE_FIELDS.items()}
    counts = {name: as_count(*_find(record, fields, where)) for name, fields in COUNT_FIELDS.items()}
    values = {name: number for name, number in numbers.items() if number is not None}
    details = parse_details(record, where)
    estimators: dict[str, str] = {}
    problems: list[Remark] = []
    notes: list[Remark] = []
    if details is not None:
        raw, estimators = detail_values(details)
        shares_events = bool(record.get("accept_length")) and str(record.get("backend")).startswith("sglang-oai")
        if shares_events:
            raw = {name: value for name, value in raw.items() if "itl" not in name}
            estimators = {name: made for name, made in estimators.items() if name in raw}
            notes.append(Remark(kind=RemarkKind.SPECULATIVE))
        values |= raw
        found_problems, found_notes = detail_findings(details, shares_events=shares_events)
        problems += found_problems
        notes += found_notes
    return check_run(
        Run(
            source=source,
            values=values,
            workload=_workload(record, where),
            requested=_requested(counts["requested"], details),
            completed=counts["completed"] or 0,
            input_tokens=counts["input_tokens"],
            output_tokens=counts["output_tokens"],
            duration_s=as_number(*_find(record, ("duration",), where)),
            problems=tuple(problems),
            notes=tuple(notes),
            estimators=estimators,
        ),
        retokenized=counts["retokenized"],
    )


def _find(record: Mapping[str, Any], names: tuple[str, ...], where: str) -> tuple[Any, str, str]:
    name = next((name for name in names if record.get(name) is not None), names[0])
    value = record.get(name)
    # What NOT_JSON quoted is a number again, and one that no metric may have.
    return (float(value) if value in ("Infinity", "-Infinity", "NaN") else value), where, name


def _requested(reported: int | None, details: Details | None) -> int | None:
    return details.requests if reported is None and details is not None else reported


def _workload(record: Mapping[str, Any], where: str) -> dict[str, str | int | float]:
    """Facts that two runs must share, in the words that printed tables use for them."""
    dataset = record.get("dataset_name")
    names = next((names for start, names in DATASET_FIELDS.items() if str(dataset).startswith(start)), ())
    facts: dict[str, Any] = {"backend": record.get("backend"), "dataset": dataset}
    facts |= {name: as_number(*_find(record, (name,), where)) for name in names}
    if "request_rate" in record:
        facts["request_rate"] = read_rate(record["request_rate"])
    if "max_concurrency" in record:
        facts["max_concurrency"] = as_count(record["max_concurrency"], where, "max_concurrency") or NO_LIMIT
    facts["model"] = _model(record)
    return {name: value for name, value in facts.items() if isinstance(value, (str, int, float))}


def _model(record: Mapping[str, Any]) -> str | None:
    """The last part of the served model's path: the same model may lie in another folder on another machine."""
    info = record.get("server_info")
    path = info.get("model_path") if isinstance(info, dict) else record.get("model_id")
    return path.rstrip("/").rsplit("/", 1)[-1] if isinstance(path, str) else None
