"""What telemetry may say of a window: every reading's name, unit and meaning, in one table.

A reading that a machine cannot give is absent from the window, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass

FOREIGN_PROCESSES, THROTTLED_SHARE, SM_CLOCK_MHZ = "foreign_processes", "throttled_share", "sm_clock_mhz"
FOREIGN_CPU, STOLEN_CPU = "foreign_cpu_share", "stolen_cpu_share"
FRONT_END_SHARE = "front_end_core_share"
CACHE_HIT_RATE = "cache_hit_rate"
KERNELS_COMPILED, GRAPHS_CAPTURED, REQUESTS_RETRACTED = "kernels_compiled", "graphs_captured", "requests_retracted"
PROCESSES_RESTARTED = "processes_restarted"
KV_CAPACITY, ACCEPT_LENGTH = "kv_capacity_tokens", "accept_length"
KV_TRANSFER_MS = "kv_transfer_ms"
DECODE_GRAPH_SHARE, PREFILL_GRAPH_SHARE = "decode_graph_share", "prefill_graph_share"
ANSWERS_MALFORMED = "answers_malformed"

SMALLER_POOL = 0.01
"""The share by which a pool of tokens may shrink without being a loss, as measured and as estimated without a GPU."""

GPU_MARK = "_gpu_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingKind:
    """One number about the machine while a window ran. `unit` is one for a share or a count."""

    unit: str
    meaning: str


READINGS: dict[str, ReadingKind] = {
    SM_CLOCK_MHZ: ReadingKind(unit="MHz", meaning="median clock of the GPU's multiprocessors; of several GPUs the slowest"),
    "sm_clock_min_mhz": ReadingKind(unit="MHz", meaning="lowest clock of the multiprocessors that a sample saw"),
    "memory_clock_mhz": ReadingKind(unit="MHz", meaning="median clock of the GPU's memory; of several GPUs the slowest"),
    "power_w": ReadingKind(unit="W", meaning="mean power; several GPUs are summed"),
    "power_max_w": ReadingKind(unit="W", meaning="highest power of one GPU that a sample saw"),
    "temperature_c": ReadingKind(unit="degC", meaning="highest temperature that a sample saw"),
    THROTTLED_SHARE: ReadingKind(
        unit="1", meaning="share of samples in which heat or the power supply limited the GPU's clocks"
    ),
    "power_cap_share": ReadingKind(
        unit="1", meaning="share of samples in which the board's power limit set the clock, which is normal"
    ),
    "thermal_share": ReadingKind(unit="1", meaning="the part of `throttled_share` that is certainly heat"),
    "gpu_memory_used_bytes": ReadingKind(unit="B", meaning="largest memory in use on one GPU, by any process"),
    "server_memory_bytes": ReadingKind(
        unit="B",
        meaning="memory that the server's processes hold themselves after the window: anonymous and shared, each page once",
    ),
    FOREIGN_PROCESSES: ReadingKind(unit="1", meaning="largest number of processes on the GPU that are not the session's own"),
    "gpu_processes_visible": ReadingKind(
        unit="1", meaning="1 where NVML shows the session's own processes, 0 where it hides them"
    ),
    "gpu_samples": ReadingKind(unit="1", meaning="samples that NVML answered"),
    "gpu_samples_lost": ReadingKind(unit="1", meaning="samples that NVML failed to answer"),
    FOREIGN_CPU: ReadingKind(unit="1", meaning="share of the machine's CPU time used by other processes"),
    "own_cpu_share": ReadingKind(unit="1", meaning="share of the machine's CPU time used by servers, load generator and gate"),
    STOLEN_CPU: ReadingKind(unit="1", meaning="share of CPU time that the hypervisor gave to other machines"),
    FRONT_END_SHARE: ReadingKind(
        unit="1",
        meaning="share of one core that the thread which takes requests and sends tokens used in its busiest second; "
        "of several processes or services the busiest",
    ),
    "run_queue": ReadingKind(unit="1", meaning="median number of tasks that ran or waited for a core"),
    "running_requests": ReadingKind(unit="1", meaning="mean number of requests in the engine's running batch"),
    "queued_requests": ReadingKind(unit="1", meaning="mean number of requests that waited in the engine"),
    "queue_wait_s": ReadingKind(unit="s", meaning="mean time that a request waited in the engine before it ran"),
    "token_usage": ReadingKind(unit="1", meaning="largest share of the engine's token pool in use"),
    CACHE_HIT_RATE: ReadingKind(
        unit="1", meaning="prompt tokens served from the prefix cache, as a share of all prompt tokens"
    ),
    KERNELS_COMPILED: ReadingKind(
        unit="1", meaning="entries that compilers added to the server's caches, or compilations in its log"
    ),
    GRAPHS_CAPTURED: ReadingKind(unit="1", meaning="captures of graphs in the server's log"),
    REQUESTS_RETRACTED: ReadingKind(unit="1", meaning="running requests that were put back because the token pool was full"),
    PROCESSES_RESTARTED: ReadingKind(
        unit="1", meaning="processes of the server that ended or were killed and were begun anew, in its log"
    ),
    KV_CAPACITY: ReadingKind(unit="tokens", meaning="capacity of the engine's token pool, over all its data parallel ranks"),
    DECODE_GRAPH_SHARE: ReadingKind(unit="1", meaning="decode steps that replayed a CUDA graph, as a share of all of them"),
    PREFILL_GRAPH_SHARE: ReadingKind(unit="1", meaning="prefill steps that replayed a CUDA graph, as a share of all of them"),
    ACCEPT_LENGTH: ReadingKind(
        unit="tokens", meaning="generated tokens for each verification of a draft; absent without speculative decoding"
    ),
    KV_TRANSFER_MS: ReadingKind(
        unit="ms",
        meaning="mean time that a prompt's keys and values took from the server that computed them to the one that decodes; "
        "absent unless these are apart",
    ),
    ANSWERS_MALFORMED: ReadingKind(
        unit="1", meaning="answers without the form that the load requires; absent if it requires none"
    ),
    "engine_scrapes": ReadingKind(unit="1", meaning="times that the engine's metrics were read while the window ran"),
    "engine_scrape_max_s": ReadingKind(unit="s", meaning="longest time that reading the engine's metrics took"),
}


def name_on_gpu(name: str, number: int) -> str:
    """What a reading of one of several GPUs is called: `power_w_gpu_1` is that of the second one that is watched."""
    return f"{name}{GPU_MARK}{number}"


def find_kind(name: str) -> ReadingKind | None:
    """The row of a reading, of all GPUs or of one of them; None for a name that the table lacks."""
    plain, mark, number = name.rpartition(GPU_MARK)
    return READINGS.get(plain if mark and number.isdecimal() else name)
