"""A scenario file says what is served, how it is loaded and what may fail a pull request; this module reads and checks it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool

from perfgate.engines.arguments import read_layout
from perfgate.engines.table import ENGINES, find_backend
from perfgate.metrics import METRICS
from perfgate.scenario.injections import require_response
from perfgate.scenario.load import Load, Positive, Seconds
from perfgate.scenario.safeguards import Deviation, Equivalence, Expect
from perfgate.scenario.toml import name_unknown, parse_toml
from perfgate.storage.schema import STRICT, adapt

NAME = r"[a-z0-9]+(?:[._-][a-z0-9]+)*"
"""What a scenario or a machine may be called, here and on GitHub: the name becomes a file's, a folder's and a status's, so
it has no slash and no two dots in a row."""

Name = Annotated[str, Field(pattern=f"^{NAME}$", max_length=64)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


def _refuse_percent(ratio: float) -> float:
    """A whole number was meant as a percent."""
    if ratio >= 1:
        raise ValueError(f"must be a ratio below 1, not {ratio:g}; write 5 % as 0.05")
    return ratio


Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True), AfterValidator(_refuse_percent)]

if TYPE_CHECKING:
    EngineName = str
else:
    # A new row of the table of engines is a name that a scenario may use.
    EngineName = Literal[tuple(ENGINES)]

# A misspelt key must not silently become a default.
_LOOKS = re.compile(r"^looks\s*=\s*\[[^\]]*\]", re.MULTILINE)
_BLOCKS = re.compile(r"^\[blocks\][^\n]*", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Which model must be served. Every field given is checked against the served config before any window.

    `path` is a folder, a hub id, or `generated:NAME` for a model that perfgate makes itself. `weights` is "random" when the
    numbers in it were drawn, so that its answers are not mistaken for the model's, and "routed" when they were drawn so that
    its router chooses by token and by layer. The digests, twelve hex digits as `perfgate model verify` prints them, pin one
    config and one set of weights.
    """

    path: str
    architecture: str
    experts: Positive
    top_k: Positive
    layers: Positive
    quantization: str = "none"
    weights: Literal["random", "routed", "checkpoint"] = "checkpoint"
    config_digest: Digest | None = None
    weights_digest: Digest | None = None
    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the server under test is started and how long it may take.

    `min_gpu_memory_gib` says which cards the scenario is offered for: those with as much memory as NVML counts, or more.
    """

    engine: EngineName
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    min_gpu_memory_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    ready_timeout_s: Seconds = 600.0
    stop_timeout_s: Seconds = 30.0
    __pydantic_config__ = STRICT

    @property
    def gpus(self) -> int:
        """How many GPUs one server takes, as its arguments say; 0 where its engine uses none."""
        return read_layout(self.args).gpus if ENGINES[self.engine].uses_gpu else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """How long a fresh server is driven before its windows count.

    The first window of a start is always discarded; then two successive windows must agree within `steady_ratio` on throughput
    and mean ITL, the second without a kernel that was compiled in it. At most `max_discards` are discarded that only served;
    those in which the server did other work come beside them, up to as many again. Of the windows that follow, as many may be
    measured again for other work.
    """

    max_discards: Positive = 4
    steady_ratio: Deviation = 0.03
    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """How many fresh-server comparisons are made and when they are looked at; fixed before the first one.

    `windows` is measured windows per start. `looks` are the block counts after which the rule may stop. `resident` says whether
    both servers of a block live at the same time and take turns window by window, or one after the other. Calibration measures
    `calibration_blocks` A/A blocks and the response to each of `calibration_injections` (such as step:1.0); `calibrate_first`
    lets the gate do that by itself on a machine without noise bands.
    """

    windows: Annotated[int, Field(ge=1, strict=True)] = 3
    looks: tuple[Annotated[int, Field(ge=2, strict=True)], ...] = (2, 3, 4, 6)
    calibration_blocks: Annotated[int, Field(ge=2, strict=True)] = 20
    calibration_injections: tuple[Annotated[str, AfterValidator(require_response)], ...] = ()
    calibrate_first: StrictBool = False
    resident: Literal["both", "one"] = "one"
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        """Looks that do not grow would test the same evidence twice."""
        if not self.looks or list(self.looks) != sorted(set(self.looks)):
            raise ValueError("looks: must be increasing block counts, for example [2, 3, 4, 6]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What one metric may lose. `advisory` shows a metric without letting it fail anything."""

    margin: Ratio | None = None
    advisory: StrictBool = False
    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One measurement that a pull request has to pass. `allow_retraction` is for one whose point is a full token pool."""

    schema: Literal[1]
    name: Name
    title: str
    model: Model
    server: ServerOptions
    load: Load
    gates: Mapping[str, Gate]
    warmup: Warmup = field(default_factory=Warmup)
    blocks: Blocks = field(default_factory=Blocks)
    equivalence: Equivalence = field(default_factory=Equivalence)
    expect: Expect = field(default_factory=Expect)
    alpha: Annotated[float, Field(gt=0, le=0.05, strict=True)] = 0.01
    budget_minutes: Seconds = 30.0
    allow_retraction: StrictBool = False
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        """A gate on a metric that does not exist would never fail."""
        if not self.gates:
            raise ValueError("gates: is empty; name at least one metric")
        if unknown := name_unknown(self.gates, METRICS, "gates", "metric"):
            raise ValueError(unknown)
        for name in self.gates:
            if self.blocks.windows < (needed := METRICS[name].min_windows):
                raise ValueError(f"gates.{name}: needs {needed} windows per start, and blocks.windows is {self.blocks.windows}")
        wanted = ENGINES[self.server.engine].backend
        if find_backend(self.load.backend) != wanted:
            raise ValueError(f"load.backend: {self.load.backend} is not for {self.server.engine}; write {wanted}")
        if self.load.keep_cache and ENGINES[self.server.engine].flush_path is None:
            raise ValueError(f"load.keep_cache: {self.server.engine} is served without a prefix cache; leave it out")
        # Two in a row have to agree, and one more is discarded where questions empty a cache that windows keep.
        if self.warmup.max_discards < (fewest := 2 + self.load.keep_cache):
            raise ValueError(f"warmup.max_discards: is {self.warmup.max_discards}; no start is warm before {fewest}: raise it")

    @property
    def workload_hash(self) -> str:
        """Twelve hex digits over everything that must be equal for two measurements to be comparable.

        That is the model, the load and the server's own arguments; gates, looks and margins change the judgement, not the work.
        """
        facts = adapt(Scenario).dump_python(self, mode="json", include={"model", "server"})
        for limit in ("ready_timeout_s", "stop_timeout_s", "min_gpu_memory_gib"):
            facts["server"].pop(limit)
        # Absent, they say no more than the scenarios did that were written before there were any.
        facts["model"] = {key: value for key, value in facts["model"].items() if value is not None}
        facts["load"] = self.load.identify()
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    def margin_ratio(self, metric: str) -> float:
        """The practical margin Delta of `metric`: the scenario's, else the metric's own."""
        gate = self.gates.get(metric)
        return gate.margin if gate is not None and gate.margin is not None else METRICS[metric].margin_ratio


def replace_looks(text: str, blocks: int) -> str:
    """The text of a scenario whose one look comes after `blocks`, all else as it was."""
    looks = f"looks = [{blocks}]"
    if _LOOKS.search(text):
        return _LOOKS.sub(looks, text, count=1)
    if _BLOCKS.search(text):
        return _BLOCKS.sub(lambda found: f"{found[0]}\n{looks}", text, count=1)
    return f"{text.rstrip()}\n\n[blocks]\n{looks}\n"


def parse_scenario(text: str, source: str) -> Scenario:
    """Turn TOML text into a Scenario. `source` names the text in errors. Raise ScenarioError with line and key."""
    return parse_toml(text, source, Scenario)
