"""What is known of SGLang, on a GPU and on a CPU."""

from __future__ import annotations

from dataclasses import replace

from perfgate.engines.engine import COMPILERS, OFFLINE, CacheFolder, Engine, MemoryOptions
from perfgate.engines.sglang_insides import SGLANG_INSIDES
from perfgate.engines.sglang_releases import explain_refused

_PHASES = {
    "weights_s": r"Load weight end\..*? elapsed=([0-9]+(?:\.[0-9]+)?) s",
    # Graphs of prefill and decode are captured one after the other; kernels that no cache holds are compiled meanwhile.
    "capture_s": r"Capture [^.]*graph[^.]* end\. (?:Time )?elapsed[=:] ?([0-9]+(?:\.[0-9]+)?) s",
}
# Written every 40 decode steps. At the endpoint the same number stands at zero from each prefill to the next such line.
_BATCH = (
    r"Decode batch.*?#running-req: (?P<running_requests>\d+).*?token usage: (?P<token_usage>\d+\.\d+)"
    r".*?#queue-req: (?P<queued_requests>\d+)"
)
# Before the first window graphs are captured and kernels compiled as a matter of course; in a window they are other work.
_WORK = {
    "graphs_captured": r"Capture [^.]*(?:graph|CG)[^.]* begin\.",
    "kernels_compiled": r"DeepGEMM JIT Compiling for|Compiling a graph for .* takes|Running FlashInfer autotune",
    "requests_retracted": r"#retracted_reqs: (\d+)",
    # uvicorn's supervisor says so of a worker that ended or that it killed for want of a sign of life, right before it starts
    # another one. At the server's end it says other words.
    "processes_restarted": r"Child process \[\d+\] died",
}
_CACHES = (
    *COMPILERS,
    CacheFolder(variable="SGLANG_DG_CACHE_DIR", default="~/.cache/deep_gemm", place="deep_gemm"),
    CacheFolder(variable="SGLANG_CACHE_DIR", default="~/.cache/sglang", below="torch_compile_cache", place="sglang"),
    CacheFolder(variable="TVM_FFI_CACHE_DIR", default="~/.cache/tvm-ffi", place="tvm_ffi"),
)

NAMED_CACHES = tuple(replace(folder, default="") for folder in _CACHES)
"""The caches of an engine that compiles nothing unless an arm makes it: only those that the arm's own variables name."""

SGLANG = Engine(
    name="sglang",
    package="sglang",
    module="sglang.launch_server",
    backend="sglang",
    args=("--enable-metrics",),
    env=OFFLINE,
    overrides_option="--json-model-override-args",
    # Before 0.5.23 it takes one from which connections are served as well, and may lose it before it is bound. One rank
    # binds it too: an H200 session lost a server to that in its third block.
    ranks_option="--nccl-port",
    segments="sglang_loads_*.shm",
    memory=MemoryOptions(
        share_option="--mem-fraction-static",
        is_workspace_in_share=False,
        pool_option="--max-total-tokens",
        widening_runners=("triton",),
    ),
    steering=("SGLANG_", "SGL_"),
    gauges={
        "running_requests": "num_running_reqs",
        "queued_requests": "num_queue_reqs",
        "token_usage": "token_usage",
        "capacity": "max_total_num_tokens",
    },
    counters={
        "hits": "cached_tokens_total",
        "prompts": "prompt_tokens_total",
        "queue_s": "queue_time_seconds_sum",
        "retracted": "num_retracted_requests_total",
        "queued": "queue_time_seconds_count",
        "decode_graphs": "cuda_graph_passes_total[decode_cuda_graph]",
        "decode_others": "cuda_graph_passes_total[decode_none]",
        "prefill_graphs": "cuda_graph_passes_total[prefill_cuda_graph]",
        "prefill_others": "cuda_graph_passes_total[prefill_none]",
        "generated": "generation_tokens_total",
        "verified": "spec_verify_calls_total",
        "transfer_ms": "kv_transfer_latency_ms_sum",
        "transfers": "kv_transfer_latency_ms_count",
    },
    phases=_PHASES,
    batch=_BATCH,
    work=_WORK,
    caches=_CACHES,
    insides=SGLANG_INSIDES,
)

SGLANG_CPU = replace(
    SGLANG,
    name="sglang-cpu",
    uses_gpu=False,
    args=("--device", "cpu", "--disable-cuda-graph", "--mem-fraction-static", "0.3", "--sleep-on-idle", "--enable-metrics"),
    # Without TORCHDYNAMO_DISABLE single requests stall for up to 26 s on compilation.
    env={**OFFLINE, "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"},
    caches=NAMED_CACHES,
    explain_refused=explain_refused,
)
