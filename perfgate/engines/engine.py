"""The form of what is known of an engine: a new one fills these fields, and no other module names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfgate.engines.insides import EngineFact, Insides

Dialect = Literal["sglang", "openai"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFolder:
    """Where a compiler keeps what it compiled: in the folder `below` the one that `variable` names, or below `default`.

    In a default `~` is the server's home, `{tmp}` its folder of temporary files and `{user}` its user's name. An empty one says
    that the compiler keeps nothing unless the variable is set. `place` is where it keeps it below the folder of an arm that has
    caches of its own; empty where another variable moves it already.
    """

    variable: str
    default: str = ""
    below: str = ""
    place: str = ""


COMPILERS = (
    CacheFolder(variable="TRITON_CACHE_DIR", default="~/.triton/cache", place="triton"),
    CacheFolder(variable="TRITON_HOME", below=".triton/cache"),
    CacheFolder(variable="TORCHINDUCTOR_CACHE_DIR", default="{tmp}/torchinductor_{user}", place="inductor"),
    CacheFolder(variable="FLASHINFER_WORKSPACE_BASE", default="~", below=".cache/flashinfer", place="flashinfer"),
    CacheFolder(variable="CUDA_CACHE_PATH", default="~/.nv/ComputeCache", place="cuda"),
)
"""The caches of what every engine compiles with."""

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONUNBUFFERED": "1",
}
"""Variables that keep a server from the network, and its log complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """What an engine's options take of a card's memory.

    `share_option` is the share of the card that it fills; `is_workspace_in_share` says whether that covers graphs and
    activations too. `pool_option` gives the token pool a size instead, in tokens or, where `is_pool_in_bytes`, in bytes.
    `counts_neighbours` says that a server without it takes for its own what others on the card take while it starts.
    `widening_runners` are the values of `--moe-runner-backend` that hold MXFP4 weights as bf16.
    """

    share_option: str
    is_workspace_in_share: bool
    pool_option: str
    is_pool_in_bytes: bool = False
    counts_neighbours: bool = False
    widening_runners: tuple[str, ...] = ()


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
    `work` are the log's lines that tell of work besides serving, at least one, by the reading that they add to: one a line, or
    as many as the expression's group says. `caches` are the folders in which a compiler leaves what it compiled; below that of
    the variable `choices` it keeps what it chose by timing.
    `backend` is the beginning of the names that the load generator has for this engine. `overrides_option` changes the model's
    config on the command line. `memory` says what its options take of a card. `steering` are beginnings of the names of
    variables that it reads. `gauges` and `counters` are its names, without their prefix, for what is read at its metrics, by
    our own name; `NAME[MODE]` are the samples whose label `mode` is MODE. `insides` are the facts of its source.
    `ranks_option` names the port at which a server's ranks meet; None leaves it to the engine.
    `segments` are the names, a pattern, of shared memory that it leaves where it is killed; None where it has none.
    `explain_refused` takes the arguments of server and load generator, and a version, and says why that cannot serve them.
    """

    name: str
    package: str
    module: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    backend: str
    overrides_option: str
    memory: MemoryOptions
    steering: tuple[str, ...]
    gauges: Mapping[str, str]
    counters: Mapping[str, str]
    phases: Mapping[str, str]
    batch: str | None
    work: Mapping[str, str]
    caches: tuple[CacheFolder, ...]
    choices: str = "TORCHINDUCTOR_CACHE_DIR"
    insides: Insides
    explain_refused: Callable[[Sequence[str], str], str | None] = lambda *_: None
    dialect: Dialect = "sglang"
    model_option: str = "--model-path"
    ranks_option: str | None = None
    segments: str | None = None
    is_profiled: bool = True
    has_client: bool = True
    ready_path: str = "/health_generate"
    flush_path: str | None = "/flush_cache"
    freeze_path: str | None = "/freeze_gc"
    info_path: str | None = "/server_info"
    metrics_path: str | None = "/metrics"
    uses_gpu: bool = True
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

    @property
    def facts(self) -> tuple[EngineFact, ...]:
        """What perfgate uses of its source: facts of its insides, gauges and counters."""
        return (*self.insides.facts, *self.insides.list_metrics((*self.gauges.items(), *self.counters.items())))
