"""From a scenario and two arms to a result folder: verify the model, read the environment, run the session, leave nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Literal

from perfgate.core import Arm
from perfgate.engines.table import ENGINES
from perfgate.errors import EngineError, InterruptedRunError, ModelError, PerfgateError, TelemetryError
from perfgate.machine.fingerprint import read_build, read_fingerprint
from perfgate.machine.folder_lock import lock_folder
from perfgate.machine.lock import find_lock_folder, hold_machine
from perfgate.results.folders import Progressed, read_progressed, require_same
from perfgate.results.records import SCENARIO_FILE, SESSION_FILE, SessionRecord, read_record, require_text
from perfgate.results.writer import ResultWriter
from perfgate.scenario.safeguards import Expect
from perfgate.scenario.schema import Scenario, parse_scenario
from perfgate.serving.client import Client, verify_files
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.engine_facts import verify_facts
from perfgate.serving.engine.inheritance import inherit, read_steering, require_apart
from perfgate.serving.engine.reaper import INTERRUPTION, Reaper
from perfgate.serving.model.gpu_memory import require_memory
from perfgate.serving.model.location import locate_model
from perfgate.serving.model.model_guard import read_config, verify_model
from perfgate.serving.model.served_model import describe_model, verify_served
from perfgate.serving.progress import Progress
from perfgate.serving.proof import describe_expect, find_expect
from perfgate.serving.session import Driver
from perfgate.serving.starts import StartDriver
from perfgate.serving.watch.telemetry import Telemetry, describe_monitor, find_measured, open_monitor, require_gpu
from perfgate.serving.window import Plan
from perfgate.storage.journal import write_utc
from perfgate.verdict.policy import RULE
from perfgate.verdict.validity.kernel_proof import check_kernels
from perfgate_moe.proof.values import KernelProof


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure, and where to write it.

    `is_decided` is asked after each look, with the folder as it then stands. `fix_noise` is asked once, before the first
    window, for the stored deviations of a window by metric: the verdict will know a stalled one by them. `model` is the model's
    folder on this machine where it is not the scenario's path. `resume` goes on with a session that was cut off. `expect` is
    what must be seen of the candidate besides what the scenario says; where both say nothing, its settings may imply something
    (`path_under_test`). `is_profiled` profiles both arms after their first block.
    `scenarios_in_pr` share the error budget of one pull request. `kernels` is what was found out of the arms' kernels before:
    no server starts where that voids the session.
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
    resume: bool = False
    expect: Expect = field(default_factory=Expect)
    is_profiled: bool = False
    scenarios_in_pr: int = 1
    kernels: KernelProof | None = None


def measure(request: Request, progress: Progress) -> None:
    """Measure `request` into its folder, or go on there if `resume` is asked for and a session was cut off.

    A wrong model, a server that dies or a load generator that fails does not raise: it is evidence, stands in the folder, and
    makes the verdict INVALID. Raise InputError when both arms inherit what is to set them apart, or the GPUs are too small,
    too few or none, EngineError when an arm cannot serve at all, RunnerError when another measurement runs on the same GPUs,
    InterruptedRunError when a signal stopped it, EvidenceError when the folder cannot be written or holds another session. A
    session that has ended is left as it is.
    """
    require_gpu(request.scenario)
    verify_files(request.scenario)
    model = locate_model(request.scenario.model, request.model, progress)
    record = build_record(request, model)
    require_apart(record.arms, inherit())
    require_memory(request.scenario, read_config(model), record.arms)
    record = note_unverified(request, record, progress)
    launches = [spec.build_launch(request.scenario, model) for spec in request.arms.values()]
    measured = find_measured(launches)
    with ExitStack() as stack:
        lock = stack.enter_context(lock_folder(request.folder))
        found = find_progressed(request, record)
        if found.is_ended:
            progress.step(f"the session in {request.folder} is complete: nothing is measured")
            return
        machine = stack.enter_context(hold_machine(measured, find_lock_folder()))
        writer = open_writer(request, record, found, progress)
        progress.step(describe_plan(request))
        plan = build_plan(request, model)
        if read_given_expect(request).is_empty and not plan.expect.is_empty:
            progress.step(describe_expect(plan.expect))
        if not is_model_right(plan, model, writer) or not are_kernels_right(request, writer):
            return
        telemetry = open_telemetry(plan, writer)
        if telemetry is None:
            return
        drive = stack.enter_context(open_drive(writer, telemetry, (lock, *machine), progress))
        drive.go_on(found.elapsed_s, found.starts)
        drive.noise = plan.noise
        engine, log = ENGINES[request.scenario.server.engine], writer.logs / "client.log"
        client = stack.enter_context(Client(request.arms[Arm.BASE].python, engine, log, drive.reaper))
        Driver(plan=plan, client=client, drive=drive, blocks=found.blocks).run()


@contextmanager
def open_drive(writer: ResultWriter, telemetry: Telemetry, locks: Sequence[int], progress: Progress) -> Iterator[StartDriver]:
    """What drives starts into a folder: the machine is watched, signals end it well, and no process outlives it.

    `locks` are descriptors of the locks that are held until nothing is left of a crash.
    """
    with raise_on_signals(), telemetry, Reaper(*locks) as reaper:
        yield StartDriver(writer=writer, reaper=reaper, progress=progress, telemetry=telemetry)


def describe_plan(request: Request) -> str:
    """Say what is about to be measured, and where it goes."""
    looks, windows = ", ".join(map(str, request.looks)), request.scenario.blocks.windows
    what = f"{request.scenario.name}: blocks of one fresh server per arm with {windows} windows each"
    return f"{what}; looks after {looks} blocks; results in {request.folder}"


def build_record(request: Request, model: Path) -> SessionRecord:
    """Write down what is fixed before the first window. Raise EngineError when an arm's Python cannot serve."""
    scenario = request.scenario
    # Arms mostly share a Python: it is asked once.
    asked = {python: read_fingerprint(python) for python in {spec.python for spec in request.arms.values()}}
    fingerprints = {arm: asked[spec.python] for arm, spec in request.arms.items()}
    for arm, fingerprint in fingerprints.items():
        require_engine(scenario, request.arms[arm], fingerprint.facts)
    labels = {arm: describe_arm(spec) for arm, spec in request.arms.items()}
    return SessionRecord(
        schema=1,
        perfgate=read_build(),
        scenario=scenario.name,
        workload_hash=scenario.workload_hash,
        purpose=request.purpose,
        begun_utc=write_utc(),
        arms={arm: spec.build_record(scenario, model, fingerprints[arm], labels[arm]) for arm, spec in request.arms.items()},
        model=describe_model(model, scenario.model),
        checks=(*scenario.equivalence.list_checks(request.purpose), "expert_use"),
        expect=read_expect(request),
        notes=request.notes,
        rule=RULE,
        looks=request.looks,
        scenarios_in_pr=request.scenarios_in_pr,
        kernels=request.kernels,
        inherited=read_steering(inherit()),
    )


