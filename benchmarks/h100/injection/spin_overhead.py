"""What a spin costs beside its length, alone and beside other work: one line a measurement, its nine replays in brackets.

    python -m benchmarks.h100.injection.spin_overhead > spin_overhead.txt

`cores` are twice as many busy processes as the machine has cores, `copies` another process that fills a buffer on the same GPU
and copies to it, as a server does that loads its weights, `products` one that multiplies matrices there without a pause.
The file beside this is what a first form of it printed on 2026-11-26, with `beside 32` for `cores` and `matmul` for `products`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import torch

from perfgate.serving.injection import spin

TIMES, LENGTH_US, WARM_S = 8, 8.0, 12.0
BUSY = "while True: pass"
COPIES = """
import torch
host = torch.empty(1 << 28, dtype=torch.uint8)
device = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
while True:
    device.copy_(host)
    device.random_(0, 255)
"""
PRODUCTS = """
import torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
while True:
    b = a @ a
"""
WORK = {"alone": [], "cores": [BUSY] * (2 * (os.cpu_count() or 1)), "copies": [COPIES], "products": [PRODUCTS]}


class Watched(spin.Spin):
    """A spin that keeps what each replay came to."""

    def __init__(self) -> None:
        self.replays_us: list[float] = []
        super().__init__(kind="gpu", device="cuda", index=0, microseconds=LENGTH_US)

    def _time_replay(self, graph: torch.cuda.CUDAGraph) -> float:
        self.replays_us.append(round(super()._time_replay(graph), 2))
        return self.replays_us[-1]


def main() -> None:
    for name, programs in WORK.items():
        others = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
        time.sleep(WARM_S if others else 0.0)
        for _ in range(TIMES):
            made = Watched()
            print(f"{name:8} {made.overhead_us:6.2f} us {made.replays_us}", flush=True)
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
