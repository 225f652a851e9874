"""A bench_serving that sends nothing: it asks the fake engine how slow it is and writes what a real one would have.

FAKE_BENCH chooses the behaviour: ok, unsteady (each window half as fast as the one before), ragged (every second window of a
slow server is 6 % slower), fail_third (the third fails), drop_one (one request of each window is not answered), empty (each
answer ends before its first token), garbage (what it writes is no result), hang (it never ends).
"""

import argparse
import json
import os
import random
import sys
import time
import urllib.request

# A shorter wait for the engine's answer is this machine's; a longer one is the engine's stall, in the midst of an answer.
MIN_STALL_S = 2.0
OPTIONS = ("--base-url", "--output-file", "--backend", "--model", "--dataset-name", "--request-rate")
NUMBERS = ("--num-prompts", "--random-input-len", "--random-output-len", "--max-concurrency", "--seed")


def get_tokenizer(name):
    return name


class Bench:
    """The load generator of one session with the variables `env`; `wait` is how it waits."""

    def __init__(self, env, wait=time.sleep):
        self.behaviour = env.get("FAKE_BENCH", "ok")
        self.wait = wait
        self.calls = 0

    def run(self, argv):
        """Take one window."""
        self.calls += 1
        args = parse(argv)
        if self.behaviour == "fail_third" and self.calls == 3:
            sys.exit(1)
        if self.behaviour == "hang":
            self.wait(600)
        begun = time.monotonic()
        with urllib.request.urlopen(args.base_url + "/slow") as answer:
            slow = float(answer.headers["X-Slow"])
        waited = time.monotonic() - begun
        if self.behaviour == "unsteady":
            slow *= 2.0**self.calls
        if self.behaviour == "ragged" and slow > 1.0:
            slow *= 1.06 ** (self.calls % 2)
        line = build_line(args, slow, waited if waited >= MIN_STALL_S else 0.0, lost=int(self.behaviour == "drop_one"))
        if self.behaviour == "empty":
            # So SGLang ends a request whose grammar no word fits; bench_serving counts the tokens that it asked for.
            line |= {"ttfts": [0.0] * args.num_prompts, "itls": [[]] * args.num_prompts}
        with open(args.output_file, "a") as file:
            file.write("<html>502</html>\n" if self.behaviour == "garbage" else json.dumps(line) + "\n")


BENCH = Bench(os.environ)


def cli_main():
    BENCH.run(sys.argv[1:])


def parse(argv):
    parser = argparse.ArgumentParser()
    for option in OPTIONS:
        parser.add_argument(option)
    for option in NUMBERS:
        parser.add_argument(option, type=int)
    parser.add_argument("--random-range-ratio", type=float)
    parser.add_argument("--output-details", action="store_true")
    parser.add_argument("--disable-tqdm", action="store_true")
    return parser.parse_args(argv)


def build_line(args, slow, stalled, lost):
    count, length = args.num_prompts, args.random_output_len
    itls = [[0.010 * slow * random.uniform(0.98, 1.02) for _ in range(length - 1)] for _ in range(count)]
    itls[0][0] += stalled
    ttfts = [0.050 * slow * random.uniform(0.98, 1.02) for _ in range(count)]
    e2e_ms = [1000 * (ttft + sum(gaps)) for ttft, gaps in zip(ttfts, itls)]
    # The other requests went on while one stalled: it is not divided by their number.
    duration = (sum(e2e_ms) / 1000 - stalled) / args.max_concurrency + stalled
    tokens = count * length
    flat = [1000 * gap for gaps in itls for gap in gaps]
    return {
        "backend": args.backend,
        "dataset_name": args.dataset_name,
        "request_rate": float(args.request_rate),
        "max_concurrency": args.max_concurrency,
        "random_input_len": args.random_input_len,
        "random_output_len": length,
        "random_range_ratio": args.random_range_ratio,
        "duration": duration,
        "completed": count - lost,
        "total_input_tokens": count * args.random_input_len,
        "total_output_tokens": tokens,
        "total_output_tokens_retokenized": tokens,
        "request_throughput": count / duration,
        "input_throughput": count * args.random_input_len / duration,
        "output_throughput": tokens / duration,
        "mean_e2e_latency_ms": sum(e2e_ms) / count,
        "median_e2e_latency_ms": sorted(e2e_ms)[count // 2],
        "mean_ttft_ms": 1000 * sum(ttfts) / count,
        "median_ttft_ms": 1000 * sorted(ttfts)[count // 2],
        "p99_ttft_ms": 1000 * max(ttfts),
        "mean_itl_ms": sum(flat) / len(flat),
        "median_itl_ms": sorted(flat)[len(flat) // 2],
        "p95_itl_ms": sorted(flat)[int(0.95 * len(flat))],
        "p99_itl_ms": sorted(flat)[int(0.99 * len(flat))],
        "max_itl_ms": max(flat),
        "concurrency": float(args.max_concurrency),
        "input_lens": [args.random_input_len] * count,
        "output_lens": [length] * count,
        "ttfts": ttfts,
        "itls": itls,
        "generated_texts": [" ".join(["word"] * length)] * count,
        "errors": ["connection reset"] * lost + [""] * (count - lost),
    }
