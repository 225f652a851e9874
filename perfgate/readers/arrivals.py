"""A trace of requests by their own times of arrival: Mooncake's JSONL, and the CSV of BurstGPT and of Azure's LLM inference."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Annotated

from pydantic import Field

from perfgate.errors import InputError
from perfgate.scenario.load import Load
from perfgate.storage.schema import check_value, parse_json

# Tokens that one of Mooncake's hash ids stands for.
BLOCK_TOKENS = 512
HINT = "correct or leave out that line"

# Longer than the context of any model: drawing such a prompt would take the client's memory.
MOST_TOKENS = 100_000_000

Tokens = Annotated[int, Field(gt=0, le=MOST_TOKENS)]
# Strict: JSON has numbers, CSV has text alone.
StrictTokens = Annotated[int, Field(gt=0, le=MOST_TOKENS, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request: when it comes, its tokens, and which blocks of 512 tokens its prompt shares with others of the same id."""

    at_s: float
    input_len: int
    output_len: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mooncake:
    timestamp: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
    input_length: StrictTokens
    output_length: StrictTokens
    hash_ids: tuple[Annotated[int, Field(strict=True)], ...] = ()

    def read(self) -> Arrival:
        return Arrival(
            at_s=self.timestamp / 1e3, input_len=self.input_length, output_len=self.output_length, hash_ids=self.hash_ids
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BurstGpt:
    at_s: Annotated[float, Field(ge=0, allow_inf_nan=False, alias="Timestamp")]
    request: Annotated[Tokens, Field(alias="Request tokens")]
    response: Annotated[Tokens, Field(alias="Response tokens")]

    def read(self) -> Arrival:
        return Arrival(at_s=self.at_s, input_len=self.request, output_len=self.response)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Azure:
    at: Annotated[datetime, Field(alias="TIMESTAMP")]
    context: Annotated[Tokens, Field(alias="ContextTokens")]
    generated: Annotated[Tokens, Field(alias="GeneratedTokens")]

    def read(self) -> Arrival:
        at = self.at if self.at.tzinfo else self.at.replace(tzinfo=UTC)
        return Arrival(at_s=at.timestamp(), input_len=self.context, output_len=self.generated)


# By the column of the times.
_TABLES: dict[str, type[_BurstGpt | _Azure]] = {"Timestamp": _BurstGpt, "TIMESTAMP": _Azure}


def read_arrivals(load: Load) -> tuple[Arrival, ...]:
    """The slice of a trace that a load sends, by times from its first request on, scaled as the load says.

    Raise InputError naming file, line and field of what is wrong up to the end of the slice.
    """
    path = Path(load.dataset_path)
    found: list[Arrival] = []
    first_s = latest_s = None
    try:
        for where, arrival in _read_lines(path):
            if latest_s is not None and arrival.at_s < latest_s:
                raise InputError(f"{where}: its time is before that of the line above; sort the trace by time")
            latest_s = arrival.at_s
            first_s = latest_s if first_s is None else first_s
            if latest_s - first_s >= load.trace_from_s:
                found.append(arrival)
            if len(found) == load.num_prompts:
                return _scale(found, load)
    except (OSError, csv.Error) as error:
        raise InputError(f"load.dataset_path {path}: cannot be read ({error}); give another file") from None
    raise InputError(
        f"load.num_prompts: is {load.num_prompts}, and {path} holds {len(found)} requests from {load.trace_from_s:g} s on; "
        "send fewer, or begin earlier by load.trace_from_s"
    )


def _scale(found: list[Arrival], load: Load) -> tuple[Arrival, ...]:
    begin_s = found[0].at_s
    scaled = tuple(
        Arrival(
            at_s=(one.at_s - begin_s) * load.trace_slowdown,
            input_len=one.input_len,
            output_len=one.output_len,
            hash_ids=one.hash_ids,
        )
        for one in found
    )
    if scaled[-1].at_s >= load.timeout_s:
        raise InputError(
            f"load.timeout_s: {load.timeout_s:g} s are over before the trace's last request comes, at {scaled[-1].at_s:.0f} s; "
            "raise it, or send fewer requests"
        )
    return scaled


def _read_lines(path: Path) -> Iterator[tuple[str, Arrival]]:
    """Each request with the place where it stands."""
    # What is no UTF-8 is no number either, and is told with its line.
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        begin = file.read(1)
        file.seek(0)
        if begin == "{":
            for number, line in enumerate(file, start=1):
                if line.strip():
                    where = f"{path}:{number}"
                    yield where, _read_mooncake(line, where)
            return
        table = csv.DictReader(file)
        kind = next((_TABLES[name] for name in table.fieldnames or () if name in _TABLES), None)
        if kind is None:
            raise InputError(
                f"{path}:1: is no trace of requests; give Mooncake's JSONL, or CSV with the columns of BurstGPT "
                "(Timestamp, Request tokens, Response tokens) or Azure (TIMESTAMP, ContextTokens, GeneratedTokens)"
            )
        for row in table:
            where = f"{path}:{table.line_num}"
            yield where, check_value(row, kind, where, HINT, InputError).read()


def _read_mooncake(text: str, where: str) -> Arrival:
    arrival = parse_json(text.encode(), _Mooncake, where, HINT, InputError).read()
    if arrival.hash_ids and len(arrival.hash_ids) != (due := ceil(arrival.input_len / BLOCK_TOKENS)):
        raise InputError(
            f"{where}: hash_ids: has {len(arrival.hash_ids)} blocks of {BLOCK_TOKENS} tokens where input_length "
            f"{arrival.input_len} has {due}; {HINT}"
        )
    return arrival
