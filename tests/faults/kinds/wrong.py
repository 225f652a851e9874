"""Candidates that are a fifth faster because they do not do the work: recorded windows whose answers or counts tell it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.faults.checking import Edit, check
from tests.faults.fault import Answer, Fault, Kind, Where
from tests.faults.kinds.slow import longer
from tests.faults.recording import Line, Recording

FASTER = -0.2
SUREST = -1e-6
"""The log-prob of a token that is all but certain."""
INVALID = ("INVALID",)
ALIKE = frozenset({"all tokens alike", "truncated answers", "mixed-up requests", "shortened prompts"})
"""Long rows: what a short one is caught by catches them, too."""


def fast(*edits: Edit) -> Edit:
    """Make the candidate a fifth faster, then put what it left out into the evidence."""

    def edit(recording: Recording) -> None:
        recording.slow(longer(FASTER))
        for one in edits:
            one(recording)

    return edit


def answering(change: Callable[[int, Line], None]) -> Edit:
    return lambda recording: recording.change_answers(change)


def list_scores(reply: Line) -> list[list[float | None]]:
    meta = reply["meta_info"]
    return [*meta["input_token_logprobs"][1:], *meta["output_token_logprobs"]]


def shift_scores(share: float) -> Callable[[int, Line], None]:
    """Move every log-prob by a random `share` of the spread that the answers have; none gets above zero."""
    draw = random.Random(7)  # noqa: S311 - a seed is the point

    def change(_number: int, reply: Line) -> None:
        scores = list_scores(reply)
        spread = float(np.std([entry[0] for entry in scores]))
        for entry in scores:
            entry[0] = min((entry[0] or 0.0) + draw.gauss(0, share * spread), SUREST)

    return change


def shift_one_prompt(number: int, reply: Line) -> None:
    if number == 5:
        shift_scores(0.3)(number, reply)


def make_uniform(_number: int, reply: Line) -> None:
    """What a model says whose layers return zeros: every token is as likely as any other."""
    for entry in list_scores(reply):
        entry[0] = -math.log(201088)


def end_early(_number: int, reply: Line) -> None:
    reply["output_ids"] = reply["output_ids"][:5]
    reply["meta_info"]["output_token_logprobs"] = reply["meta_info"]["output_token_logprobs"][:5]
    reply["meta_info"] |= {"finish_reason": {"type": "stop", "matched": 2}, "completion_tokens": 5}


def cut_short(_number: int, reply: Line) -> None:
    """Tokens are gone that the server says it made."""
    reply["output_ids"] = reply["output_ids"][:20]
    reply["meta_info"]["output_token_logprobs"] = reply["meta_info"]["output_token_logprobs"][:20]


def say_nan(_number: int, reply: Line) -> None:
    reply["meta_info"]["output_token_logprobs"][3][0] = None


def take_from_cache(_number: int, reply: Line) -> None:
    reply["meta_info"]["cached_tokens"] = 48


def other_text(_number: int, reply: Line) -> None:
    """The same tokens, read by another tokenizer."""
    reply["text"] = reply["text"].replace("w", "v")


def mix_up(_number: int, reply: Line) -> None:
    reply["meta_info"]["input_token_logprobs"][4][1] += 1


def end_windows_early(recording: Recording) -> None:
    """Every request of the candidate ends after three quarters of its tokens, and says so."""
    for entry in recording.pick(role="measured"):
        line = recording.read(entry)
        lengths = [length * 3 // 4 for length in line["output_lens"]]
        tokens = sum(lengths)
        rates = {"output_throughput": tokens, "total_throughput": tokens + line["total_input_tokens"]}
        recording.change(
            entry,
            itls=[gaps[: length - 1] for gaps, length in zip(line["itls"], lengths, strict=True)],
            output_lens=lengths,
            total_output_tokens=tokens,
            total_output_tokens_retokenized=tokens,
            **{name: count / line["duration"] for name, count in rates.items()},
        )


def drop_gaps(recording: Recording) -> None:
    """Every request stops streaming after three quarters of the tokens that it claims."""
    for entry in recording.pick(role="measured"):
        recording.change(entry, itls=[gaps[: len(gaps) * 3 // 4] for gaps in recording.read(entry)["itls"]])


def drop_text(recording: Recording) -> None:
    for entry in recording.pick(role="measured"):
        line = recording.read(entry)
        recording.change(entry, total_output_tokens_retokenized=line["total_output_tokens"] // 3)


def shorten_prompts(recording: Recording) -> None:
    """The candidate reads half of each prompt."""
    for entry in recording.pick(role="measured"):
        line = recording.read(entry)
        lengths = [length // 2 for length in line["input_lens"]]
        half = sum(lengths)
        rates = {"input_throughput": half, "total_throughput": half + line["total_output_tokens"]}
        changed = {name: count / line["duration"] for name, count in rates.items()}
        recording.change(entry, total_input_tokens=half, input_lens=lengths, **changed)


def serve_from_cache(recording: Recording) -> None:
    """The cache is not emptied any more: prompts cost nothing."""
    for entry in recording.pick():
        entry["telemetry"]["cache_hit_rate"] = 0.97
    recording.slow(longer(0.0), wait_s=-0.015)


def drop_grammar(recording: Recording) -> None:
    """Three answers in each window of the candidate are not of the form that the load asks for."""
    for entry in recording.index:
        entry["telemetry"]["answers_malformed"] = 3.0 if entry["arm"] == "candidate" else 0.0
    recording.scenario = recording.scenario.replace("[load]\n", "[load]\nanswer_form = '[a-z ]+'\n", 1)


def row(name: str, made: str, run: Callable[[Path], Answer], words: str) -> Fault:
    return Fault(
        name=name,
        kind=Kind.WRONG,
        made=made,
        where=Where.RECORDED,
        expected=INVALID,
        words=words,
        run=run,
        is_long=name in ALIKE,
    )


WRONG_ANSWERS = "its answers are wrong, however fast"

WRONG = (
    row("unrelated answers", "log-probs of another model", check(fast(answering(shift_scores(1.5)))), WRONG_ANSWERS),
    row(
        "slightly wrong kernel",
        "log-probs changed by a third of their spread",
        check(fast(answering(shift_scores(0.33)))),
        WRONG_ANSWERS,
    ),
    row("wrong in one prompt of 16", "one prompt's log-probs changed", check(fast(answering(shift_one_prompt))), "in prompt 5"),
    row("all tokens alike", "log-probs of a model that computes zeros", check(fast(answering(make_uniform))), WRONG_ANSWERS),
    row("NaN in the answers", "one log-prob is NaN", check(fast(answering(say_nan))), "computes NaN"),
    row(
        "early EOS in the answers",
        "5 of 32 tokens came, finish reason stop",
        check(fast(answering(end_early))),
        "although it was told to go on",
    ),
    row("truncated answers", "20 of 32 tokens came, 32 are claimed", check(fast(answering(cut_short))), "the answer was cut"),
    row("cached answers", "48 prompt tokens from the cache", check(fast(answering(take_from_cache))), "came from a cache"),
    row("mixed-up requests", "the server scored another prompt", check(fast(answering(mix_up))), "requests were mixed up"),
    row(
        "other text for the same tokens",
        "another tokenizer",
        check(fast(answering(other_text))),
        "its tokenizer is another one",
    ),
    row(
        "early EOS under load",
        "every request ends after three quarters of its tokens",
        check(fast(end_windows_early)),
        "they did different work",
    ),
    row("truncated outputs", "streams end after three quarters of the tokens", check(fast(drop_gaps)), "requests broke off"),
    row("empty outputs", "a third of the counted text comes", check(fast(drop_text)), "the text received makes"),
    row("shortened prompts", "the server reads half of each prompt", check(fast(shorten_prompts)), "they did different work"),
    row(
        "prompts from the cache",
        "a cache flush does nothing, 97 % of the prompts are cached",
        check(serve_from_cache),
        "of random prompts came from the prefix cache",
    ),
    row(
        "grammar dropped",
        "three answers of a window do not have the requested form",
        check(fast(drop_grammar)),
        "the engine dropped its grammar",
    ),
)
