"""Ask a living server the fixed prompts, so that the judge can tell whether it still answers as the base does."""

from __future__ import annotations

from typing import Any

from perfgate.errors import ServerError
from perfgate.evidence.replies import Question
from perfgate.scenario import Equivalence
from perfgate.serving.model_guard import read_vocabulary
from perfgate.serving.server import Server

GENERATE_PATH = "/generate"
SHOWN = 200


def ask(server: Server, rules: Equivalence) -> tuple[bytes, Question]:
    """Return the server's raw reply to all prompts, sent in one batch, and what was asked.

    The cache is emptied first, so that every token is computed. Raise ServerError when the server refuses or gives no reply.
    """
    question = Question(
        prompts=rules.prompts,
        input_len=rules.input_len,
        output_len=rules.output_len,
        vocab=read_vocabulary(server.launch.model),
        seed=rules.seed,
    )
    server.flush_cache()
    return _post(server, GENERATE_PATH, build_body(question), rules.timeout_s), question


def build_body(question: Question) -> dict[str, Any]:
    """Write the prompts as SGLang's `/generate` takes them: greedy, to the full length, with the log-prob of every token."""
    return {
        "input_ids": question.draw(),
        "sampling_params": {"temperature": 0.0, "max_new_tokens": question.output_len, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
    }


def _post(server: Server, path: str, content: dict[str, Any], timeout_s: float) -> bytes:
    import httpx  # noqa: PLC0415 - a tenth of a second that `check` need not pay

    try:
        answer = httpx.post(server.url + path, json=content, timeout=timeout_s, trust_env=False)
    except httpx.HTTPError as error:
        server.raise_if_dead()
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ServerError(f"server gave no answer to the equivalence prompts ({what}; log {server.log})") from None
    if answer.status_code != httpx.codes.OK:
        said = " ".join(answer.text.split())[:SHOWN]
        raise ServerError(
            f"server refused the equivalence prompts with HTTP {answer.status_code}: {said} (log {server.log}); "
            "where it cannot give log-probs, set equivalence.enabled = false"
        )
    return answer.content
