"""How long SGLang's activation of gpt-oss takes with 4,096 tokens, by the numbers of tokens that a process saw before.

python activation_order.py. Needs a GPU and sglang. torch.compile makes one kernel for the first size that it sees, and one for
all others at the second. Exit code 1 where the same call takes 1.3 times as long or more after one order than after another.
"""

import os
import subprocess
import sys
import tempfile
from statistics import median

import torch
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe

TOP_K, WIDTH, ROUNDS = 4, 2880, 50
ORDERS = ("4096", "1 1024 4096", "16 1 256 4096", "128 64 4096")


def time_activation(order: list[int]) -> float:
    """Microseconds of the last size's call, the median of many, after a call of each size in this order."""
    for tokens in order:
        gate_up = torch.randn(tokens * TOP_K, 2 * WIDTH, device="cuda", dtype=torch.bfloat16)
        fused_moe.swiglu_gpt_oss_sigmoid_alpha(gate_up, 1.702, 7.0)
    spans = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(ROUNDS)]
    for begin, end in spans:
        begin.record()
        fused_moe.swiglu_gpt_oss_sigmoid_alpha(gate_up, 1.702, 7.0)
        end.record()
    torch.cuda.synchronize()
    return median(float(begin.elapsed_time(end)) * 1e3 for begin, end in spans)


def main() -> int:
    """Time each order in a process and with compile caches of its own, and print the times."""
    found = {}
    for order in ORDERS:
        with tempfile.TemporaryDirectory() as caches:
            own = {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "TRITON_CACHE_DIR": f"{caches}/triton"}
            argv = [sys.executable, __file__, *order.split()]
            told = subprocess.run(argv, env={**os.environ, **own}, capture_output=True, text=True, check=False)
        if told.returncode:
            sys.exit(told.stderr)
        found[order] = float(told.stdout.split()[-1])
        print(f"after {order.replace(' ', ', '):20} {found[order]:7.1f} us", flush=True)
    return int(max(found.values()) > 1.3 * min(found.values()))


if __name__ == "__main__":
    if sys.argv[1:]:
        print(time_activation([int(word) for word in sys.argv[1:]]))
    else:
        sys.exit(main())
