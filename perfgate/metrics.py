"""Every metric that a window can carry, as rows of one table; no other module branches on a metric's name."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from perfgate.core import Better

MIN_GROWTH_WINDOWS = 5
"""Of fewer windows one that stalls could make a slope: the median slope of five stands one window that lies anywhere."""

REQUEST_FAMILIES = frozenset({"throughput", "tail", "itl", "ttft", "e2e"})
"""Families of what the load generator saw of its requests; all others tell of the server that answered them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What is true of a metric whatever the workload.

    `margin_ratio` is the practical margin Delta that a scenario may override: the smallest loss that is worth acting on.
    `min_requests` is the number of requests that the windows of one start need together before the metric may gate: the
    start is the replicate, and its windows send the same requests. `closed_loop_only` marks a metric that
    echoes the load generator at a finite request rate. `headline` metrics come first in every output. `is_by_name` marks
    one of a part of the requests: it is stored, and loose runs are compared by it, only where it is asked for. `growth_of`
    names the metric, carried by the windows of a start, whose growth over them it is (`perfgate.stats.slope`); else empty.
    """

    name: str
    title: str
    family: str
    margin_ratio: float
    unit: str = "ms"
    better: Better = Better.LOWER
    gates: bool = True
    min_requests: int = 1
    closed_loop_only: bool = False
    headline: bool = False
    is_by_name: bool = False
    decimals: int = 2
    growth_of: str = ""

    @property
    def min_windows(self) -> int:
        """How many windows a start needs before it has the metric."""
        return MIN_GROWTH_WINDOWS if self.growth_of else 1

    @property
    def of_window(self) -> str:
        """The metric that each window of a start must carry: this one, or the one whose growth it is."""
        return self.growth_of or self.name

    @property
    def sign(self) -> float:
        """What turns a logarithm of the metric into log badness, and back."""
        return -1.0 if self.better is Better.HIGHER else 1.0

    @property
    def is_of_requests(self) -> bool:
        """Whether the load generator measured it, so that two windows agree in it only where one is a copy."""
        return self.family in REQUEST_FAMILIES

    def badness(self, value: float) -> float:
        """Map a positive value to the log scale on which larger is worse."""
        return self.sign * log(value)


_ROWS = (
    Metric(
        name="output_tok_per_s",
        title="Output throughput",
        unit="tok/s",
        better=Better.HIGHER,
        family="throughput",
        margin_ratio=0.03,
        closed_loop_only=True,
        headline=True,
        decimals=1,
    ),
    Metric(name="p99_itl_ms", title="P99 ITL", family="tail", margin_ratio=0.10, min_requests=300, headline=True),
    Metric(name="median_itl_ms", title="Median ITL", family="itl", margin_ratio=0.03),
    Metric(name="mean_itl_ms", title="Mean ITL", family="itl", margin_ratio=0.03),
    Metric(name="p95_itl_ms", title="P95 ITL", family="tail", margin_ratio=0.06),
    Metric(name="es5_itl_ms", title="ES5 ITL (mean of the worst 5 %)", family="tail", margin_ratio=0.06),
    Metric(name="mean_ttft_ms", title="Mean TTFT", family="ttft", margin_ratio=0.06),
    Metric(name="p99_ttft_ms", title="P99 TTFT", family="ttft", margin_ratio=0.10, min_requests=662),
    Metric(
        name="p99_ttft_short_ms",
        title="P99 TTFT of short prompts",
        family="ttft",
        margin_ratio=0.10,
        min_requests=1324,
        is_by_name=True,
    ),
    Metric(name="mean_e2e_ms", title="Mean E2E", family="e2e", margin_ratio=0.03),
    Metric(name="p99_e2e_ms", title="P99 E2E", family="e2e", margin_ratio=0.05),
    Metric(name="ready_s", title="Time to ready", unit="s", family="start", margin_ratio=0.25, decimals=1),
    Metric(name="weights_s", title="Time to load weights", unit="s", family="start", margin_ratio=0.25, decimals=1),
    Metric(name="compile_s", title="Time to compile", unit="s", family="start", margin_ratio=0.25, decimals=1),
    Metric(name="capture_s", title="Time to capture graphs", unit="s", family="start", margin_ratio=0.25, decimals=1),
    Metric(name="server_memory_mib", title="Server memory", unit="MiB", family="memory", margin_ratio=0.10, decimals=0),
    Metric(name="gpu_memory_mib", title="GPU memory", unit="MiB", family="memory", margin_ratio=0.05, decimals=0),
    Metric(
        name="idle_server_memory_mib", title="Idle server's memory", unit="MiB", family="memory", margin_ratio=0.10, decimals=0
    ),
    Metric(
        name="idle_gpu_memory_mib", title="Idle server's GPU memory", unit="MiB", family="memory", margin_ratio=0.05, decimals=0
    ),
    *(
        Metric(
            name=name,
            title=f"Growth of {title}",
            unit="x in 10,000 requests",
            better=better,
            family="growth",
            margin_ratio=margin_ratio,
            closed_loop_only=better is Better.HIGHER,
            decimals=4,
            growth_of=growth_of,
        )
        for name, title, better, margin_ratio, growth_of in (
            ("throughput_growth", "output throughput", Better.HIGHER, 0.10, "output_tok_per_s"),
            ("server_memory_growth", "server memory", Better.LOWER, 0.02, "server_memory_mib"),
            ("gpu_memory_growth", "GPU memory", Better.LOWER, 0.02, "gpu_memory_mib"),
        )
    ),
    Metric(name="mean_tpot_ms", title="Mean TPOT", family="itl", margin_ratio=0.03, gates=False),
    Metric(name="max_itl_ms", title="Max ITL", family="tail", margin_ratio=0.25, gates=False),
    Metric(
        name="request_per_s",
        title="Request throughput",
        unit="req/s",
        better=Better.HIGHER,
        family="throughput",
        margin_ratio=0.03,
        gates=False,
        closed_loop_only=True,
    ),
    Metric(
        name="total_tok_per_s",
        title="Total throughput",
        unit="tok/s",
        better=Better.HIGHER,
        family="throughput",
        margin_ratio=0.03,
        gates=False,
        closed_loop_only=True,
        decimals=1,
    ),
    Metric(name="median_ttft_ms", title="Median TTFT", family="ttft", margin_ratio=0.06, gates=False),
    Metric(name="median_e2e_ms", title="Median E2E", family="e2e", margin_ratio=0.03, gates=False),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ROWS}
