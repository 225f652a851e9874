"""SGLang's own GSM8K evaluation of real servers: a right one solves what the base solves, a wrong one is told from it.

No model of a few megabytes can count. So every word of this one's vocabulary is a number, and the right answer to a question is
whatever number the base says last.
"""

import contextlib
import json
import sys

import httpx
import pytest

from perfgate.core import Arm
from perfgate.scenario.safeguards import Gsm8k
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.equivalence import Evaluator
from perfgate.serving.gsm8k_worker import STOP
from perfgate.serving.model.tiny_model import write_tiny_model
from perfgate.verdict.validity.gsm8k import check_gsm8k
from tests.e2e.test_cpu_server import build_launch

pytestmark = [pytest.mark.long, pytest.mark.engine, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]

# The candidate sends each token to one expert of the two that it should visit: faster, and wrong.
WRONG = ("--json-model-override-args", '{"num_experts_per_tok": 1}')
RULES = Gsm8k(questions=16, shots=2, max_tokens=6, parallel=1)
QUESTIONS = [f"{100 + number} {200 + 7 * number} {1000 + 13 * number}" for number in range(RULES.shots + RULES.questions)]
EXAMPLES = "".join(f"Question: {question}\nAnswer: 7\n\n" for question in QUESTIONS[: RULES.shots])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny model with numbers for words."""
    folder = write_tiny_model(tmp_path_factory.mktemp("gsm8k") / "model", "tiny-qwen3-moe")
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {word if word[0] == "<" else str(token): token for word, token in vocabulary.items()}
    path.write_text(json.dumps(tokenizer))
    return folder


def ask_last_number(server, question):
    """What a server says last to a question, asked as the evaluation asks it."""
    body = {
        "model": str(server.launch.model),
        "prompt": f"{EXAMPLES}Question: {question}\nAnswer:",
        "temperature": 0.0,
        "max_tokens": RULES.max_tokens,
        "stop": STOP,
    }
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"].split()[-1]


def test_evaluate__tells_a_wrong_server_from_a_right_one(model, tmp_path):
    data = tmp_path / "questions.jsonl"
    reaper = Reaper()
    evaluator = Evaluator(python=sys.executable, log=tmp_path / "gsm8k.log", reaper=reaper)
    rules = Gsm8k(path=str(data), sha256="0" * 64, questions=16, shots=2, max_tokens=6, parallel=1)
    with contextlib.ExitStack() as stack:
        stack.callback(reaper.close)
        base, wrong = (
            stack.enter_context(Server(build_launch(model, args), tmp_path / f"{name}.log", reaper))
            for name, args in {"base": (), "wrong": WRONG}.items()
        )
        base.wait_ready()
        answers = ["7"] * RULES.shots + [ask_last_number(base, question) for question in QUESTIONS[RULES.shots :]]
        lines = ({"question": question, "answer": answer} for question, answer in zip(QUESTIONS, answers, strict=True))
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        right, again = evaluator.evaluate(base, rules), evaluator.evaluate(base, rules)
        wrong.wait_ready()
        other = evaluator.evaluate(wrong, rules)

    assert len(right) == RULES.questions
    assert right.count("1") >= RULES.questions - 2
    assert list(check_gsm8k({Arm.BASE: right, Arm.CANDIDATE: again}, rules)) == []
    [problem] = check_gsm8k({Arm.BASE: right, Arm.CANDIDATE: other}, rules)
    assert "its answers are wrong, however fast" in problem
