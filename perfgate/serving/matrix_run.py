"""Every server of a matrix under every load, one start a round, each window on disk before the next begins."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfgate import __version__
from perfgate.core import Role
from perfgate.engines.table import ENGINES
from perfgate.errors import ClientError, InterruptedRunError, ServerError, TelemetryError
from perfgate.evidence import Answers
from perfgate.machine.fingerprint import read_fingerprint
from perfgate.machine.folder_lock import lock_folder
from perfgate.machine.lock import find_lock_folder, hold_machine
from perfgate.results.answers import store_answers
from perfgate.results.matrix_answers import choose_arm
from perfgate.results.matrix_records import (
    MATRIX_FILE,
    Key,
    MatrixProgress,
    MatrixRecord,
    MatrixWriter,
    read_matrix_progress,
    require_same_matrix,
)
from perfgate.scenario.matrix import Matrix
from perfgate.serving.client import Client, verify_dataset
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.inheritance import inherit, read_steering
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.engine.startup import note_start
from perfgate.serving.equivalence import ask
from perfgate.serving.measure import locate_model, raise_on_signals, require_engine, write_utc
from perfgate.serving.model.gpu_memory import require_memory
from perfgate.serving.model.model_guard import read_config, verify_model
from perfgate.serving.model.served_model import verify_served
from perfgate.serving.progress import Progress
from perfgate.serving.watch.telemetry import Telemetry, find_measured, open_monitor
from perfgate.serving.window import Bench, describe_run, note_other_work
from perfgate.storage.journal import explain_stop
from perfgate.verdict.validity.pairing import WindowRules
from perfgate.verdict.validity.warmth import Watched, explain_cold, is_warm


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRequest:
    """What to measure, and where to write it. `resume` goes on with a matrix that was cut off."""

    matrix: Matrix
    text: str
    folder: Path
    model: Path | None = None
    resume: bool = False


def measure_matrix(request: MatrixRequest, progress: Progress) -> None:
    """Measure what is not settled yet. A server or client that fails is a cell without result; the others go on.

    Raise ModelError, EngineError or InputError before anything starts when nothing could be measured, RunnerError when another
    measurement runs on the same GPUs, EvidenceError when the folder cannot be written or holds another matrix,
    InterruptedRunError when somebody stopped it.
    """
    matrix = request.matrix
    model = locate_model(matrix.model, request.model, progress)
    verify_model(model, matrix.model)
    for load in matrix.loads.values():
        verify_dataset(load)
    scenarios = {name: matrix.build_scenario(name, next(iter(matrix.loads))) for name in matrix.servers}
    launches = {name: ArmSpec().build_launch(scenario, model) for name, scenario in scenarios.items()}
    for name, launch in launches.items():
        verify_served(name, launch.args, model, matrix.model)
    record = build_record(matrix, model)
    for name, scenario in scenarios.items():
        require_memory(scenario, read_config(model), {name: record.servers[name]})
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(lock_folder(request.folder))
        machine = stack.enter_context(hold_machine(find_measured(launches.values()), find_lock_folder()))
        found, writer = open_matrix(request, record, progress)
        telemetry = Telemetry(writer.folder, open_monitor(launches.values()))
        stack.enter_context(raise_on_signals())
        stack.enter_context(telemetry)
        reaper = stack.enter_context(Reaper(lock, *machine))
        MatrixDriver(
            matrix=matrix,
            launches=launches,
            writer=writer,
            telemetry=telemetry,
            reaper=reaper,
            progress=progress,
            settled=found.settled,
            starts=found.starts,
            begun=time.monotonic() - found.elapsed_s,
        ).run()


def build_record(matrix: Matrix, model: Path) -> MatrixRecord:
    """Write down what is fixed before the first window. Raise EngineError where no engine is installed."""
    spec = ArmSpec()
    fingerprint = read_fingerprint(spec.python)
    servers = {}
    for name in matrix.servers:
        scenario = matrix.build_scenario(name, next(iter(matrix.loads)))
        require_engine(scenario, spec, fingerprint.facts)
        servers[name] = spec.build_record(scenario, model, fingerprint, name)
    return MatrixRecord(
        schema=1,
        perfgate=__version__,
        name=matrix.name,
        begun_utc=write_utc(),
        servers=servers,
        model={"path": str(model), "weights": matrix.model.weights},
        inherited=read_steering(inherit()),
    )


def open_matrix(request: MatrixRequest, record: MatrixRecord, progress: Progress) -> tuple[MatrixProgress, MatrixWriter]:
    """Begin the folder, or go on in it: a cell that was cut off is measured anew on a fresh server."""
    if not request.resume or not (request.folder / MATRIX_FILE).exists():
        return MatrixProgress(), MatrixWriter.create(request.folder, record, request.text)
    require_same_matrix(request.folder, record, request.matrix)
    found = read_matrix_progress(request.folder)
    writer = MatrixWriter(request.folder)
    writer.add_event("resumed", found.elapsed_s, utc=write_utc(), superseded=found.cut)
    cut = f"; {len(found.cut)} windows of a cell that was cut off are kept and do not count" if found.cut else ""
    progress.step(f"going on after {len(found.settled)} cells{cut}")
    return found, writer


@dataclass(slots=True, kw_only=True)
class MatrixDriver:
    """The matrix in flight. Its methods read from the top: rounds, starts, cells, windows."""

    matrix: Matrix
    launches: Mapping[str, Launch]
    writer: MatrixWriter
    telemetry: Telemetry
    reaper: Reaper
    progress: Progress
    settled: frozenset[Key] = frozenset()
    starts: int = 0
    begun: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the matrix began, on a clock that cannot go back."""
        return time.monotonic() - self.begun

    @property
    def rules(self) -> WindowRules:
        """What decides which windows count; nothing is stored of a matrix's noise."""
        return WindowRules(tolerance=self.matrix.warmup.steady_ratio, allows_retraction=self.matrix.allow_retraction)

    def run(self) -> None:
        """Measure every cell that is not settled."""
        try:
            for number, server, loads in self.matrix.order():
                left = [load for load in loads if (number, server, load) not in self.settled]
                while left:
                    self.progress.step(f"round {number} of {self.matrix.rounds}, {server}: {', '.join(left)}")
                    left = self._serve(number, server, left)
        except InterruptedRunError as error:
            self.writer.add_event("interrupted", self.elapsed_s, message=str(error))
            raise
        except OSError as error:
            raise explain_stop(self.writer.folder, error) from error
        self.writer.add_event("matrix_ended", self.elapsed_s)

    def _serve(self, number: int, name: str, loads: Sequence[str]) -> list[str]:
        """Let one fresh server meet `loads`; return those behind one that it did not survive, which need another start."""
        met = 0
        try:
            with self._start(number, name) as (server, bench):
                for load in loads:
                    met += 1
                    self._measure_cell((number, name, load), server, bench)
        except (ServerError, ClientError, TelemetryError) as error:
            self.progress.step(f"no result: {error}")
            # A server that never came up will not do so for the next load either.
            for load in loads[met - 1 : met] if met else loads:
                self.writer.add_event("cell_failed", self.elapsed_s, round=number, server=name, load=load, message=str(error))
            return list(loads[met:]) if met else []
        return []

    @contextlib.contextmanager
    def _start(self, number: int, name: str) -> Iterator[tuple[Server, Bench]]:
        """A fresh server that is ready, and a load generator for it whose import went on while it loaded."""
        self.starts += 1
        logs, engine = self.writer.logs, ENGINES[self.matrix.servers[name].engine]
        server = Server(self.launches[name], logs / f"server-{self.starts:02d}-{name}.log", self.reaper)
        client = Client(ArmSpec().python, engine, logs / "client.log", self.reaper)
        with self.telemetry.guard(server), server, client:
            self.writer.add_event("server_started", self.elapsed_s, server=name, start=self.starts, port=server.port)
            server.wait_ready(lambda waited: self.progress.wait(f"{name} loading, {waited:.0f} s"))
            self.telemetry.note_ready()
            note_start(server, self.writer, arm=choose_arm(self.matrix, name), start=self.starts, at_s=self.elapsed_s)
            client.wait_ready_once()
            self._ask(number, name, server)
            yield server, Bench(client=client, telemetry=self.telemetry, read_clock=lambda: self.elapsed_s)
        self.writer.add_event("server_stopped", self.elapsed_s, server=name)

    def _ask(self, number: int, name: str, server: Server) -> None:
        """Keep what a fresh server answers to the fixed prompts: a wrong backend may be as fast as it likes."""
        rules = self.matrix.equivalence
        if rules.enabled:
            self.progress.wait(f"{name}: {rules.prompts} prompts to compare answers")
            body, question = ask(server, rules)
            arm = choose_arm(self.matrix, name)
            store_answers(self.writer.folder, body, Answers(arm=arm, block=number, start=self.starts, question=question))

    def _measure_cell(self, key: Key, server: Server, bench: Bench) -> None:
        """Warm the server up under this load, then take the windows that count: one more for each with other work, once."""
        taken = self._warm(key, server, bench)
        measured = [self._measure((key, taken + turn, Role.MEASURED), server, bench) for turn in range(self.matrix.windows)]
        spoilt = sum(bool(self.rules.describe(telemetry)) for _, telemetry in measured)
        for turn in range(spoilt):
            self._measure((key, taken + self.matrix.windows + turn, Role.RERUN), server, bench)
        number, name, load = key
        self.writer.add_event("cell_ended", self.elapsed_s, round=number, server=name, load=load)

    def _warm(self, key: Key, server: Server, bench: Bench) -> int:
        """Discard windows until the next one can count; return how many. Raise ServerError when it never can."""
        watched: list[Watched] = []
        for index in range(self.matrix.warmup.max_discards):
            watched.append(self._measure((key, index, Role.WARMUP), server, bench))
            if is_warm(watched, self.rules):
                return index + 1
        raise ServerError(explain_cold(watched, self.rules))

    def _measure(self, window: tuple[Key, int, Role], server: Server, bench: Bench) -> Watched:
        """One window: load, store, tell."""
        (number, name, load), index, role = window
        self.progress.wait(f"{name} x {load} window {index} ({role.value})")
        place = {"round": number, "server": name, "load": load, "start": self.starts, "index": index, "role": role}
        taken = bench.take(server, self.matrix.loads[load], place)
        note_other_work(self.writer, self.elapsed_s, place, taken)
        run = taken.read(self.writer.add_window(taken.raw, **place, **taken.facts))
        self.progress.step(describe_run(f"{name} x {load}", role.value, run, taken))
        return run, taken.watch.readings