def note_unverified(request: Request, record: SessionRecord, progress: Progress) -> SessionRecord:
    """Say what could not be verified of the arms' engines, and keep it with the session: its verdict rests on it.

    Raise EngineError for what a version lacks and the session needs.
    """
    lines = verify_facts(request.scenario, ((record.arms[arm], spec.python) for arm, spec in request.arms.items()))
    for line in lines:
        progress.step(line)
    return replace(record, notes=(*record.notes, *lines))


def read_expect(request: Request) -> Expect:
    """What must be seen of the candidate: what was said, else what its settings imply.

    Equal arms of a calibration have no path under test.
    """
    if request.purpose != "ab":
        return Expect()
    given = read_given_expect(request)
    return find_expect(request.scenario, request.arms) if given.is_empty else given


def read_given_expect(request: Request) -> Expect:
    """What the scenario and the user say that must be seen of the candidate."""
    return request.scenario.expect.extend(request.expect)


def find_progressed(request: Request, record: SessionRecord) -> Progressed:
    """How far the session that is to be resumed got. Raise EvidenceError when the folder holds another one."""
    if not request.resume or not (request.folder / SESSION_FILE).exists():
        return Progressed()
    folder = request.folder
    stored = read_record(folder)
    text = require_text(folder / SCENARIO_FILE, stored)
    require_same(folder, (stored, record), (parse_scenario(text, str(folder / SCENARIO_FILE)), request.scenario))
    return read_progressed(folder)


