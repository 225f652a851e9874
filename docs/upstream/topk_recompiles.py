"""How long the first and the second top-k of each number of tokens takes, by the kernels of SGLang's triton_kernel runner.

python topk_recompiles.py. Needs a GPU and sglang-kernel. Exit code 1 where a number of tokens that was not seen compiles anew.
"""

import sys
import time

import torch
from triton_kernels.topk import topk

EXPERTS, TOP_K, SLOW_S = 32, 4, 0.05


def time_topk(tokens: int) -> float:
    """Seconds of one call over the logits of so many tokens, of gpt-oss-20b's shape."""
    logits = torch.randn(tokens, EXPERTS, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    topk(logits, TOP_K)
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def main() -> int:
    """Print both times of five sizes, after one whose first call also loads what all share."""
    time_topk(2048)
    found = {tokens: (time_topk(tokens), time_topk(tokens)) for tokens in (2080, 2112, 2144, 2176, 2208)}
    for tokens, (first, second) in found.items():
        print(f"{tokens} tokens: {first * 1e3:.1f} ms, then {second * 1e3:.2f} ms")
    return int(all(first > SLOW_S for first, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main())
