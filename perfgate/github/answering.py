"""Answers to the fixed prompts across the border: tokens as numbers, and log-probs, so that the reader compares the arms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from perfgate.errors import HandoffError
from perfgate.evidence.answers import Answers, store_answers
from perfgate.evidence.replies import Question
from perfgate.github.handoff import AnswerEntry, ReplyEntry
from perfgate.safeguards import Equivalence


def pack_answers(found: Answers) -> AnswerEntry:
    """Keep of a start's answers what the comparison reads."""
    question = found.question
    return AnswerEntry(
        arm=found.arm,
        block=found.block,
        start=found.start,
        prompts=question.prompts,
        input_len=question.input_len,
        output_len=question.output_len,
        vocab=question.vocab,
        seed=question.seed,
        replies=tuple(
            ReplyEntry(tokens=reply.tokens, logprobs=reply.logprobs, prompt_logprobs=reply.prompt_logprobs)
            for reply in found.replies
        ),
    )


def check_question(entry: AnswerEntry, rules: Equivalence) -> None:
    """Refuse answers to other prompts than this side's scenario asks: easier ones would tell less."""
    for name in ("prompts", "input_len", "output_len", "seed"):
        asked, wanted = getattr(entry, name), getattr(rules, name)
        if asked != wanted:
            raise HandoffError(f"answers: {name} is {asked} where the scenario asks {wanted}; refused")


def unpack_answers(entry: AnswerEntry, folder: Path) -> None:
    """Write a start's answers into a result folder, in the form of a server's reply, with the prompts drawn here."""
    question = Question(
        prompts=entry.prompts, input_len=entry.input_len, output_len=entry.output_len, vocab=entry.vocab, seed=entry.seed
    )
    pairs = zip(entry.replies, question.draw(), strict=False)
    raw = orjson.dumps([_write_reply(reply, prompt) for reply, prompt in pairs])
    store_answers(folder, raw, Answers(arm=entry.arm, block=entry.block, start=entry.start, question=question))


def _write_reply(reply: ReplyEntry, prompt: list[int]) -> dict[str, Any]:
    scored = [None, *reply.prompt_logprobs]
    return {
        "output_ids": list(reply.tokens),
        "meta_info": {
            "finish_reason": {"type": "length"},
            "prompt_tokens": len(prompt),
            "completion_tokens": len(reply.tokens),
            # A count that does not match leaves a reply that the reader refuses in its own words.
            "input_token_logprobs": [[value, token, None] for value, token in zip(scored, prompt, strict=False)],
            "output_token_logprobs": [[value, token, None] for value, token in zip(reply.logprobs, reply.tokens, strict=False)],
        },
    }
