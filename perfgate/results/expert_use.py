"""Expert use in a result folder: what was chosen for which text, a file a start, and an index with digests.

The numbers are computed from the stored choices each time the folder is read. A start that could not be asked has a line
without a file, which says why. A block that was cut off is asked again: the last line of an arm counts.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import Field, ValidationError
from pydantic.dataclasses import dataclass as checked

from perfgate.core import Arm
from perfgate.errors import EvidenceError
from perfgate.evidence import Damage, DamageKind
from perfgate.results.raw.pack import find_damage, list_raw, read_raw
from perfgate.stats.expert_use import (
    NOT_MEASURED,
    Choices,
    ExpertUse,
    Trace,
    Traced,
    Unknown,
    compare_with_base,
    measure_use,
)
from perfgate.storage.journal import DAMAGED, append_record, read_records, write_packed
from perfgate.storage.schema import STRICT, Number, adapt, describe_first

INDEX_FILE = "expert_use.jsonl"
RAW_DIR = "expert_use"

Size = Annotated[int, Field(ge=1, lt=100_000, strict=True)]
Ids = Annotated[int, Field(ge=0, lt=2**53, strict=True)]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$", max_length=4096)]


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class UseRecord:
    """One line of the index: which start was asked, and where its choices lie or why there are none."""

    arm: Arm
    block: Number
    start: Number
    unknown: Unknown | None = None
    file: Annotated[str, Field(pattern=r"^(expert_use/start-\d{2,6}\.json\.gz)?$")] = ""
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class RawText:
    """A text as it is stored: for each layer base64 of little-endian unsigned 16-bit ids, one row of `top_k` a token."""

    tokens: Annotated[list[Ids], Field(fail_fast=True, max_length=128)]
    layers: Annotated[list[Base64], Field(fail_fast=True, min_length=1, max_length=128)]


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class RawTrace:
    """The content of a stored file, which a hand-off carries as it is; the fields of `Trace`, with choices as recorded."""

    experts: Size
    top_k: Size
    prompt_len: Size
    tokens_a_step: Size
    texts: Annotated[list[RawText], Field(fail_fast=True, min_length=2, max_length=32)]
    again: Annotated[list[RawText], Field(fail_fast=True, min_length=1, max_length=32)]


def store_use(folder: Path, found: RawTrace | Unknown, *, arm: Arm, block: int, start: int) -> None:
    """Put what one start chose into a result folder, then its index line; or the line alone, with the reason why not."""
    if isinstance(found, Unknown):
        record = UseRecord(arm=arm, block=block, start=start, unknown=found)
    else:
        name = f"{RAW_DIR}/start-{start:02d}.json.gz"
        digest = write_packed(folder / name, adapt(RawTrace).dump_json(found))
        record = UseRecord(arm=arm, block=block, start=start, file=name, sha256=digest)
    append_record(folder / INDEX_FILE, record)


def load_use(
    folder: Path, arms: Sequence[Arm], starts: Collection[int] | None = None
) -> tuple[dict[Arm, ExpertUse], list[Damage]]:
    """Read the expert use of `arms`, and name each file that is not as it was written.

    An arm that was never asked has NOT_MEASURED. `starts` are those that are asked for, all of the folder unless given: a
    matrix has several arms in the candidate's place. Raise EvidenceError for a damaged index.
    """
    found = read_records(folder / INDEX_FILE, UseRecord, DAMAGED)
    records = {record.arm: record for record in found if starts is None or record.start in starts}
    uses: dict[Arm, ExpertUse] = dict.fromkeys(arms, NOT_MEASURED)
    damage: list[Damage] = []
    traces: dict[Arm, Trace] = {}
    for arm, record in sorted(records.items()):
        if record.unknown is not None:
            uses[arm] = ExpertUse(unknown=record.unknown)
            continue
        trace = _read(folder, record)
        if isinstance(trace, Damage):
            uses[arm] = ExpertUse(unknown=Unknown.INCOMPLETE)
            damage.append(trace)
            continue
        traces[arm], uses[arm] = trace[1], measure_use(trace[1])
    if len(traces) == len(Arm):
        uses[Arm.CANDIDATE] = compare_with_base(uses[Arm.CANDIDATE], traces[Arm.CANDIDATE], traces[Arm.BASE])
    return uses, damage


def list_use(folder: Path) -> list[tuple[UseRecord, RawTrace | None]]:
    """What is stored of each arm: its line, and its choices where there are some and they are as they were written.

    Raise EvidenceError for a damaged index.
    """
    records = {record.arm: record for record in read_records(folder / INDEX_FILE, UseRecord, DAMAGED)}
    found = [(record, None if record.unknown else _read(folder, record)) for _, record in sorted(records.items())]
    return [(record, read[0] if isinstance(read, tuple) else None) for record, read in found]


def has_use(folder: Path) -> bool:
    """Whether choices of some start are stored, whatever the index says."""
    return bool(list_raw(folder, f"{RAW_DIR}/start-*.json.gz"))


def parse_raw(content: Mapping[str, Any]) -> RawTrace:
    """Check what is to be stored. Raise EvidenceError naming the field that is wrong."""
    try:
        return adapt(RawTrace).validate_python(content)
    except ValidationError as error:
        raise EvidenceError(f"expert use: {describe_first(error)}") from None


def unpack(raw: RawTrace) -> Trace:
    """Turn stored choices into values. Raise EvidenceError where they are not those of texts of equal length."""
    length = len(raw.texts[0].tokens)
    layers = len(raw.texts[0].layers)
    texts = tuple(_unpack_text(text, raw, length, layers) for text in raw.texts)
    again = tuple(_unpack_text(text, raw, length, layers) for text in raw.again)
    is_odd = [one.tokens for one in again] != [one.tokens for one in texts[: len(again)]]
    if is_odd or raw.prompt_len >= length or raw.tokens_a_step > len(texts):
        raise EvidenceError("expert use: the texts, their repetitions and prompt_len do not fit each other")
    return Trace(
        experts=raw.experts,
        top_k=raw.top_k,
        prompt_len=raw.prompt_len,
        tokens_a_step=raw.tokens_a_step,
        texts=texts,
        again=again,
    )


def _unpack_text(text: RawText, raw: RawTrace, length: int, layers: int) -> Traced:
    if len(text.tokens) != length or len(text.layers) != layers:
        raise EvidenceError("expert use: texts of different lengths, or of different numbers of layers")
    chosen = [_unpack_layer(layer, raw, length) for layer in text.layers]
    return Traced(tokens=tuple(text.tokens), chosen=np.stack(chosen))


def _unpack_layer(layer: str, raw: RawTrace, length: int) -> Choices:
    try:
        content = base64.b64decode(layer, validate=True)
    except binascii.Error:
        raise EvidenceError("expert use: layers: not base64") from None
    if len(content) != 2 * length * raw.top_k:
        raise EvidenceError(f"expert use: layers: {len(content)} bytes where {length} tokens choose {raw.top_k} experts each")
    chosen: Choices = np.frombuffer(content, "<u2").reshape(length, raw.top_k)
    ordered = np.sort(chosen, axis=-1)
    wrong = (ordered[:, -1] >= raw.experts) | (ordered[:, 1:] == ordered[:, :-1]).any(axis=-1)
    if wrong.any():
        first = sorted(set(chosen[wrong.argmax()].tolist()))
        raise EvidenceError(f"expert use: layers: {first} are not {raw.top_k} of {raw.experts} experts")
    return chosen


def _read(folder: Path, record: UseRecord) -> tuple[RawTrace, Trace] | Damage:
    """The choices of one start, as stored and as values, or what is wrong with their file."""
    if damage := find_damage(folder, record.file, record.sha256):
        return damage
    try:
        raw = parse_raw(orjson.loads(read_raw(folder / record.file)))
        return raw, unpack(raw)
    except (OSError, EOFError, zlib.error, orjson.JSONDecodeError, EvidenceError) as error:
        return Damage(kind=DamageKind.NO_CHOICES, file=record.file, detail=str(error))
