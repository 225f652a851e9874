"""Ask a living server the fixed prompts, so that the judge can tell whether it still answers as the base does."""

from __future__ import annotations

from typing import Any

from perfgate.evidence import Question
from perfgate.readers.replies import draw_prompts
from perfgate.scenario.safeguards import Equivalence
from perfgate.serving.engine.conversation import post
from perfgate.serving.engine.server import Server
from perfgate.serving.model.model_guard import read_vocabulary

GENERATE_PATH, COMPLETIONS_PATH = "/generate", "/v1/completions"


def ask(server: Server, rules: Equivalence) -> tuple[bytes, Question]:
    """Return the server's raw reply to all prompts, sent in one batch, and what was asked.

    The cache is emptied first, so that every token is computed. Raise ServerError when the server refuses or gives no reply:
    where it cannot give log-probs, the scenario has to say equivalence.enabled = false.
    """
    question = Question(
        prompts=rules.prompts,
        input_len=rules.input_len,
        output_len=rules.output_len,
        vocab=read_vocabulary(server.launch.model),
        seed=rules.seed,
        dialect=server.launch.engine.dialect,
    )
    path, content = build_request(question, str(server.launch.model))
    server.flush_cache()
    return post(server, path, content, what="the equivalence prompts", timeout_s=rules.timeout_s), question


def build_request(question: Question, model: str) -> tuple[str, dict[str, Any]]:
    """Write the prompts as the engine takes them: greedy, to the full length, with the log-prob of every token."""
    if question.dialect == "openai":
        return COMPLETIONS_PATH, {
            "model": model,
            "prompt": draw_prompts(question),
            "temperature": 0.0,
            "max_tokens": question.output_len,
            "ignore_eos": True,
            # None besides the token itself, of the answer and of the prompt.
            "logprobs": 0,
            "prompt_logprobs": 0,
            "return_tokens_as_token_ids": True,
        }
    return GENERATE_PATH, {
        "input_ids": draw_prompts(question),
        "sampling_params": {"temperature": 0.0, "max_new_tokens": question.output_len, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
