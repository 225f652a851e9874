"""What is known of vLLM, on a GPU and on a CPU."""

from __future__ import annotations

from dataclasses import replace

from perfgate.engines.engine import COMPILERS, OFFLINE, CacheFolder, Engine, MemoryOptions
from perfgate.engines.vllm_insides import VLLM_INSIDES

_WORK = {
    "graphs_captured": r"Graph capturing finished",
    "kernels_compiled": r"torch\.compile (?:takes|took)|Compiling a graph for .* takes",
}
_PHASES = {
    "weights_s": r"Loading weights took ([0-9]+(?:\.[0-9]+)?) seconds",
    "compile_s": r"torch\.compile (?:takes|took) ([0-9]+(?:\.[0-9]+)?) s in total",
    "capture_s": r"Graph capturing finished in ([0-9]+(?:\.[0-9]+)?) secs",
}
_CACHES = (
    *COMPILERS,
    CacheFolder(variable="VLLM_CACHE_ROOT", default="~/.cache/vllm", below="torch_compile_cache", place="vllm"),
    CacheFolder(variable="DG_JIT_CACHE_DIR", default="~/.deep_gemm", place="vllm_deep_gemm"),
)

VLLM = Engine(
    name="vllm",
    package="vllm",
    module="vllm.entrypoints.openai.api_server",
    backend="vllm",
    dialect="openai",
    overrides_option="--hf-overrides",
    # Seen in 0.26.0 on an H200: of two that started side by side one counted 274 GiB for its graphs, on a card of 140.
    memory=MemoryOptions(
        share_option="--gpu-memory-utilization",
        is_workspace_in_share=True,
        pool_option="--kv-cache-memory-bytes",
        is_pool_in_bytes=True,
        counts_neighbours=True,
    ),
    steering=("VLLM_",),
    gauges={
        "running_requests": "num_requests_running",
        "queued_requests": "num_requests_waiting",
        "token_usage": "kv_cache_usage_perc",
    },
    counters={
        "hits": "prefix_cache_hits_total",
        "prompts": "prefix_cache_queries_total",
        "queue_s": "request_queue_time_seconds_sum",
        "retracted": "num_preemptions_total",
        "queued": "request_queue_time_seconds_count",
    },
    model_option="--model",
    # Its /reset_prefix_cache answers 200 whether it did or not, so there is to be no such cache at all.
    args=("--no-enable-prefix-caching",),
    env={**OFFLINE, "VLLM_NO_USAGE_STATS": "1"},
    # Its /health says that the process lives, not that it generates.
    ready_path="/v1/completions",
    flush_path=None,
    freeze_path=None,
    info_path=None,
    # Its profiler has to be configured before it starts.
    is_profiled=False,
    has_client=False,
    phases=_PHASES,
    batch=None,
    work=_WORK,
    caches=_CACHES,
    # It gives torch.compile a folder of its own in there, named after the settings.
    choices="VLLM_CACHE_ROOT",
    insides=VLLM_INSIDES,
)

# It binds each server to the same first cores, where two that live side by side would share one of them.
VLLM_CPU = replace(
    VLLM,
    name="vllm-cpu",
    uses_gpu=False,
    env={**VLLM.env, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"},
)
