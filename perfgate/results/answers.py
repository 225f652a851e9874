"""The servers' answers to the fixed prompts in a result folder: raw replies, a file a start, and an index with digests."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from perfgate.core import Arm
from perfgate.errors import EvidenceError
from perfgate.evidence import Answers, Question
from perfgate.readers.replies import ReplyError, read_replies
from perfgate.results.raw.pack import find_damage, is_packed, read_raw
from perfgate.results.words import describe_damage
from perfgate.storage.bounded import unpack_gzip
from perfgate.storage.journal import DAMAGED, append_record, read_bytes, read_records, write_packed
from perfgate.storage.schema import STRICT, Number, Sha256

ANSWERS_FILE = "answers.jsonl"
ANSWER_DIR = "answers"

GSM8K_EVENT = "gsm8k"
"""Event: a server of `arm` was asked; `marks` has a digit for each question, 1 where the answer is right."""


@checked(frozen=True, slots=True, kw_only=True, config=STRICT)
class AnswerRecord:
    """One line of the index: which start was asked what, and where its raw reply lies."""

    arm: Arm
    block: Number
    start: Number
    prompts: Number
    input_len: Number
    output_len: Number
    vocab: Number
    seed: Annotated[int, Field(ge=0)]
    dialect: Literal["sglang", "openai"] = "sglang"
    file: Annotated[str, Field(pattern=r"^answers/start-\d{2,6}\.json\.gz$")]
    sha256: Sha256


def store_answers(folder: Path, raw: bytes, asked: Answers) -> None:
    """Put a server's raw reply into a result folder, then its index line; `asked` says who was asked what."""
    name = f"{ANSWER_DIR}/start-{asked.start:02d}.json.gz"
    record = AnswerRecord(
        arm=asked.arm,
        block=asked.block,
        start=asked.start,
        **asdict(asked.question),
        file=name,
        sha256=write_packed(folder / name, raw),
    )
    append_record(folder / ANSWERS_FILE, record)


def load_answers(folder: Path) -> list[Answers]:
    """Read what each server start answered; empty for a session that asked none. Raise EvidenceError for a damaged index."""
    return [_load(folder, record) for record in read_records(folder / ANSWERS_FILE, AnswerRecord, DAMAGED)]


def read_marks(events: Iterable[Mapping[str, Any]]) -> dict[Arm, str]:
    """The marks of each arm; of one that was asked again after a break, the last."""
    found = (event for event in events if event.get("event") == GSM8K_EVENT)
    return {Arm(event["arm"]): str(event.get("marks")) for event in found if event.get("arm") in set(Arm)}


def _load(folder: Path, record: AnswerRecord) -> Answers:
    question = Question(**{field.name: getattr(record, field.name) for field in fields(Question)})
    asked = Answers(arm=record.arm, block=record.block, start=record.start, question=question)
    try:
        return replace(asked, replies=read_replies(question, _read_raw(folder, record)))
    except ReplyError as error:
        return replace(asked, problem=str(error))


def _read_raw(folder: Path, record: AnswerRecord) -> bytes:
    try:
        if damage := find_damage(folder, record.file, record.sha256):
            raise ReplyError(describe_damage(damage))
        path = folder / record.file
        return read_raw(path) if is_packed(folder, record.file) else unpack_gzip(read_bytes(path), path)
    except (EvidenceError, OSError, EOFError, zlib.error) as error:
        raise ReplyError(f"{record.file} cannot be read ({error}); measure again") from None
