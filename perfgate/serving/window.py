"""One window: a cache that is emptied or kept, a load, a watched machine, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfgate.core import Arm, Run
from perfgate.errors import ClientError, EvidenceError, InterruptedRunError
from perfgate.readers.bench_serving import count_malformed, read_window
from perfgate.results.readings import ANSWERS_MALFORMED
from perfgate.results.writer import ResultWriter
from perfgate.scenario.load import Load
from perfgate.scenario.safeguards import Expect, Gsm8k
from perfgate.scenario.schema import Scenario
from perfgate.serving.client import Client
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.server import END_S, Server, read_lines
from perfgate.serving.watch.telemetry import Telemetry, Watch
from perfgate.verdict.validity.same_work import describe_other_work

OTHER_WORK = "other_work"
MAX_NAMED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A window's raw output, and the facts of its index line that were measured: times and telemetry."""

    raw: bytes
    facts: Mapping[str, Any]
    watch: Watch

    def read(self, file: Path) -> Run:
        """Read the window back from where it was stored, for what cannot be trusted is evidence, too.

        Raise ClientError for what is no result, TelemetryError for a window that was not watched.
        """
        try:
            run = read_window(file)
        except EvidenceError as error:
            raise ClientError(f"the load generator's output is no result: {error}") from None
        self.watch.require_complete()
        return run

    @property
    def other_work(self) -> str:
        """What the server did in it besides serving, such as "compiled 3 kernels"; empty for nothing."""
        return describe_other_work(self.facts["telemetry"])

    @property
    def wall_s(self) -> float:
        """How long it took."""
        return float(self.facts["ended_s"] - self.facts["begun_s"])


def note_other_work(writer: ResultWriter, at_s: float, place: Mapping[str, Any], taken: Taken) -> None:
    """Write down what the server did in the window at `place` besides serving, with the names of what was compiled."""
    if taken.other_work:
        compiled = taken.watch.compiled[:MAX_NAMED]
        writer.add_event(OTHER_WORK, at_s, **place, told=taken.other_work, compiled=list(compiled))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What takes windows: the load generator, what watches the machine, and the clock that the folder's times are read from."""

    client: Client
    telemetry: Telemetry
    read_clock: Callable[[], float]

    def take(self, server: Server, load: Load, place: Mapping[str, Any]) -> Taken:
        """Drive `server` by `load` once; `place` names the window. Raise ClientError or ServerError when there is no result."""
        known = server.log_bytes
        if not load.keep_cache:
            server.flush_cache()
        with self.telemetry.watch(server, place) as watch:
            begun_s = self.read_clock()
            try:
                raw = self.client.measure(load, server.launch.model, server.url)
            except (ClientError, InterruptedRunError) as error:
                # Else the servers, told to end, would go on serving a load whose results are not wanted any more.
                self.client.stop()
                if isinstance(error, InterruptedRunError):
                    raise
                # A server that died broke the connection: the cause stands in its log, not in the load generator's.
                server.raise_if_dead(END_S)
                raise explain_error(error, server, known) from error
            ended_s = self.read_clock()
        server.raise_if_dead()
        if load.answer_form and (malformed := count_malformed(raw, load.answer_form)) is not None:
            watch.readings[ANSWERS_MALFORMED] = float(malformed)
        times = {"begun_s": round(begun_s, 6), "ended_s": round(ended_s, 6)}
        return Taken(raw=raw, facts={**times, "telemetry": watch.readings}, watch=watch)


def explain_error(error: ClientError, server: Server, known: Mapping[Path, int]) -> ClientError:
    """Add what a living server's logs say of a fault behind their first bytes, which were `known`: that may be the cause."""
    lines = (line for log, size in known.items() for line in read_lines(log, size))
    telling = [line.strip()[:200] for line in lines if any(word in line for word in server.launch.engine.fault_words)]
    return ClientError(f"{error}; the server says: {' | '.join(telling[-3:])}") if telling else error


def describe_run(name: str, role: str, run: Run, taken: Taken) -> str:
    """Summarise in one line the result of a window, and what its server did besides serving."""
    work = f", {taken.other_work}" if taken.other_work else ""
    throughput, p99 = (run.values.get(metric, float("nan")) for metric in ("output_tok_per_s", "p99_itl_ms"))
    return f"  {name:9} {role:8} {throughput:8.1f} tok/s   P99 ITL {p99:7.2f} ms   ({taken.wall_s:.1f} s){work}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a session will do, fixed before it begins. `is_decided` is asked after each look and may end it early.

    `noise` holds the stored deviations of a window by metric, those that the judge will hold stalled windows against. `expect`
    is what must be seen of the candidate; `is_profiled` keeps a profile of both arms even where nothing is expected. `gsm8k`
    says what both arms are asked in the first block, if anything.
    """

    scenario: Scenario
    launches: Mapping[Arm, Launch]
    looks: tuple[int, ...]
    is_decided: Callable[[], bool]
    noise: Mapping[str, float] = field(default_factory=dict)
    expect: Expect = field(default_factory=Expect)
    is_profiled: bool = False
    gsm8k: Gsm8k | None = None

    @property
    def gpus(self) -> int:
        """How many GPUs the session holds: both arms live on the same ones; 0 on a CPU."""
        return max(len(launch.devices) for launch in self.launches.values())

    def is_spent(self, elapsed_s: float) -> bool:
        """Whether the scenario's budget is spent by the time of the clock, which is spent on every GPU that is held."""
        return elapsed_s * max(1, self.gpus) > self.scenario.budget_minutes * 60


def order_arms(block: int) -> tuple[Arm, Arm]:
    """Who goes first in a block: base in odd blocks, candidate in even ones, so that drift cancels (ABBA)."""
    return (Arm.BASE, Arm.CANDIDATE) if block % 2 else (Arm.CANDIDATE, Arm.BASE)
