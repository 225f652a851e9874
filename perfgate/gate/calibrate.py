"""Learn the noise of one machine and the response of each metric: A/A blocks, then blocks with a slow-down of known size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import expm1, log1p
from pathlib import Path
from statistics import median

from perfgate.check import judge
from perfgate.core import Arm, Better, Judgement, Outcome, Role
from perfgate.engines.table import ENGINES
from perfgate.errors import CalibrationError
from perfgate.evidence import Session
from perfgate.gate.baselines import add_responses, build_baseline
from perfgate.gate.recorded_sessions import BUSY_SHARE, measure_busy, read_recorded
from perfgate.metrics import METRICS
from perfgate.report.words.remedies import name_remedies
from perfgate.results.records import EVENTS_FILE, LOG_DIR, read_record
from perfgate.results.results import load_results
from perfgate.scenario.injections import Injection, explain_stepless, parse_injection
from perfgate.scenario.schema import Scenario
from perfgate.serving.engine.arms import ArmSpec, build_injection_environment
from perfgate.serving.injection.injection import VARIABLE, folder_name
from perfgate.serving.injection.injection_log import INJECTED, Spent, add_up, read_spent
from perfgate.serving.measure import Request, measure
from perfgate.serving.progress import Progress
from perfgate.serving.watch.telemetry import require_gpu
from perfgate.storage.journal import read_lines
from perfgate.storage.rounding import format_percent
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.noise import Response
from perfgate.verdict.policy import fix_policy
from perfgate.verdict.recorded import Recorded
from perfgate.verdict.validity.admission import find_problems

RESPONSE_BLOCKS = 2
# As long as a decode step: each gives every running request one token (without speculation).
STEP = "median_itl_ms"
# What a time in each prefill moves by a known share: the interval at the tail holds one.
PREFILL, WITH_PREFILL = "prefill", ("p99_itl_ms",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What to learn and where to keep the raw data: `blocks` A/A blocks, and the response to each of `injections`.

    `effects` are slow-downs too, each a share of a decode step, which is unknown until the A/A blocks are measured.
    `resume` keeps the sessions in `folder` that have ended, and goes on with the one that was cut off.
    """

    scenario: Scenario
    text: str
    spec: ArmSpec
    folder: Path
    blocks: int
    injections: tuple[str, ...]
    effects: tuple[float, ...] = ()
    model: Path | None = None
    resume: bool = False


def calibrate(calibration: Calibration, progress: Progress) -> Baseline:
    """Measure A/A blocks and two blocks per injection and effect, and build the machine's baseline from them.

    Raise CalibrationError when a session is void: noise that cannot be trusted is no noise band.
    """
    scenario, blocks = calibration.scenario, calibration.blocks
    for injection in calibration.injections:
        require_step(parse_injection(injection))
    require_gpu(scenario)
    progress.step(f"calibrating {scenario.name}: {blocks} A/A blocks, so that this machine's own noise is known")
    quiet = _measure(_plan(calibration, calibration.spec, "aa", blocks, None), progress)
    _, recorded = read_recorded(quiet)
    baseline = build_from_sessions(scenario, [recorded])
    if (share := measure_busy(recorded.session)) > BUSY_SHARE:
        progress.step(
            f"this machine was busy while its noise was measured: others had {format_percent(share, 0)} of its CPU time, "
            "which the baseline "
            "says too; calibrate again on a quiet machine for narrower bands"
        )
    responses: dict[str, list[Response]] = {}
    step_ms = read_step_ms(recorded.session) if calibration.effects else 0.0
    asked = [choose_injection(effect, scenario, step_ms) for effect in calibration.effects]
    for injection in dict.fromkeys((*calibration.injections, *asked)):
        progress.step(f"calibrating {scenario.name}: {RESPONSE_BLOCKS} blocks with {injection} injected, to see what responds")
        slowed = replace(calibration.spec, env={**calibration.spec.env, **build_injection_environment(injection)})
        found = _measure(_plan(calibration, slowed, f"injected-{folder_name(injection)}", RESPONSE_BLOCKS, baseline), progress)
        _, session = load_results(found)
        injected = find_injected(parse_injection(injection), session)
        for name, response in read_responses(scenario, session, baseline, injected).items():
            responses.setdefault(name, []).append(response)
    return add_responses(baseline, responses, read_record(quiet).begun_utc) if responses else baseline


def build_from_sessions(scenario: Scenario, recorded: Sequence[Recorded]) -> Baseline:
    """Build a first baseline from sessions. Raise CalibrationError naming the folder of one that is no evidence."""
    for one in recorded:
        for problem in find_problems(one.session, scenario):
            raise _void(one.session, problem)
    return build_baseline(scenario, recorded[0].session.fingerprints[Arm.BASE], recorded)


def _void(session: Session, reason: str) -> CalibrationError:
    remedies = name_remedies(Outcome.INVALID, (reason,))
    return CalibrationError(f"{session.source}: nothing is stored, the calibration is void: {reason} ({remedies})")


def _measure(request: Request, progress: Progress) -> Path:
    measure(request, progress)
    return request.folder


def _plan(calibration: Calibration, candidate: ArmSpec, name: str, blocks: int, baseline: Baseline | None) -> Request:
    """One session of a calibration. What stalls in it is found by `baseline`, which is also what it will be judged by."""
    return Request(
        scenario=calibration.scenario,
        scenario_text=calibration.text,
        arms={Arm.BASE: calibration.spec, Arm.CANDIDATE: candidate},
        folder=calibration.folder / name,
        purpose="calibration",
        looks=(blocks,),
        is_decided=lambda _: False,
        fix_noise=lambda folder: _read_deviations(folder, baseline),
        model=calibration.model,
        resume=calibration.resume,
    )


