"""Ask a living server the fixed prompts, or GSM8K by SGLang's own evaluation, so that the judge can compare the answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.errors import ClientError
from perfgate.evidence import Question
from perfgate.readers.replies import draw_prompts
from perfgate.scenario.safeguards import Equivalence, Gsm8k
from perfgate.serving.engine.conversation import post
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.model.model_guard import read_vocabulary
from perfgate.storage.rounding import format_percent

GENERATE_PATH, COMPLETIONS_PATH = "/generate", "/v1/completions"
WORKER = Path(__file__).with_name("gsm8k_worker.py")
ROUNDING = 1e-6


def ask(server: Server, rules: Equivalence) -> tuple[bytes, Question]:
    """Return the server's raw reply to all prompts, sent in one batch if one server answers, and what was asked.

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
    if not server.launch.layout.is_disaggregated:
        return _post(server, path, content, rules), question
    # The balancer joins what prefill tells of a prompt and decode of its answer for single requests alone.
    replies = (_post(server, path, {**content, "input_ids": prompt}, rules) for prompt in content["input_ids"])
    return b"[" + b",".join(replies) + b"]", question


def _post(server: Server, path: str, content: Mapping[str, Any], rules: Equivalence) -> bytes:
    return post(server, path, content, what="the equivalence prompts", timeout_s=rules.timeout_s)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Runs SGLang's evaluation in `python`, which has it; what it says goes to `log`."""

    python: str
    log: Path
    reaper: Reaper

    def evaluate(self, server: Server, rules: Gsm8k) -> str:
        """Return a digit for each question, 1 where the server's answer is right.

        Raise ClientError when the evaluation fails, takes too long, or counts otherwise than its answers say.
        """
        request = {
            "url": server.url,
            "model": str(server.launch.model),
            "path": rules.path,
            "questions": rules.questions,
            "shots": rules.shots,
            "max_tokens": rules.max_tokens,
            "parallel": rules.parallel,
        }
        told = json.loads(self._run(json.dumps(request), server, rules.timeout_s))
        marks = str(told["marks"])
        if not marks:
            raise ClientError(f"equivalence.gsm8k.path: {rules.path} holds no question besides the {rules.shots} examples")
        if told["empty"] == len(marks):
            raise ClientError(f"GSM8K: the server answered none of {len(marks)} questions (log {self.log})")
        if abs(marks.count("1") / len(marks) - told["score"]) > ROUNDING:
            raise ClientError(
                f"GSM8K: the evaluation counts {format_percent(told['score'])} right, its answers say other (log {self.log})"
            )
        return marks

    def _run(self, request: str, server: Server, timeout_s: float) -> str:
        process = self._start(server)
        try:
            told, _ = process.communicate(request, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ClientError(f"GSM8K: not answered within {timeout_s:.0f} s; raise equivalence.gsm8k.timeout_s") from None
        finally:
            self.reaper.end(process, grace_s=2.0)
        server.raise_if_dead()
        if process.returncode != 0 or not told.strip():
            raise ClientError(f"GSM8K: SGLang's evaluation failed; its last words are in {self.log}")
        return told

    def _start(self, server: Server) -> subprocess.Popen[str]:
        # The worker is a script beside our modules: they must not shadow the arm's own packages.
        quiet = {"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
        environment = {**os.environ, **server.launch.engine.env, **quiet}
        return self.reaper.start([self.python, str(WORKER)], environment, self.log, is_asked=True)
