"""Our MoE layer in a live SGLang server against SGLang's own: its counters, its answers, and a short throughput check.

python benchmarks/kernels/live.py --model FOLDER --mode slots --out OUT_FOLDER

Two servers of one model share the GPU, one of them with SGLANG_MOE_FUSE_DOWN_SUM_REDUCE. The same prompts go to both: log
probabilities of the prompts' own tokens, which need no agreement on what was generated, and greedy continuations. The scale of
what rounding alone does comes from the plain server, asked one prompt at a time and all at once. FOLDER is what
scaled_model.py writes, for the answers, or benchmarks/h200/serving/make_model.py, for the speed: its weights are the engine's
dummies, so small that a wrong layer would hardly change an answer. SGLang must find the plug-in: `perfgate kernels plug-in`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 12, 96, 32
LOAD_REQUESTS, LOAD_INPUT, LOAD_OUTPUT, CONCURRENCY = 64, 512, 128, 16
READY_TIMEOUT_S = 280
# A fixed size of the cache lets two servers start at once, whatever memory each finds free.
SERVER = (
    "--moe-runner-backend", "triton", "--attention-backend", "triton", "--sampling-backend", "pytorch",
    "--grammar-backend", "none", "--disable-prefill-cuda-graph",
    "--cuda-graph-max-bs-decode", "32", "--disable-radix-cache", "--max-total-tokens", "40960", "--mem-fraction-static", "0.9",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One running server."""

    mode: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    counters: Path

    def ask(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 120) -> Any:
        """The server's answer to a GET, or with a body to a POST."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310 - our own server
            content = reply.read()
        return json.loads(content) if content else None


def start(model: Path, mode: str, out: Path) -> Served:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log, counters = out / f"server-{mode}.log", out / f"counters-{mode}.json"
    environment = os.environ | {"SGLANG_MOE_FUSE_DOWN_SUM_REDUCE": mode, "PERFGATE_MOE_COUNTERS": str(counters)}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port), *SERVER]
    if not list(model.glob("*.safetensors")):
        argv += ["--load-format", "dummy"]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    return Served(mode=mode, port=port, process=process, log=log, counters=counters)


def wait_ready(server: Served) -> float:
    """Seconds until the server has generated a token; SystemExit with the end of its log if it never does."""
    begun = time.monotonic()
    while time.monotonic() - begun < READY_TIMEOUT_S and server.process.poll() is None:
        try:
            server.ask("/health_generate", timeout_s=30)
        except (OSError, urllib.error.URLError):
            time.sleep(1)
        else:
            return time.monotonic() - begun
    raise SystemExit(f"server {server.mode} is not ready:\n" + server.log.read_text(errors="replace")[-3000:])


def draw_prompts(count: int, length: int, seed: int, vocabulary: int) -> list[list[int]]:
    draw = random.Random(seed)  # noqa: S311 - prompts, not secrets
    return [[draw.randrange(100, vocabulary - 100) for _ in range(length)] for _ in range(count)]


def generate(server: Served, prompts: list[list[int]], at_once: int) -> list[dict[str, Any]]:
    """Greedy answers with the log probabilities of prompt tokens and new ones."""

    def one(prompt: list[int]) -> dict[str, Any]:
        parameters = {"temperature": 0.0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": parameters, "return_logprob": True, "logprob_start_len": 0}
        about = server.ask("/generate", body)["meta_info"]
        return {
            "prompt": [entry[0] for entry in about["input_token_logprobs"] if entry[0] is not None],
            "ids": [entry[1] for entry in about["output_token_logprobs"]],
        }

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, prompts))


def compare(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, float]:
    """Distances of prompt log probabilities, and how far greedy continuations agree."""
    gaps = [abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x["prompt"], y["prompt"], strict=True)]
    agreed = []
    for x, y in zip(one, other, strict=True):
        differ = [index for index, (a, b) in enumerate(zip(x["ids"], y["ids"], strict=True)) if a != b]
        agreed.append(differ[0] if differ else len(x["ids"]))
    return {
        "mean_abs_logprob_difference": statistics.fmean(gaps),
        "max_abs_logprob_difference": max(gaps),
        "tokens_compared": len(gaps),
        "mean_common_prefix_of_greedy_tokens": statistics.fmean(agreed),
        "identical_greedy_answers": sum(count == NEW_TOKENS for count in agreed),
    }


def spread(answers: list[dict[str, Any]]) -> float:
    """Standard deviation of prompt log probabilities: what a wrong layer could move them by."""
    values: list[float] = [value for answer in answers for value in answer["prompt"]]
    return statistics.pstdev(values)


def load(server: Served, seed: int, vocabulary: int) -> dict[str, float]:
    """One closed-loop window."""
    prompts = draw_prompts(LOAD_REQUESTS, LOAD_INPUT, seed, vocabulary)
    parameters = {"temperature": 0.0, "max_new_tokens": LOAD_OUTPUT, "ignore_eos": True}
    begun = time.monotonic()
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        list(pool.map(lambda ids: server.ask("/generate", {"input_ids": ids, "sampling_params": parameters}), prompts))
    elapsed = time.monotonic() - begun
    return {"elapsed_s": elapsed, "output_tok_per_s": LOAD_REQUESTS * LOAD_OUTPUT / elapsed}


def stop(server: Served) -> None:
    if server.process.poll() is None:
        os.killpg(server.process.pid, signal.SIGTERM)
    try:
        server.process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def measure(plain: Served, ours: Served, windows: int, vocabulary: int) -> dict[str, Any]:
    ready_s = {server.mode: wait_ready(server) for server in (plain, ours)}
    before = json.loads(ours.counters.read_text()) if ours.counters.exists() else {"calls": 0}
    prompts = draw_prompts(PROMPTS, PROMPT_TOKENS, 1, vocabulary)
    answers = {
        "plain": generate(plain, prompts, PROMPTS),
        "plain one by one": generate(plain, prompts, 1),
        "ours": generate(ours, prompts, PROMPTS),
        "ours one by one": generate(ours, prompts, 1),
    }
    result: dict[str, Any] = {
        "mode": ours.mode,
        "ready_s": ready_s,
        "ours_against_plain": compare(answers["plain"], answers["ours"]),
        "ours_against_plain_one_by_one": compare(answers["plain one by one"], answers["ours one by one"]),
        "control_plain_against_itself": compare(answers["plain"], answers["plain one by one"]),
        "spread_of_logprobs": spread(answers["plain"]),
        "counters_when_ready": before,
        "windows": [],
    }
    for server in (plain, ours):
        load(server, 0, vocabulary)
    for index in range(windows):
        for server in (plain, ours) if index % 2 == 0 else (ours, plain):
            result["windows"].append({"mode": server.mode, "index": index, **load(server, index + 1, vocabulary)})
    result["counters_at_end"] = json.loads(ours.counters.read_text()) if ours.counters.exists() else {"calls": 0}
    result["plain_wrote_counters"] = plain.counters.exists()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--mode", default="slots")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    vocabulary = json.loads((options.model / "config.json").read_text())["vocab_size"]
    servers: list[Served] = []
    try:
        servers += [start(options.model, mode, options.out) for mode in ("off", options.mode)]
        result = measure(servers[0], servers[1], options.windows, vocabulary)
    finally:
        for server in servers:
            stop(server)
    (options.out / f"live-{options.mode}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "windows"}, indent=1))
    for mode in ("off", options.mode):
        rates = [window["output_tok_per_s"] for window in result["windows"] if window["mode"] == mode]
        print(f"{mode:10} output tok/s: median {statistics.median(rates):.1f} of {[round(rate) for rate in rates]}")
    ratios = [
        next(w for w in result["windows"] if w["mode"] == options.mode and w["index"] == index)["output_tok_per_s"]
        / next(w for w in result["windows"] if w["mode"] == "off" and w["index"] == index)["output_tok_per_s"]
        for index in range(options.windows)
    ]
    print("ours over plain, window by window:", [round(ratio, 4) for ratio in ratios])
    if not result["counters_at_end"]["calls"]:
        raise SystemExit("our kernels computed nothing: see the server's log")


if __name__ == "__main__":
    main()
