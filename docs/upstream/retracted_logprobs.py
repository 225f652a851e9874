"""A retracted request answers with fewer log-probs than tokens. Needs a server of SGLang 0.5.15 to 0.5.18 that retracts.

Start it by `SGLANG_TEST_RETRACT=1 SGLANG_TEST_RETRACT_INTERVAL=8 python -m sglang.launch_server --model-path MODEL` with
`--max-total-tokens 512 --max-running-requests 16 --port 30000`, then run this. Exit code 1 if an answer lacks log-probs.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests

URL = "http://127.0.0.1:30000/generate"
REQUESTS, AT_ONCE, TOKENS = 128, 16, 32


def ask(number: int) -> tuple[int, int]:
    """How many tokens and how many log-probs of them one answer has."""
    rules: dict[str, Any] = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    asked: dict[str, Any] = {"input_ids": [10 + number] * 48, "return_logprob": True, "logprob_start_len": 0}
    answer = requests.post(URL, json=asked | {"sampling_params": rules}, timeout=600).json()
    return len(answer["output_ids"]), len(answer["meta_info"]["output_token_logprobs"])


def main() -> None:
    """Ask 16 at a time, and print the answers that lack log-probs."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(ask, range(REQUESTS)))
    lacking = [pair for pair in found if pair[0] != pair[1]]
    print(f"{len(lacking)} of {REQUESTS} answers lack log-probs; tokens and log-probs: {lacking}")
    raise SystemExit(1 if lacking else 0)


if __name__ == "__main__":
    main()
