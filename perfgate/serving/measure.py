"""From a scenario and two arms to a result folder: verify the model, read the environment, run the session, leave nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Literal

from perfgate import __version__
from perfgate.core import Arm
from perfgate.environment import read_fingerprint
from perfgate.errors import EngineError, InterruptedRunError, ModelError, TelemetryError
from perfgate.evidence.results import ResultWriter, SessionRecord
from perfgate.scenario import Scenario
from perfgate.serving.arms import ArmSpec
from perfgate.serving.client import Client
from perfgate.serving.engines import ENGINES
from perfgate.serving.interruption import INTERRUPTION
from perfgate.serving.model_guard import verify_model
from perfgate.serving.progress import Progress
from perfgate.serving.reaper import Reaper
from perfgate.serving.session import Driver, Plan
from perfgate.serving.telemetry import Telemetry, describe_monitor, open_monitor
from perfgate.serving.tiny_model import write_tiny_model
from perfgate.state import find_state_dir

GENERATED = "generated:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure, and where to write it.

    `is_decided` is asked after each look, with the folder as it then stands. `fix_noise` is asked once, before the first
    window, for the stored deviations of a window by metric: the verdict will know a stalled one by them. `model` is the model's
    folder on this machine where it is not the scenario's path.
    """

    scenario: Scenario
    scenario_text: str
    arms: Mapping[Arm, ArmSpec]
    folder: Path
    purpose: Literal["ab", "calibration"]
    looks: tuple[int, ...]
    is_decided: Callable[[Path], bool]
    fix_noise: Callable[[Path], Mapping[str, float]] = lambda _: {}
    model: Path | None = None
    notes: tuple[str, ...] = ()


def measure(request: Request, progress: Progress) -> None:
    """Measure `request` into its folder.

    A wrong model, a server that dies or a load generator that fails does not raise: it is evidence, stands in the folder, and
    makes the verdict INVALID. Raise EngineError when an arm cannot serve at all, InterruptedRunError when somebody stopped it.
    """
    scenario = request.scenario
    model = prepare_model(request, progress)
    fingerprints = {arm: read_fingerprint(spec.python) for arm, spec in request.arms.items()}
    for arm, fingerprint in fingerprints.items():
        require_engine(scenario, request.arms[arm], fingerprint.facts)
    labels = {arm: describe_arm(spec) for arm, spec in request.arms.items()}
    record = SessionRecord(
        schema=1,
        perfgate=__version__,
        scenario=scenario.name,
        workload_hash=scenario.workload_hash,
        purpose=request.purpose,
        begun_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        arms={arm: spec.build_record(scenario, model, fingerprints[arm], labels[arm]) for arm, spec in request.arms.items()},
        model={"path": str(model), "weights": scenario.model.weights},
        notes=request.notes,
    )
    writer = ResultWriter(request.folder, record, request.scenario_text)
    noise = request.fix_noise(request.folder)
    if not is_model_right(scenario, model, writer):
        return
    plan = Plan(
        scenario=scenario,
        launches={arm: spec.build_launch(scenario, model) for arm, spec in request.arms.items()},
        looks=request.looks,
        is_decided=lambda: request.is_decided(request.folder),
        noise=noise,
    )
    telemetry = open_telemetry(plan, writer)
    if telemetry is None:
        return
    with ExitStack() as stack:
        stack.enter_context(raise_on_signals())
        stack.enter_context(telemetry)
        reaper = Reaper()
        stack.callback(reaper.close)
        client = stack.enter_context(
            Client(request.arms[Arm.BASE].python, ENGINES[scenario.server.engine], writer.logs / "client.log", reaper)
        )
        Driver(plan=plan, writer=writer, client=client, reaper=reaper, progress=progress, telemetry=telemetry).run()


def prepare_model(request: Request, progress: Progress) -> Path:
    """Return the model's folder: the one given, else the scenario's, generated first where the scenario says so."""
    scenario = request.scenario
    if request.model is not None:
        return request.model
    if not scenario.model.path.startswith(GENERATED):
        return Path(scenario.model.path)
    name = scenario.model.path.removeprefix(GENERATED)
    folder = find_state_dir() / "models" / name
    if not folder.exists():
        progress.step(f"generating {name} with random weights in {folder}")
    return write_tiny_model(folder, name)


def is_model_right(scenario: Scenario, model: Path, writer: ResultWriter) -> bool:
    """Check the model before anything is started; a refusal is evidence and goes into the folder."""
    try:
        verify_model(model, scenario.model)
    except ModelError as error:
        writer.add_problem(str(error), 0.0)
        writer.add_event("session_ended", 0.0)
        return False
    return True


def open_telemetry(plan: Plan, writer: ResultWriter) -> Telemetry | None:
    """Open what watches the machine; a driver that does not answer is evidence and goes into the folder."""
    try:
        monitor = open_monitor(plan.launches.values())
    except TelemetryError as error:
        writer.add_problem(str(error), 0.0)
        writer.add_event("session_ended", 0.0)
        return None
    writer.add_event("telemetry", 0.0, message=describe_monitor(monitor))
    return Telemetry(writer.folder, monitor)


def require_engine(scenario: Scenario, spec: ArmSpec, facts: Mapping[str, str]) -> None:
    """Raise EngineError when the arm's Python has no serving engine, with the command that installs it."""
    package = ENGINES[scenario.server.engine].package
    if package not in facts or facts[package] == "absent":
        raise EngineError(f"{spec.python}: {package} is not installed there; run `perfgate engine install` or give --python")


def describe_arm(spec: ArmSpec) -> str:
    """Say in a few words what is special about an arm."""
    parts = [*(f"{name}={value}" for name, value in sorted(spec.env.items())), *spec.args]
    return " ".join(parts) or "as installed"


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and a closed terminal into InterruptedRunError, once: what cleans up after it is left alone."""
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, _frame: FrameType | None) -> None:
        for name in names:
            signal.signal(name, signal.SIG_IGN)
        cause = signal.Signals(number).name
        INTERRUPTION.interrupt(InterruptedRunError(f"stopped by {cause}; what was measured stays in the result folder"))

    before = {name: signal.signal(name, stop) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def name_folder(scenario: str, parent: Path) -> Path:
    """Choose a new result folder by scenario and time; a second run within the second gets a number."""
    stem = f"{scenario}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (parent / (stem if number == 1 else f"{stem}-{number}") for number in range(1, 1000))
    return next(path for path in candidates if not path.exists())