def open_writer(request: Request, record: SessionRecord, found: Progressed, progress: Progress) -> ResultWriter:
    """Begin the folder, or write down that its session goes on and which windows of a block that was cut off do not count."""
    if not request.resume or not (request.folder / SESSION_FILE).exists():
        return ResultWriter.create(request.folder, record, request.scenario_text)
    writer = ResultWriter(request.folder)
    writer.add_event("resumed", found.elapsed_s, utc=write_utc(), superseded=found.cut, unindexed=found.unindexed)
    cut = f"; block {found.blocks + 1} is measured again, its {len(found.cut)} windows do not count" if found.cut else ""
    progress.step(f"continuing after {found.blocks} complete blocks{cut}")
    return writer


def build_plan(request: Request, model: Path) -> Plan:
    """Complete the request to what the driver follows."""
    rules = request.scenario.equivalence
    return Plan(
        scenario=request.scenario,
        launches={arm: spec.build_launch(request.scenario, model) for arm, spec in request.arms.items()},
        looks=request.looks,
        is_decided=lambda: request.is_decided(request.folder),
        noise=request.fix_noise(request.folder),
        expect=read_expect(request),
        is_profiled=request.is_profiled,
        gsm8k=rules.gsm8k if "gsm8k" in rules.list_checks(request.purpose) else None,
    )


def is_model_right(plan: Plan, model: Path, writer: ResultWriter) -> bool:
    """Check the model, as each arm would serve it, before anything is started; a refusal is evidence, kept in the folder."""
    try:
        verify_model(model, plan.scenario.model)
        for arm, launch in plan.launches.items():
            verify_served(arm.value, launch.args, model, plan.scenario.model)
    except ModelError as error:
        writer.add_problem(str(error), 0.0)
        writer.add_event("session_ended", 0.0)
        return False
    return True


def are_kernels_right(request: Request, writer: ResultWriter) -> bool:
    """Whether the kernels are worth machine time; what is wrong with them stands in the folder already."""
    if not any(check_kernels(request.kernels)):
        return True
    writer.add_event("session_ended", 0.0)
    return False


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
    """Raise EngineError when the arm's Python has no serving engine, or one that cannot serve the scenario."""
    engine = ENGINES[scenario.server.engine]
    package = engine.package
    if package not in facts or facts[package] == "absent":
        raise EngineError(f"{spec.python}: {package} is not installed there; run `perfgate engine install` or give --python")
    asked = (*scenario.server.args, *spec.args, *scenario.load.args)
    if (why := engine.explain_refused(asked, facts[package])) is not None:
        raise EngineError(f"{spec.python}: {package} {facts[package]} cannot serve this scenario, {why}")


def describe_arm(spec: ArmSpec) -> str:
    """Say in a few words what is special about an arm."""
    parts = [*(f"{name}={value}" for name, value in sorted(spec.env.items())), *spec.args]
    return " ".join(parts) or "as installed"


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and a closed terminal into InterruptedRunError, once: what cleans up after it is left alone.

    Compiled code may lose what a handler raises and fail of it in another way: pydantic did, and called a sound folder damaged.
    So what ends the block after a signal ends it as interrupted.
    """
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, _frame: FrameType | None) -> None:
        for name in names:
            signal.signal(name, signal.SIG_IGN)
        cause = signal.Signals(number).name
        said = f"stopped by {cause}; what was measured stays, and the same command with --resume goes on"
        INTERRUPTION.interrupt(InterruptedRunError(said))

    before = {name: signal.signal(name, stop) for name in names}
    try:
        yield
    except PerfgateError as error:
        told = INTERRUPTION.told
        if told is None or error is told:
            raise
        raise told from error
    finally:
        INTERRUPTION.forget()
        for name, handler in before.items():
            signal.signal(name, handler)


def name_folder(scenario: str, parent: Path) -> Path:
    """Choose a new result folder by scenario and time; a second run within the second gets a number."""
    stem = f"{scenario}-{time.strftime('%Y%m%d-%H%M%S')}"
    candidates = (parent / (stem if number == 1 else f"{stem}-{number}") for number in range(1, 1000))
    return next(path for path in candidates if not path.exists())
