"""OpenAI's `/v1/completions` as vLLM answers it, put into the form of SGLang's `/generate`, which is what we read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.dataclasses import dataclass as checked

from perfgate.storage.schema import LOOSE, adapt

# With `return_tokens_as_token_ids` a token stands as "token_id:123", whatever its text.
_PREFIX = "token_id:"
MAX_DIGITS = 9
"""Of a token id: no vocabulary has a thousand million entries."""


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Scored:
    logprob: float | None


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _LogProbs:
    tokens: list[str]
    token_logprobs: list[float | None]


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Choice:
    index: int
    finish_reason: str | None
    logprobs: _LogProbs
    prompt_logprobs: list[dict[int, _Scored] | None]


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Cached:
    cached_tokens: int | None = None


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Usage:
    prompt_tokens_details: _Cached | None = None


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class _Completion:
    choices: list[_Choice]
    usage: _Usage


def translate_completions(content: Any, prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Put each choice into the form of an answer to `/generate`. Raise pydantic's ValidationError for another form.

    The log-prob of a prompt's token is looked up by the token that was asked; one that the server did not score is said to be
    another token, -1. The count of cached tokens is one for all prompts, so each of them carries it.
    """
    found = adapt(_Completion).validate_python(content)
    details = found.usage.prompt_tokens_details
    cached = (details.cached_tokens if details is not None else None) or 0
    choices = sorted(found.choices, key=lambda choice: choice.index)
    asked = [*prompts, *([()] * len(choices))]
    return [_translate(choice, asked[place], cached) for place, choice in enumerate(choices)]


def _translate(choice: _Choice, prompt: Sequence[int], cached: int) -> dict[str, Any]:
    tokens = [_read_token(token) for token in choice.logprobs.tokens]
    scored = zip(choice.logprobs.token_logprobs, tokens, strict=False)
    return {
        "output_ids": tokens,
        "meta_info": {
            "finish_reason": {"type": choice.finish_reason or "none"},
            "prompt_tokens": len(choice.prompt_logprobs),
            "completion_tokens": len(tokens),
            "cached_tokens": cached,
            "input_token_logprobs": [
                _score(place, alternatives, prompt) for place, alternatives in enumerate(choice.prompt_logprobs)
            ],
            "output_token_logprobs": [(value, token, None) for value, token in scored],
        },
    }


def _score(place: int, alternatives: Mapping[int, _Scored] | None, prompt: Sequence[int]) -> tuple[float | None, int, None]:
    asked = prompt[place] if place < len(prompt) else -1
    if place == 0:
        return (None, asked, None)
    if alternatives is None or asked not in alternatives:
        return (None, -1, None)
    return (alternatives[asked].logprob, asked, None)


def _read_token(text: str) -> int:
    number = text.removeprefix(_PREFIX)
    is_token = text.startswith(_PREFIX) and number.isdecimal() and len(number) <= MAX_DIGITS
    return int(number) if is_token else -1
