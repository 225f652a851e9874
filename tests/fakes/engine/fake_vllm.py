"""A server with vLLM's endpoints and manners, started by the tests as a real process.

It takes --model, not --model-path; its /health answers 200 as long as the process lives, whatever its engine does; it knows
neither /generate nor /flush_cache nor /health_generate (404). FAKE_VLLM chooses the behaviour: ok, stuck (alive, generates
nothing), late (generates from the third request on). Its answers are those of fake_answers, in the form of /v1/completions.
FAKE_CARD is a file that stands for its GPU: a server that starts while another one starts there takes that one's memory for its
own, and ends, unless --kv-cache-memory-bytes says how much is its own.
"""

import argparse
import json
import os
import pathlib
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.fakes.engine import fake_answers

BEHAVIOUR = os.environ.get("FAKE_VLLM", "ok")
parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--host", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--no-enable-prefix-caching", action="store_true")
parser.add_argument("--kv-cache-memory-bytes", type=int)


class Handler(BaseHTTPRequestHandler):
    """Answer what vLLM's server answers."""

    requests = 0
    model = ""
    slow = os.environ.get("FAKE_SLOW", "1.0")

    def do_GET(self):
        known = self.path in {"/health", "/metrics", "/slow"}
        self.answer(200 if known else 404, b"")

    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions" or question["model"] != self.model:
            self.answer(404, b'{"error": {"message": "Not Found"}}')
            return
        Handler.requests += 1
        if BEHAVIOUR == "stuck" or (BEHAVIOUR == "late" and Handler.requests < 3):
            self.answer(500, b'{"error": {"message": "EngineCore encountered an issue"}}')
            return
        self.answer(200, json.dumps(complete(question)).encode())

    def answer(self, code, body):
        self.send_response(code)
        self.send_header("X-Slow", self.slow)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Stay silent."""


def complete(question):
    prompts = question["prompt"] if isinstance(question["prompt"][0], list) else [question["prompt"]]
    body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": question["max_tokens"]}}
    answers = json.loads(fake_answers.generate(body, os.environ.get("FAKE_ANSWER", "ok"))[1])
    choices = [build_choice(index, answer) for index, answer in enumerate(answers)]
    tokens = sum(len(answer["output_ids"]) for answer in answers)
    cached = sum(answer["meta_info"]["cached_tokens"] for answer in answers)
    usage = {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": tokens, "total_tokens": tokens}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": question["model"],
        "choices": choices,
        "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached} if cached else None},
    }


def build_choice(index, answer):
    meta = answer["meta_info"]
    scored = [
        None if logprob is None else {str(token): {"logprob": logprob, "rank": 9, "decoded_token": "word"}}
        for logprob, token, _ in meta["input_token_logprobs"]
    ]
    outputs = meta["output_token_logprobs"]
    return {
        "index": index,
        "text": answer["text"],
        "finish_reason": meta["finish_reason"]["type"],
        "stop_reason": None,
        "prompt_logprobs": scored,
        "logprobs": {
            "text_offset": [0] * len(outputs),
            "token_logprobs": [logprob for logprob, _, _ in outputs],
            "tokens": [f"token_id:{token}" for _, token, _ in outputs],
            "top_logprobs": [None] * len(outputs),
        },
    }


def take_memory(card):
    """Start on a card for half a second, and end where another one has begun to."""
    try:
        with card.open("x"):
            time.sleep(0.5)
    except FileExistsError:
        sys.exit("ValueError: No available memory for the cache blocks.")
    card.unlink()


if __name__ == "__main__":
    args = parser.parse_args()
    if "FAKE_CARD" in os.environ and args.kv_cache_memory_bytes is None:
        take_memory(pathlib.Path(os.environ["FAKE_CARD"]))
    Handler.model = args.model
    ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()
