"""SGLang's own few-shot GSM8K evaluation, once: run as a script by an arm's Python, so it imports nothing of perfgate.

The request is one JSON object on standard input: `url`, `model`, `path`, `questions`, `shots`, `max_tokens` and `parallel`. The
answer is one JSON object on the descriptor that was standard output: `marks`, a digit for each question, 1 where the number is
right; `score`, as the evaluation counted; and `empty`, how many answers were empty. Everything else goes to the log.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# As SGLang's evaluation of completions ends an answer: before the model goes on to ask itself the next question.
STOP = ["Question", "Assistant:", "<|separator|>"]


def evaluate(asked: dict[str, Any]) -> dict[str, Any]:
    """Have the server at `url` answer the questions."""
    from sglang.test.simple_eval_common import CompletionSampler  # noqa: PLC0415 - heavy, and only in the arm's Python
    from sglang.test.simple_eval_mixed_prefix_gsm8k import GSM8KEval  # noqa: PLC0415

    # Defined there since 0.5.16, imported there from a module of its own before; its reader of answers lies where it does.
    get_answer_value = sys.modules[GSM8KEval.__module__].__dict__["get_answer_value"]
    evaluation = GSM8KEval(
        num_examples=asked["questions"], num_threads=asked["parallel"], num_shots=asked["shots"], data_path=asked["path"]
    )
    sampler = CompletionSampler(
        base_url=f"{asked['url']}/v1", model=asked["model"], temperature=0.0, max_tokens=asked["max_tokens"], stop=STOP
    )
    result = evaluation(sampler)
    told = [convo[-1]["content"] for convo in result.convos]
    right = read_answers(asked["path"])[asked["shots"] :][: asked["questions"]]
    marks = [get_answer_value(text) == get_answer_value(answer) for text, answer in zip(told, right, strict=True)]
    return {
        "marks": "".join("1" if mark else "0" for mark in marks),
        "score": result.score,
        "empty": sum(not text for text in told),
    }


def read_answers(path: str) -> list[str]:
    """The answers of a file in GSM8K's format; the first questions are the examples and are not asked."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as the evaluation itself reads it
        return [json.loads(line)["answer"] for line in file if not line.startswith("#")]


if __name__ == "__main__":
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ.setdefault("OPENAI_API_KEY", "EMPTY")
    protocol.write(json.dumps(evaluate(json.load(sys.stdin))) + "\n")
    protocol.close()
