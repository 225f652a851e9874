"""What one window sends: how many requests, of which lengths, how fast, and from which data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated, Any

from pydantic import Field, StrictBool

from perfgate.storage.schema import STRICT

# Strict: in a file that says what to measure, true is no number and "48" no count.
Positive = Annotated[int, Field(gt=0, strict=True)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]

# Bench_serving downloads them when it is not told where they lie, and a gate measures no download.
FROM_FILE = ("random", "sharegpt", "custom", "trace")
# Fields that came after baselines had been stored: at their default they stand for what was done before, so they are no
# difference.
_LATER = ("dataset_sha256", "args", "warmup_requests", "keep_cache", "trace_from_s", "trace_slowdown")
# What says how a window is read, or where, and not what it sends.
_NO_WORK = ("timeout_s", "dataset_path", "answer_form")
# What perfgate says to bench_serving by itself, and the field that says it.
_OWN_OPTIONS: Mapping[str, str] = {
    "--backend": "backend",
    "--base-url": "",
    "--host": "",
    "--port": "",
    "--model": "",
    "--dataset-name": "dataset",
    "--dataset-path": "dataset_path",
    "--num-prompts": "num_prompts",
    "--random-input-len": "input_len",
    "--random-output-len": "output_len",
    "--sharegpt-output-len": "output_len",
    "--random-range-ratio": "range_ratio",
    "--request-rate": "request_rate",
    "--max-concurrency": "max_concurrency",
    "--warmup-requests": "warmup_requests",
    "--seed": "seed",
    "--use-trace-timestamps": "dataset",
    "--mooncake-slowdown-factor": "trace_slowdown",
    "--output-file": "",
    "--output-details": "",
    "--disable-tqdm": "",
    # These would measure something else than what the window says.
    "--flush-cache": "",
    "--disable-stream": "",
    "--profile": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one window sends.

    `request_rate` is requests per second, or inf for a closed loop bounded by `max_concurrency`. Lengths are those of random
    prompts; a data set has its own, and `output_len` may replace the lengths of ShareGPT's answers. `dataset_sha256` is the
    digest of the file at `dataset_path`: the same data anywhere is the same work. `args` are further arguments of the load
    generator, which sends `warmup_requests` requests before it measures. `keep_cache` leaves the prefix cache as the window
    before left it. `answer_form` is a regular expression that each answer must match as a whole. Data set `trace` is sent at
    its own times, from `trace_from_s` after its first request on, with all times multiplied by `trace_slowdown`.
    """

    num_prompts: Positive
    input_len: Positive | None = None
    output_len: Annotated[int, Field(gt=1, strict=True)] | None = None
    max_concurrency: Positive
    backend: str = "sglang"
    dataset: str = "random-ids"
    dataset_path: str = ""
    dataset_sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    range_ratio: Annotated[float, Field(ge=0, le=1, strict=True)] = 1.0
    request_rate: Annotated[float, Field(gt=0, strict=True)] = float("inf")
    seed: Annotated[int, Field(ge=0, strict=True)] = 1
    warmup_requests: Annotated[int, Field(ge=0, strict=True)] = 1
    args: tuple[str, ...] = ()
    keep_cache: StrictBool = False
    answer_form: str = ""
    trace_from_s: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = 0.0
    trace_slowdown: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] = 1.0
    timeout_s: Seconds = 300.0
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        """A length, a file or an argument that would be ignored measures something else than the file says."""
        if self.is_random:
            for name in ("input_len", "output_len"):
                if getattr(self, name) is None:
                    raise ValueError(f"{name}: is missing; random prompts need it")
        elif self.input_len is not None or (self.output_len is not None and self.dataset != "sharegpt"):
            name = "input_len" if self.input_len is not None else "output_len"
            raise ValueError(f"{name}: data set {self.dataset} has its own lengths; leave it out")
        if self.dataset in FROM_FILE and not self.dataset_path:
            raise ValueError(f"dataset_path: is missing; data set {self.dataset} is read from a file")
        if bool(self.dataset_path) != bool(self.dataset_sha256):
            raise ValueError("dataset_sha256: goes with dataset_path; write there what `sha256sum FILE` prints")
        self._check_times()
        try:
            re.compile(self.answer_form)
        except re.error as error:
            raise ValueError(f"answer_form: {self.answer_form!r} is no regular expression ({error})") from None
        for option in (argument.partition("=")[0] for argument in self.args):
            if option in _OWN_OPTIONS:
                where = f"say it by load.{_OWN_OPTIONS[option]}" if _OWN_OPTIONS[option] else "leave it out"
                raise ValueError(f"args: {option} is perfgate's own; {where}")

    def _check_times(self) -> None:
        """A trace's times are what it is replayed for: nothing else may say when a request is sent, or hold one back."""
        if self.dataset == "mooncake":
            raise ValueError("dataset: bench_serving's mooncake gives a trace's prompts other lengths; write trace")
        if not self.is_trace:
            if (self.trace_from_s, self.trace_slowdown) != (0.0, 1.0):
                name = "trace_from_s" if self.trace_from_s else "trace_slowdown"
                raise ValueError(f'{name}: is for dataset = "trace"; leave it out')
        elif self.request_rate != float("inf"):
            raise ValueError("request_rate: a trace has its own times; leave it out, or scale them by trace_slowdown")
        elif self.max_concurrency < self.num_prompts:
            raise ValueError(
                f"max_concurrency: is below num_prompts, so that a request of the trace could wait past its time; "
                f"write {self.num_prompts}"
            )
        elif "chat" in self.backend:
            raise ValueError(f"backend: {self.backend} takes text, and a trace's prompts are token ids; write another")

    @property
    def is_closed_loop(self) -> bool:
        """True when throughput answers the server and not the load generator."""
        return self.request_rate == float("inf") and not self.is_trace

    @property
    def is_trace(self) -> bool:
        """True when requests are sent at the times of a trace."""
        return self.dataset == "trace"

    @property
    def is_random(self) -> bool:
        """True when prompts are made of random tokens, or of text cut to random lengths."""
        return self.dataset.startswith("random")

    def identify(self) -> dict[str, Any]:
        """The facts by which two loads are the same work: not the time limit, the data's place, or the answers' form."""
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        facts = {name: value for name, value in asdict(self).items() if name not in _NO_WORK}
        facts = {name: value for name, value in facts.items() if name not in _LATER or value != defaults[name]}
        return {**facts, "request_rate": str(self.request_rate)}
