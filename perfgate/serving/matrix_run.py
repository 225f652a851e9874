"""Every server of a matrix under every load, one start a round, each window on disk before the next begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfgate.core import Role
from perfgate.engines.table import ENGINES
from perfgate.errors import ClientError, InterruptedRunError, ServerError, TelemetryError
from perfgate.machine.fingerprint import read_build, read_fingerprint
from perfgate.machine.folder_lock import lock_folder
from perfgate.machine.lock import find_lock_folder, hold_machine
from perfgate.results.folders import Progressed, require_same
from perfgate.results.matrix import (
    MATRIX_FILE,
    MATRIX_LAYOUT,
    Key,
    MatrixRecord,
    read_matrix,
    read_matrix_record,
    read_settled,
)
from perfgate.results.writer import ResultWriter
from perfgate.scenario.matrix import Matrix
from perfgate.serving.client import Client, verify_dataset
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.engine_facts import verify_facts
from perfgate.serving.engine.inheritance import inherit, read_steering
from perfgate.serving.engine.launch import Launch
from perfgate.serving.measure import open_drive, require_engine
from perfgate.serving.model.gpu_memory import require_memory
from perfgate.serving.model.location import locate_model
from perfgate.serving.model.model_guard import read_config, verify_model
from perfgate.serving.model.served_model import verify_served
from perfgate.serving.progress import Progress
from perfgate.serving.starts import Start, StartDriver
from perfgate.serving.watch.telemetry import Telemetry, find_measured, open_monitor, require_gpu
from perfgate.storage.journal import explain_stop, write_utc


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRequest:
    """What to measure, and where to write it. `resume` goes on with a matrix that was cut off.

    `caches` is a folder of compile caches that all its servers share, one after another.
    """

    matrix: Matrix
    text: str
    folder: Path
    model: Path | None = None
    resume: bool = False
    caches: Path | None = None


def measure_matrix(request: MatrixRequest, progress: Progress) -> None:
    """Measure what is not settled yet. A server or client that fails is a cell without result; the others go on.

    Raise ModelError, EngineError or InputError before anything starts when nothing could be measured, RunnerError when another
    measurement runs on the same GPUs, EvidenceError when the folder cannot be written or holds another matrix,
    InterruptedRunError when a signal stopped it.
    """
    matrix = request.matrix
    scenarios = {name: matrix.build_scenario(name, next(iter(matrix.loads))) for name in matrix.servers}
    for scenario in scenarios.values():
        require_gpu(scenario)
    model = locate_model(matrix.model, request.model, progress)
    verify_model(model, matrix.model)
    for load in matrix.loads.values():
        verify_dataset(load)
    launches = {name: ArmSpec(caches=request.caches).build_launch(scenario, model) for name, scenario in scenarios.items()}
    for name, launch in launches.items():
        verify_served(name, launch.args, model, matrix.model)
    record = build_record(matrix, model)
    for name, scenario in scenarios.items():
        require_memory(scenario, read_config(model), {name: record.servers[name]})
    python = ArmSpec().python
    told = (verify_facts(scenario, [(record.servers[name], python)]) for name, scenario in scenarios.items())
    for line in dict.fromkeys(line for lines in told for line in lines):
        progress.step(line)
    measured = find_measured(launches.values())
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(lock_folder(request.folder))
        machine = stack.enter_context(hold_machine(measured, find_lock_folder()))
        settled, found, writer = open_matrix(request, record, progress)
        telemetry = Telemetry(writer.folder, open_monitor(launches.values()))
        drive = stack.enter_context(open_drive(writer, telemetry, (lock, *machine), progress))
        drive.go_on(found.elapsed_s, found.starts)
        MatrixDriver(matrix=matrix, launches=launches, drive=drive, settled=settled).run()


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
        perfgate=read_build(),
        name=matrix.name,
        begun_utc=write_utc(),
        servers=servers,
        model={"path": str(model), "weights": matrix.model.weights},
        inherited=read_steering(inherit()),
    )


def open_matrix(
    request: MatrixRequest, record: MatrixRecord, progress: Progress
) -> tuple[frozenset[Key], Progressed, ResultWriter]:
    """Begin the folder, or go on in it: a cell that was cut off is measured anew on a fresh server."""
    if not request.resume or not (request.folder / MATRIX_FILE).exists():
        return frozenset(), Progressed(), ResultWriter.create(request.folder, record, request.text, MATRIX_LAYOUT)
    folder = request.folder
    require_same(folder, (read_matrix_record(folder), record), (read_matrix(folder), request.matrix))
    settled, found = read_settled(folder)
    writer = ResultWriter(folder, MATRIX_LAYOUT)
    writer.add_event("resumed", found.elapsed_s, utc=write_utc(), superseded=found.cut, unindexed=found.unindexed)
    cut = f"; {len(found.cut)} windows of a cell that was cut off are kept and do not count" if found.cut else ""
    progress.step(f"continuing after {len(settled)} cells{cut}")
    return settled, found, writer


@dataclass(slots=True, kw_only=True)
class MatrixDriver:
    """The matrix in flight: a session of as many arms as servers. Its methods read from the top: rounds, starts, cells.

    Each start goes the way of a session's: warm, its routing shown in the first round, asked, measured, measured again.
    `settled` are cells that need no measuring, `shown` the start of each server whose routing was shown.
    """

    matrix: Matrix
    launches: Mapping[str, Launch]
    drive: StartDriver
    settled: frozenset[Key] = frozenset()
    shown: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Measure every cell that is not settled."""
        try:
            for number, server, loads in self.matrix.order():
                left = [load for load in loads if (number, server, load) not in self.settled]
                while left:
                    self.drive.progress.step(f"round {number} of {self.matrix.rounds}, {server}: {', '.join(left)}")
                    left = self._serve(number, server, left)
        except InterruptedRunError as error:
            self.drive.note("interrupted", message=str(error))
            raise
        except OSError as error:
            raise explain_stop(self.drive.writer.folder, error) from error
        self.drive.note("matrix_ended")

    def _serve(self, number: int, name: str, loads: Sequence[str]) -> list[str]:
        """Let one fresh server meet `loads`; return those behind one that it did not survive, which need another start."""
        met = 0
        try:
            with self._start(number, name, loads[0]) as (start, client):
                for load in loads:
                    met += 1
                    self._measure_cell(start, client, load, is_first=met == 1)
        except (ServerError, ClientError, TelemetryError) as error:
            self.drive.progress.step(f"no result: {error}")
            # A server that never came up will not do so for the next load either.
            for load in loads[met - 1 : met] if met else loads:
                self.drive.note("cell_failed", round=number, server=name, load=load, message=str(error))
            return list(loads[met:]) if met else []
        return []

    @contextlib.contextmanager
    def _start(self, number: int, name: str, load: str) -> Iterator[tuple[Start, Client]]:
        """A fresh server that is ready, and a load generator for it whose import went on while it loaded."""
        engine, drive = ENGINES[self.matrix.servers[name].engine], self.drive
        client = Client(ArmSpec().python, engine, drive.writer.logs / "client.log", drive.reaper)
        with drive.open_server(self.launches[name], name, {"server": name}) as server, client:
            server.wait_ready(lambda waited: drive.progress.wait(f"{name} loading, {waited:.0f} s"))
            start = Start(
                name=name,
                arm=self.matrix.choose_arm(name),
                block=number,
                number=drive.starts,
                server=server,
                scenario=self.matrix.build_scenario(name, load),
                facts={"server": name},
                place={},
            )
            drive.note_ready(start)
            client.wait_ready_once()
            yield start, client

    def _measure_cell(self, start: Start, client: Client, load: str, *, is_first: bool) -> None:
        """Warm the server up under a load, and take the windows that count; ask it what it is asked once, when it is warm."""
        name, drive = start.facts["server"], self.drive
        start.meet(
            f"{name} x {load}",
            self.matrix.build_scenario(name, load),
            {"round": start.block, "server": name, "load": load, "start": start.number},
        )
        drive.warm(start, client)
        if is_first:
            self._show_routing(start)
            drive.freeze(start)
            drive.ask(start)
            drive.refill(start, client)
        for _ in range(self.matrix.windows):
            drive.measure(start, client, Role.MEASURED)
        drive.measure_again(start, client)
        drive.note("cell_ended", round=start.block, server=name, load=load)

    def _show_routing(self, start: Start) -> None:
        """Keep which experts a server chooses, in its first start that gets warm; it is held against the first server's.

        After a break, and in later rounds, a start may begin with any load: the prompts are those of the largest one always.
        """
        name = start.facts["server"]
        if name not in self.shown:
            self.shown[name] = start.number
            largest = max(load.max_concurrency for load in self.matrix.loads.values())
            self.drive.probe(start, largest, [self.shown[base] for base in self.matrix.list_bases() if base in self.shown])
