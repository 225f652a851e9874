"""Read what a server replied to the fixed prompts, in the form of its engine, or say why that is no answer.

The prompts are token ids drawn from a seed, so neither tokenizer nor hub is needed. A reply that is short, empty, cached or
garbled is a reason not to believe the server's speed, each in its own words.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import orjson
from pydantic import ValidationError
from pydantic.dataclasses import dataclass as checked

from perfgate.evidence import Question, Reply
from perfgate.readers.completions import translate_completions
from perfgate.storage.schema import LOOSE, adapt, describe_first

# Both ends of a vocabulary hold special tokens, which some models refuse in a prompt.
EDGE = 0.1
# A log-prob above zero is none; rounding may lift one by the last bits of a float.
ROUNDING = 1e-3
SHOWN = 60

Entry = tuple[float | None, int, Any]


def draw_prompts(question: Question) -> list[list[int]]:
    """Draw the prompts of a question, the same on any machine, from the middle of the vocabulary."""
    draw = random.Random(question.seed)  # noqa: S311 - a seed is the point
    low = int(question.vocab * EDGE)
    width = max(1, int(question.vocab * (1 - EDGE)) - low)
    return [[low + int(draw.random() * width) for _ in range(question.input_len)] for _ in range(question.prompts)]


class ReplyError(Exception):
    """A reply that is no answer. The message completes a sentence that begins with the name of the start."""


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Meta:
    finish_reason: Mapping[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    input_token_logprobs: list[Entry]
    output_token_logprobs: list[Entry]
    cached_tokens: int = 0


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Generated:
    output_ids: list[int]
    meta_info: _Meta
    text: str = ""


def read_replies(question: Question, body: bytes) -> tuple[Reply, ...]:
    """Read the body of a server's reply, one answer for each prompt in their order. Raise ReplyError for anything less."""
    try:
        content = orjson.loads(body)
        if question.dialect == "openai":
            content = translate_completions(content, draw_prompts(question))
        items = content if isinstance(content, list) else [content]
        if len(items) != question.prompts:
            raise ReplyError(f"answered {len(items)} of {question.prompts} equivalence prompts; read the server's log")
        numbered = enumerate(zip(items, draw_prompts(question), strict=True))
        return tuple(_read_one(question, number, item, prompt) for number, (item, prompt) in numbered)
    except orjson.JSONDecodeError as error:
        shown = body[:SHOWN].decode("utf-8", "replace")
        raise ReplyError(f"answered the equivalence prompts with no valid JSON ({error}): {shown!r}") from None
    except ValidationError as error:
        raise ReplyError(f"answered the equivalence prompts in an unknown form: {describe_first(error)}") from None


def _read_one(question: Question, number: int, item: Any, prompt: Sequence[int]) -> Reply:
    found = adapt(_Generated).validate_python(item)
    meta = found.meta_info
    where = f"equivalence prompt {number}"
    if meta.cached_tokens:
        raise ReplyError(
            f"{where}: {meta.cached_tokens} of its {meta.prompt_tokens} tokens came from a cache that was just emptied; "
            "an answer that was not computed proves nothing"
        )
    _check_length(where, found, question.output_len)
    if [token for _, token, _ in meta.input_token_logprobs] != list(prompt):
        raise ReplyError(f"{where}: the server scored another prompt than it was asked; requests were mixed up")
    scored = [value for value, _, _ in meta.output_token_logprobs]
    if len(scored) != len(found.output_ids):
        raise ReplyError(f"{where}: {len(found.output_ids)} tokens came with {len(scored)} log-probs; the answer was cut")
    return Reply(
        tokens=tuple(found.output_ids),
        logprobs=_require_numbers(where, "generated token", scored),
        # Nothing precedes the first token, so it has no log-prob.
        prompt_logprobs=_require_numbers(where, "prompt token", [value for value, _, _ in meta.input_token_logprobs[1:]]),
        text=found.text,
    )


def _check_length(where: str, found: _Generated, wanted: int) -> None:
    reason = (found.meta_info.finish_reason or {}).get("type", "none")
    have, claimed = len(found.output_ids), found.meta_info.completion_tokens
    if have == 0:
        raise ReplyError(f"{where}: nothing was generated (finish reason {reason}); the answer is empty")
    if have < wanted and reason == "stop":
        raise ReplyError(f"{where}: ended by itself after {have} of {wanted} tokens although it was told to go on")
    if have != wanted or claimed != wanted:
        raise ReplyError(
            f"{where}: {have} tokens came back where {wanted} were asked for and {claimed} are claimed "
            f"(finish reason {reason}); the answer was cut"
        )


def _require_numbers(where: str, what: str, values: Sequence[float | None]) -> tuple[float, ...]:
    numbers = tuple(value for value in values if value is not None and isfinite(value))
    if len(numbers) != len(values):
        raise ReplyError(f"{where}: the log-prob of a {what} is no number; the server computes NaN or infinity")
    if max(numbers, default=0.0) > ROUNDING:
        raise ReplyError(f"{where}: the log-prob of a {what} is {max(numbers):g}, above zero; it is no probability")
    return numbers