def _read_deviations(folder: Path, baseline: Baseline | None) -> Mapping[str, float]:
    scenario, session = load_results(folder)
    return fix_policy(session, scenario, baseline).window_noise


def choose_injection(effect: float, scenario: Scenario, step_ms: float) -> str:
    """The injection that slows a decode step of `step_ms` by the share `effect`, or by a little more.

    On a GPU the spin is shared out among the model's layers; what launching it takes comes on top, and is measured with it.
    """
    if not ENGINES[scenario.server.engine].uses_gpu:
        return f"step:{effect:.4g}"
    return f"gpu:{effect * 1000 * step_ms / scenario.model.layers:.4g}"


def read_step_ms(session: Session) -> float:
    """How long a decode step takes at the base: its windows' median ITL. CalibrationError where no window has one."""
    step_ms = find_step_ms(session)
    if step_ms is None:
        raise CalibrationError(f"{session.source}: nothing is stored, no window of the base has a {STEP}; measure longer")
    return step_ms


def find_step_ms(session: Session) -> float | None:
    """The same; None where no window has one."""
    base = [window.run.values for window in session.windows if window.arm is Arm.BASE and window.role is Role.MEASURED]
    steps_ms = [values[STEP] for values in base if STEP in values]
    return median(steps_ms) if steps_ms else None


def find_injected(injection: Injection, session: Session) -> float:
    """The injected share of a step: what was asked for where that is a share, else what the slowed servers' logs say was spent.

    A decode step is as long as the base's median ITL. Raise CalibrationError where the logs tell nothing: a response to an
    unknown cause is none.
    """
    if injection.is_ratio:
        return injection.amount
    require_step(injection)
    spent = add_up(_list_spent(Path(session.source)))
    if spent is None:
        raise CalibrationError(
            f"{session.source}: nothing is stored, the slowed servers did not say what the {injection.kind} injection spent; "
            "measure longer"
        )
    return spent.injected_us / spent.steps / (1000 * read_step_ms(session))


def require_step(injection: Injection) -> None:
    """Raise CalibrationError for an injection whose size is no share of a step."""
    if (why := explain_stepless(injection)) is not None:
        raise CalibrationError(f"nothing is stored: {why}")


def _list_spent(folder: Path) -> Iterator[Spent]:
    """What each slowed server said: the session noted it when the server ended, and its log has it in more detail."""
    noted = [event for event in read_lines(folder / EVENTS_FILE) if event.get("event") == INJECTED]
    if noted:
        yield from (Spent(steps=float(event["steps"]), injected_us=float(event["injected_us"])) for event in noted)
        return
    for log in sorted((folder / LOG_DIR).glob(f"server-*-{Arm.CANDIDATE.value}.log")):
        if (spent := read_spent(log)) is not None:
            yield spent


def read_responses(scenario: Scenario, session: Session, baseline: Baseline, injected: float) -> dict[str, Response]:
    """Read from a session whose candidate was slowed by `injected`, a share of a decode step, what each metric showed of it."""
    verdict = judge(session, scenario, baseline)
    if verdict.outcome is Outcome.INVALID:
        raise _void(session, verdict.reasons[0])
    levels = {judgement.metric: judgement.base for judgement in verdict.judgements}
    share = _share_out(_read_injection(Path(session.source)), injected, levels)
    known = [
        judgement for judgement in verdict.judgements if judgement.metric in share and judgement.metric in baseline.metrics
    ]
    found = {judgement.metric: _respond(judgement, share[judgement.metric]) for judgement in known}
    return {name: response for name, response in found.items() if response is not None}


def _read_injection(folder: Path) -> Injection | None:
    """What slowed the candidate; None where a ratio was given for a folder that tells of no injection."""
    record = read_record(folder).arms.get(Arm.CANDIDATE)
    text = record.env.get(VARIABLE) if record is not None else None
    return None if text is None else parse_injection(text)


def _share_out(injection: Injection | None, injected: float, levels: Mapping[str, float | None]) -> Mapping[str, float]:
    """What each metric must move by: as much as a step that was slowed by a share of itself, or by its share of a time.

    A time that only steps with a prefill take longer is known of P99 ITL alone, whose intervals hold a prefill. Throughput and
    the others respond by how often there is one, which no log records.
    """
    if injection is None or injection.is_ratio:
        return dict.fromkeys(levels, injected)
    share = find_shares(injected, levels)
    return share if injection.kind != PREFILL else {name: share[name] for name in WITH_PREFILL if name in share}


def find_shares(injected: float, levels: Mapping[str, float | None]) -> dict[str, float]:
    """What a time that is added to every step must move each metric by, from its share of a decode step.

    An interval between tokens grows by that time at least, whatever else it holds: its share is smaller of an interval that
    also holds a prefill. Throughput, E2E and the others follow the mean interval. At 128 requests at once, where that is half
    as long again as the median, 4.6 % of a decode step are 3.1 % of it.
    """
    step, mean = levels.get(STEP), levels.get("mean_itl_ms")
    if step is None or mean is None:
        return dict.fromkeys(levels, injected)
    return {name: injected * step / (level if level and name.endswith("_itl_ms") else mean) for name, level in levels.items()}


def _respond(judgement: Judgement, injected: float) -> Response | None:
    if judgement.worse is None or judgement.low is None or judgement.high is None:
        return None
    low, high = judgement.low, judgement.high
    if METRICS[judgement.metric].better is Better.HIGHER:
        # A change of -20 % throughput is a slow-down of 25 %, on the scale on which it was injected.
        low, high = expm1(-log1p(high)), expm1(-log1p(low))
    return Response(injected_ratio=injected, measured_ratio=expm1(judgement.worse), low=low, high=high)
