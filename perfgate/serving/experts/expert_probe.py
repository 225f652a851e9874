"""Ask a living server which experts its tokens choose, outside of any window.

The prompts are random token ids, as many as requests of the load decode together. The server first answers them greedily, as it
answers a window's requests. Then each prompt with its answer is sent again as one prompt, with the recorder of
`expert_recorder` switched on: prefill runs in Python where decode may be the replay of a CUDA graph, and the
router is the same function of the same text. The choices at the answer's positions, step by step over the texts, are those of
the decode steps that wrote it. Some texts are sent a third time with other tokens behind them, so that the same tokens are
computed in a pass of another size: how far the choices then differ is the server's own scatter.
"""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Protocol

import orjson

from perfgate.errors import EvidenceError, ServerError
from perfgate.results.expert_use import RawTrace, parse_raw, unpack
from perfgate.serving.engine.conversation import Asked, post
from perfgate.serving.engine.server import Server
from perfgate.serving.equivalence import COMPLETIONS_PATH, GENERATE_PATH
from perfgate.serving.experts.expert_recorder import HOLD_S, HOOKED, ON, RECORD
from perfgate.serving.model.model_guard import read_vocabulary
from perfgate.stats.expert_use import Unknown

PROMPT_LEN, ANSWER_LEN, SUFFIX_LEN = 32, 16, 5
MIN_TEXTS, MAX_TEXTS, REPEATED = 8, 32, 8
SEED = 1948
EDGE = 0.1
"""Both ends of a vocabulary hold special tokens, which some models refuse in a prompt."""
TIMEOUT_S = 120.0
WHAT = "the prompts that show its routing"

Texts = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One forward pass as it was recorded: for each layer its line of the record."""

    lines: Mapping[int, Mapping[str, Any]]
    tokens: int


def probe(server: Server, folder: Path, max_concurrency: int) -> RawTrace | Unknown:
    """Record what a warm server chooses, its recorder writing into `folder`; or say why that cannot be known.

    Raise ServerError when the server dies; one that refuses the prompts is unknown.
    """
    if not (folder / HOOKED).exists():
        return Unknown.NO_RECORDER
    ask = Completions(model=str(server.launch.model)) if server.launch.engine.dialect == "openai" else Generate()
    try:
        return record(server, folder, read_vocabulary(server.launch.model), max_concurrency, ask)
    except ServerError:
        server.raise_if_dead(2.0)
        return Unknown.REFUSED


class Dialect(Protocol):
    """How token ids are sent to an engine and got back."""

    path: ClassVar[str]

    def write(self, prompts: Texts, tokens: int) -> dict[str, Any]:
        """The request for so many greedy tokens behind each prompt."""
        ...

    def read(self, reply: Any) -> Texts:
        """The answers' ids. Raise KeyError, TypeError or ValueError where there are none."""
        ...


