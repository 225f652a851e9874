"""The fake engine's torch profiler: it writes the trace of the tokens that were generated while it recorded.

FAKE_KERNELS lists `name:microseconds` per forward step. FAKE_PROFILE chooses the fault: ok, refuse (HTTP 500), traceless
(writes no file), truncated, empty (no event), page (HTML for a trace).
"""

import gzip
import json
from pathlib import Path


class Profiler:
    """The profiler of one engine with the variables `env`."""

    def __init__(self, env):
        self.fault = env.get("FAKE_PROFILE", "ok")
        self.kernels = env.get("FAKE_KERNELS", "fused_moe_kernel:30,moe_sum_reduce:6,attention:20")
        self.recording = None

    def start(self, options):
        if self.fault == "refuse":
            return 500
        self.recording = {"folder": Path(options["output_dir"]), "steps": 0}
        return 200

    def generate(self, length):
        if self.recording is not None:
            self.recording["steps"] += length

    def stop(self):
        folder, steps = self.recording["folder"], self.recording["steps"]
        self.recording = None
        if self.fault == "traceless":
            return 200
        events, at = [], 0.0
        for _ in range(0 if self.fault == "empty" else steps):
            for item in self.kernels.split(","):
                name, _, time_us = item.rpartition(":")
                events.append({"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": float(time_us), "pid": 0, "tid": 7})
                at += float(time_us) + 1
        content = b"<html>" if self.fault == "page" else json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
        packed = gzip.compress(content)
        written = packed[: len(packed) // 2] if self.fault == "truncated" else packed
        (folder / "1700000000.5-TP-0.trace.json.gz").write_bytes(written)
        return 200
