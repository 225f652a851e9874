"""What differs between serving engines, as rows of one table; the server and the client know nothing else of an engine.

SGLang moves its modules, flags and endpoints between releases, so each moving thing stands here once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Dialect = Literal["sglang", "openai"]

_SGLANG_PHASES = {
    "weights_s": r"Load weight end\..*? elapsed=([0-9]+(?:\.[0-9]+)?) s",
    # Graphs of prefill and decode are captured one after the other; kernels that no cache holds are compiled meanwhile.
    "capture_s": r"Capture [^.]*graph[^.]* end\. (?:Time )?elapsed[=:] ?([0-9]+(?:\.[0-9]+)?) s",
}
# Written every 40 decode steps. At the endpoint the same number stands at zero from each prefill to the next such line.
_SGLANG_BATCH = (
    r"Decode batch.*?#running-req: (?P<running_requests>\d+).*?token usage: (?P<token_usage>\d+\.\d+)"
    r".*?#queue-req: (?P<queued_requests>\d+)"
)
# Before the first window graphs are captured and kernels compiled as a matter of course; in a window they are other work.
_SGLANG_WORK = {
    "graphs_captured": r"Capture [^.]*(?:graph|CG)[^.]* begin\.",
    "kernels_compiled": r"DeepGEMM JIT Compiling for|Compiling a graph for .* takes|Running FlashInfer autotune",
    "requests_retracted": r"#retracted_reqs: (\d+)",
}
_VLLM_WORK = {
    "graphs_captured": r"Graph capturing finished",
    "kernels_compiled": r"torch\.compile (?:takes|took)|Compiling a graph for .* takes",
}
_VLLM_PHASES = {
    "weights_s": r"Loading weights took ([0-9]+(?:\.[0-9]+)?) seconds",
    "compile_s": r"torch\.compile (?:takes|took) ([0-9]+(?:\.[0-9]+)?) s in total",
    "capture_s": r"Graph capturing finished in ([0-9]+(?:\.[0-9]+)?) secs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFolder:
    """Where a compiler keeps what it compiled: in the folder `below` the one that `variable` names, or below `default`.

    In a default `~` is the server's home, `{tmp}` its folder of temporary files and `{user}` its user's name. An empty one says
    that the compiler keeps nothing unless the variable is set.
    """

    variable: str
    default: str = ""
    below: str = ""


_COMPILERS = (
    CacheFolder(variable="TRITON_CACHE_DIR", default="~/.triton/cache"),
    CacheFolder(variable="TRITON_HOME", below=".triton/cache"),
    CacheFolder(variable="TORCHINDUCTOR_CACHE_DIR", default="{tmp}/torchinductor_{user}"),
    CacheFolder(variable="FLASHINFER_WORKSPACE_BASE", default="~", below=".cache/flashinfer"),
    CacheFolder(variable="CUDA_CACHE_PATH", default="~/.nv/ComputeCache"),
)
_SGLANG_CACHES = (
    *_COMPILERS,
    CacheFolder(variable="SGLANG_DG_CACHE_DIR", default="~/.cache/deep_gemm"),
    CacheFolder(variable="SGLANG_CACHE_DIR", default="~/.cache/sglang", below="torch_compile_cache"),
    CacheFolder(variable="TVM_FFI_CACHE_DIR", default="~/.cache/tvm-ffi"),
)
_VLLM_CACHES = (
    *_COMPILERS,
    CacheFolder(variable="VLLM_CACHE_ROOT", default="~/.cache/vllm", below="torch_compile_cache"),
    CacheFolder(variable="DG_JIT_CACHE_DIR", default="~/.deep_gemm"),
)

NAMED_CACHES = tuple(replace(folder, default="") for folder in _SGLANG_CACHES)
"""The caches of an engine that compiles nothing unless an arm makes it: only those that the arm's own variables name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an engine is launched and spoken to.

    `dialect` is the form of its requests: SGLang's own `/generate`, or OpenAI's `/v1/completions`. `ready_path` answers 200
    only once a token was generated; in OpenAI's dialect it is asked to generate one. `flush_path` empties the prefix cache and
    answers 200 when it did; None where `args` leave no cache to empty. `freeze_path` takes what lives out of Python's garbage
    collection, in releases that offer it. `model_option` names the model on the command line.
    `is_profiled` is False where no request starts a profiler. `has_client` is False where bench_serving is not part of the
    engine, and comes from the Python that runs perfgate.
    `metrics_path` serves Prometheus text. `uses_gpu` is False where what happens on the machine's GPU is nothing to the
    measurement. `package` is the distribution whose version names the engine. `fault_words` mark the telling lines of a log.
    `info_path` tells the settings that a server resolved to. `phases` are regular expressions of the log's lines that say how
    long a part of a start took, in seconds, by the metric that it becomes. `batch` is one of the lines that tell of a running
    batch, with a group for each gauge; None where the log has none that are frequent enough for a window of a few seconds.
    `work` are the log's lines that tell of work besides serving, by the reading that they add to: one a line, or as many as the
    expression's group says. `caches` are the folders in which a compiler leaves what it compiled.
    """

    name: str
    package: str
    module: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    dialect: Dialect = "sglang"
    model_option: str = "--model-path"
    is_profiled: bool = True
    has_client: bool = True
    ready_path: str = "/health_generate"
    flush_path: str | None = "/flush_cache"
    freeze_path: str | None = "/freeze_gc"
    info_path: str | None = "/server_info"
    metrics_path: str | None = "/metrics"
    uses_gpu: bool = True
    phases: Mapping[str, str] = field(default_factory=lambda: _SGLANG_PHASES)
    batch: str | None = _SGLANG_BATCH
    work: Mapping[str, str] = field(default_factory=lambda: _SGLANG_WORK)
    caches: tuple[CacheFolder, ...] = _SGLANG_CACHES
    fault_words: tuple[str, ...] = (
        "Traceback",
        "Error",
        "error:",
        "Exception",
        "CUDA",
        "Killed",
        "out of memory",
        "Address already",
    )


_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONUNBUFFERED": "1",
}

_VLLM = Engine(
    name="vllm",
    package="vllm",
    module="vllm.entrypoints.openai.api_server",
    dialect="openai",
    model_option="--model",
    # Its /reset_prefix_cache answers 200 whether it did or not, so there is to be no such cache at all.
    args=("--no-enable-prefix-caching",),
    env={**_OFFLINE, "VLLM_NO_USAGE_STATS": "1"},
    # Its /health says that the process lives, not that it generates.
    ready_path="/v1/completions",
    flush_path=None,
    freeze_path=None,
    info_path=None,
    # Its profiler has to be configured before it starts.
    is_profiled=False,
    has_client=False,
    phases=_VLLM_PHASES,
    batch=None,
    work=_VLLM_WORK,
    caches=_VLLM_CACHES,
)

_ROWS = (
    Engine(name="sglang", package="sglang", module="sglang.launch_server", args=("--enable-metrics",), env=_OFFLINE),
    Engine(
        name="sglang-cpu",
        uses_gpu=False,
        package="sglang",
        module="sglang.launch_server",
        args=("--device", "cpu", "--disable-cuda-graph", "--mem-fraction-static", "0.3", "--sleep-on-idle", "--enable-metrics"),
        # Without TORCHDYNAMO_DISABLE single requests stall for up to 26 s on compilation.
        env={**_OFFLINE, "SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"},
        caches=NAMED_CACHES,
    ),
    _VLLM,
    # It binds each server to the same first cores, where two that live side by side would share one of them.
    replace(
        _VLLM,
        name="vllm-cpu",
        uses_gpu=False,
        env={**_VLLM.env, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"},
    ),
)

ENGINES: dict[str, Engine] = {engine.name: engine for engine in _ROWS}