class Generate:
    """SGLang's own."""

    path: ClassVar[str] = GENERATE_PATH

    def write(self, prompts: Texts, tokens: int) -> dict[str, Any]:
        """The request of all prompts at once; that of a text whose choices are wanted is of one prompt and one token."""
        sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        if tokens > 1:
            return {"input_ids": prompts, "sampling_params": sampling}
        # Prefill that would replay a graph runs in Python where every token's log-prob is asked for (tc_piecewise graphs).
        return {"input_ids": prompts[0], "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}

    def read(self, reply: Any) -> Texts:
        """One reply a prompt."""
        return [one["output_ids"] for one in reply]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """OpenAI's, with vLLM's ids beside the text."""

    path: ClassVar[str] = COMPLETIONS_PATH
    model: str

    def write(self, prompts: Texts, tokens: int) -> dict[str, Any]:
        """The request of all prompts at once."""
        asked = {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, "return_token_ids": True}
        return {"model": self.model, "prompt": prompts, **asked}

    def read(self, reply: Any) -> Texts:
        """One choice a prompt, which names its prompt by `index`."""
        return [one["token_ids"] for one in sorted(reply["choices"], key=itemgetter("index"))]


def record(server: Asked, folder: Path, vocabulary: int, max_concurrency: int, ask: Dialect) -> RawTrace | Unknown:
    """Record what a server chooses for random prompts. Raise ServerError where it gives no answer."""
    tokens_a_step = min(max_concurrency, MAX_TEXTS)
    prompts = draw_prompts(max(tokens_a_step, MIN_TEXTS), vocabulary)
    server.flush_cache()
    texts = [prompt + answer for prompt, answer in zip(prompts, _answer(server, prompts, ask), strict=True)]
    suffixes = draw_prompts(REPEATED, vocabulary, SUFFIX_LEN, SEED + 1)
    longer = [text + suffix for text, suffix in zip(texts, suffixes, strict=False)]
    _switch(folder, is_on=True)
    try:
        for batch in (texts, longer[::-1]):
            # What the cache holds would not be computed.
            server.flush_cache()
            for text in batch:
                post(server, ask.path, ask.write([text], 1), what=WHAT, timeout_s=TIMEOUT_S)
    finally:
        _switch(folder, is_on=False)
    try:
        passes = list(read_passes(folder / RECORD))
    except (KeyError, TypeError, ValueError):
        # A pass may still be writing its line, or the disk had no room for it.
        return Unknown.INCOMPLETE
    finally:
        (folder / RECORD).unlink(missing_ok=True)
    return assemble(passes, texts, tokens_a_step)


def draw_prompts(number: int, vocabulary: int, length: int = PROMPT_LEN, seed: int = SEED) -> Texts:
    """Draw prompts from the middle of the vocabulary. No two begin alike, so that none finds another in the prefix cache."""
    draw = random.Random(seed)  # noqa: S311 - a seed is the point
    low = int(vocabulary * EDGE)
    width = max(number, int(vocabulary * (1 - EDGE)) - low)
    first = draw.sample(range(low, low + width), number)
    return [[begin, *(low + int(draw.random() * width) for _ in range(length - 1))] for begin in first]


def _answer(server: Asked, prompts: Texts, ask: Dialect) -> Texts:
    body = post(server, ask.path, ask.write(prompts, ANSWER_LEN), what=WHAT, timeout_s=TIMEOUT_S)
    try:
        answers = ask.read(orjson.loads(body))
    except (KeyError, TypeError, ValueError):
        answers = []
    if len(answers) != len(prompts) or any(not isinstance(one, list) or len(one) != ANSWER_LEN for one in answers):
        raise ServerError(f"server answered {WHAT} with less than was asked for (log {server.log})")
    return answers


def _switch(folder: Path, *, is_on: bool) -> None:
    """Switch the recorder, and wait until it has noticed."""
    if is_on:
        (folder / RECORD).unlink(missing_ok=True)
        (folder / ON).touch()
    else:
        (folder / ON).unlink(missing_ok=True)
    time.sleep(1.2 * HOLD_S)


def read_passes(path: Path) -> Iterator[_Pass]:
    """Group the lines of a record by forward pass: a layer that comes again begins the next one.

    Raise KeyError, TypeError or ValueError for a line that is not whole.
    """
    lines: dict[int, Mapping[str, Any]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        line = json.loads(text)
        if line["layer"] in lines:
            yield _close(lines)
            lines = {}
        lines[line["layer"]] = line
    if lines:
        yield _close(lines)


def _close(lines: Mapping[int, Mapping[str, Any]]) -> _Pass:
    return _Pass(lines=lines, tokens=min(_count_tokens(line) for line in lines.values()))


def _count_tokens(line: Mapping[str, Any]) -> int:
    # Four base64 characters carry three bytes, an id takes two.
    ids: str = line["ids"]
    return (len(ids) // 4 * 3 - ids.count("=")) // 2 // int(line["top_k"])


def assemble(passes: Sequence[_Pass], texts: Texts, tokens_a_step: int) -> RawTrace | Unknown:
    """Give each text its pass, by length and order; Unknown where the passes are not those of the texts.

    A server that computes one step ahead also computes single tokens, which belong to no text.
    """
    if not passes:
        return Unknown.NOT_SEEN
    length = len(texts[0])
    first = [one for one in passes if one.tokens == length]
    again = [one for one in passes if one.tokens == length + SUFFIX_LEN][::-1]
    if len(first) != len(texts) or len(again) != REPEATED or len({tuple(sorted(one.lines)) for one in (*first, *again)}) != 1:
        return Unknown.INCOMPLETE
    shapes = {(line["experts"], line["top_k"]) for one in (*first, *again) for line in one.lines.values()}
    if len(shapes) != 1:
        return Unknown.INCOMPLETE
    if any(line["placed"] for line in first[0].lines.values()):
        return Unknown.PLACED
    [(experts, top_k)] = shapes
    content = {
        "experts": experts,
        "top_k": top_k,
        "prompt_len": PROMPT_LEN,
        "tokens_a_step": tokens_a_step,
        "texts": [_pack(text, one, top_k) for text, one in zip(texts, first, strict=True)],
        "again": [_pack(text, one, top_k) for text, one in zip(texts, again, strict=False)],
    }
    try:
        raw = parse_raw(content)
        unpack(raw)
    except EvidenceError:
        return Unknown.INCOMPLETE
    return raw


def _pack(text: Sequence[int], one: _Pass, top_k: int) -> dict[str, Any]:
    # What stands behind the text, a suffix, is not its own.
    size = 2 * len(text) * top_k
    ids = (base64.b64decode(one.lines[layer]["ids"])[:size] for layer in sorted(one.lines))
    return {"tokens": list(text), "layers": [base64.b64encode(content).decode() for content in ids]}
