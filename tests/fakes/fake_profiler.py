"""The fake engine's torch profiler: it writes the trace of the tokens that were generated while it recorded.

FAKE_KERNELS lists `name:microseconds` per forward step. FAKE_PROFILE chooses the fault: ok, refuse (HTTP 500), silent (writes
no file), truncated, empty (no event), page (HTML for a trace).
"""

import gzip
import json
import os
from pathlib import Path

FAULT = os.environ.get("FAKE_PROFILE", "ok")
KERNELS = os.environ.get("FAKE_KERNELS", "fused_moe_kernel:30,moe_sum_reduce:6,attention:20")
recording = None


def start(options):
    global recording
    if FAULT == "refuse":
        return 500
    recording = {"folder": Path(options["output_dir"]), "steps": 0}
    return 200


def generate(length):
    if recording is not None:
        recording["steps"] += length


def stop():
    global recording
    folder, steps = recording["folder"], recording["steps"]
    recording = None
    if FAULT == "silent":
        return 200
    events, at = [], 0.0
    for _ in range(0 if FAULT == "empty" else steps):
        for item in KERNELS.split(","):
            name, _, time_us = item.rpartition(":")
            events.append({"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": float(time_us), "pid": 0, "tid": 7})
            at += float(time_us) + 1
    content = b"<html>" if FAULT == "page" else json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    packed = gzip.compress(content)
    (folder / "1700000000.5-TP-0.trace.json.gz").write_bytes(packed[: len(packed) // 2] if FAULT == "truncated" else packed)
    return 200
