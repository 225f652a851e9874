"""May this evidence be judged? Every reason why not, each with what to do about it.

A session is admitted whole or not at all: a window that cannot be trusted voids its session even where the verdict would not
need that window, for whatever broke it was there while its neighbours were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from statistics import median

from perfgate.core import Arm, Role, Window
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.results.readings import (
    ANSWERS_MALFORMED,
    CACHE_HIT_RATE,
    FOREIGN_CPU,
    FOREIGN_PROCESSES,
    FRONT_END_SHARE,
    SM_CLOCK_MHZ,
    STOLEN_CPU,
    THROTTLED_SHARE,
)
from perfgate.results.words import describe_damage, describe_driver_problem, describe_remark
from perfgate.scenario.load import Load
from perfgate.scenario.schema import Scenario
from perfgate.storage.rounding import format_count, format_percent
from perfgate.verdict.differences import (
    describe_arms,
    describe_difference,
    hardware_differences,
    host_differences,
    link_differences,
)
from perfgate.verdict.validity.equivalence import check_answered, check_equivalence
from perfgate.verdict.validity.expectations import check_expectations
from perfgate.verdict.validity.gsm8k import check_gsm8k
from perfgate.verdict.validity.kernel_proof import check_kernels
from perfgate.verdict.validity.pairing import ServerStart, group_starts
from perfgate.verdict.validity.routing import check_asked, check_use
from perfgate.verdict.validity.structure import (
    AdmissionLimits,
    check_blocks,
    check_clock,
    check_copies,
    check_same_work,
    check_starts,
    sort_by_time,
)

MAX_THROTTLED_SHARE = 0.02
MIN_CLOCK_RATIO = 0.97
# Two clocks of one machine; a window also starts and ends its load generator.
CLOCK_RATIO, CLOCK_SLACK_S = 1.05, 2.0
# A machine may give most of its cores to other work all the time, as long as it does so to both arms.
MAX_LOST_CPU_SHARE = 0.75
MAX_LOST_CPU_DIFFERENCE = 0.35
# A burst of others' work lasts about a second: shorter windows give a share together only.
MIN_READABLE_S = 2.0
# A CPU engine needs those cores: equal arms beside a second session, which takes half of two cores, differed by 43 %.
NAMED_CPU_SHARE = 0.25
# In 44 windows of a full server on an H200, five of seven seconds in which that thread used 98 % of a core were slow, and three
# of 222 in which it used less than 90 %.
FULL_CORE_SHARE = 0.98
# Random prompts share a token or two at their beginnings, and bench_serving warms up with the first of them.
MAX_RANDOM_HIT_RATE = 0.2
_STOP_OTHERS = "stop other work on the machine, then measure again"


def admit(session: Session, limits: AdmissionLimits) -> tuple[str, ...]:
    """Name every reason why `session` is no evidence, in a stable order; empty when it may be judged."""
    starts = group_starts(session)
    checks = (
        iter(find_problems(session, limits.scenario)),
        check_identity(session, limits),
        check_windows(session, limits),
        check_copies(session),
        check_clock(session, starts),
        check_starts(starts, limits),
        check_same_work(session, starts, limits),
        check_blocks(session, starts, limits),
        check_arms(starts),
    )
    return tuple(dict.fromkeys(problem for check in checks for problem in check))


def find_problems(session: Session, scenario: Scenario) -> tuple[str, ...]:
    """Name what voids `session` beside its judged windows: what its driver wrote, its files, and all that was held against."""
    rules = scenario.equivalence
    checks = (
        (describe_driver_problem(problem) for problem in session.problems),
        check_kernels(session.kernels),
        (describe_damage(damage) for damage in session.damage),
        check_superseded(session, scenario),
        check_use(session.expert_use),
        check_asked(session.windows, session.expert_use) if "expert_use" in session.checks else iter(()),
        check_equivalence(session.answers, rules),
        check_answered(session.windows, session.answers) if "equivalence" in session.checks else iter(()),
        check_expectations(session.expect, session.seen) if session.seen else iter(()),
        check_gsm8k(session.marks, rules.gsm8k) if session.seen and "gsm8k" in session.checks else iter(()),
    )
    return tuple(dict.fromkeys(problem for check in checks for problem in check))


def check_superseded(session: Session, scenario: Scenario) -> Iterator[str]:
    """What a cut block showed before it was cut: a break must not wash away a request that failed."""
    wanted = scenario.load.num_prompts
    for window in session.superseded:
        found = [describe_remark(problem) for problem in window.run.problems]
        if window.run.completed != wanted:
            found.append(f"{window.run.completed} of {wanted} requests completed; measure again")
        yield from (f"block {window.block}, {window.arm.value}, before it was cut off: {problem}" for problem in found)


def check_identity(session: Session, limits: AdmissionLimits) -> Iterator[str]:
    """The right scenario, the same work, the same machine for both arms."""
    scenario = limits.scenario
    if not limits.gated:
        yield f"no metric of scenario {scenario.name} may gate, so nothing could ever fail; see the notes and correct [gates]"
    if session.scenario != scenario.name or session.workload_hash != scenario.workload_hash:
        yield (
            f"measured as {session.scenario} with workload {session.workload_hash}, but judged as {scenario.name} with "
            f"workload {scenario.workload_hash}: judge it by the scenario it was measured with, or measure again"
        )
    for arm in sorted({window.arm for window in session.windows} - session.fingerprints.keys()):
        yield f"the {arm.value} arm has no fingerprint, so what it ran on is unknown; measure again"
    if len(session.fingerprints) == len(Arm):
        base, candidate = session.fingerprints[Arm.BASE], session.fingerprints[Arm.CANDIDATE]
        for difference in (*hardware_differences(base, candidate), *host_differences(base, candidate)):
            yield f"the arms ran on different hardware ({describe_arms(difference)})"
    yield from _check_link(session, limits)


def _check_link(session: Session, limits: AdmissionLimits) -> Iterator[str]:
    """GPUs that are linked otherwise than when the noise was stored take another time for every all-reduce."""
    machine = session.fingerprints.get(Arm.BASE) or session.fingerprints.get(Arm.CANDIDATE)
    if machine is not None and limits.stored is not None:
        for difference in link_differences(machine, limits.stored):
            yield (
                f"its GPUs are linked otherwise than those of the baseline ({describe_difference(difference)}): find out what "
                "changed (`nvidia-smi topo -m`), or calibrate anew"
            )


def check_windows(session: Session, limits: AdmissionLimits) -> Iterator[str]:
    """Each window by itself: whole, undisturbed, and with a number for everything that gates."""
    for window in sort_by_time(session.windows):
        for check in (_check_requests, _check_values, _check_length, _check_telemetry):
            yield from (f"{window.name}: {problem}" for problem in check(window, limits))
    judged = [window for window in sort_by_time(session.windows) if window.role is not Role.WARMUP]
    for other in (window for window in judged if window.run.workload != judged[0].run.workload):
        yield f"{other.name}: sent {_differ(judged[0], other)}; windows of different work cannot be compared, measure again"
        break
    for other in (window for window in judged if window.run.values.keys() != judged[0].run.values.keys()):
        yield f"{other.name}: {_tell_metrics(judged[0], other)}; measure all windows with one load generator"
        break
    for metric in limits.gated:
        ways = sorted({window.run.estimators.get(metric, "as reported") for window in judged})
        if len(ways) > 1:
            yield f"{metric} was made in {len(ways)} ways ({', '.join(ways)}); measure all windows with one load generator"


def _differ(first: Window, other: Window) -> str:
    one, two = first.run.workload, other.run.workload
    key = min(key for key in one.keys() | two.keys() if one.get(key) != two.get(key))
    return f"{key} {two.get(key)} where the first window sent {one.get(key)}"


def _tell_metrics(first: Window, other: Window) -> str:
    metric = min(first.run.values.keys() ^ other.run.values.keys())
    has, lacks = ("the first window", "this one") if metric in first.run.values else ("this window", "the first one")
    return f"{has} tells {metric}, {lacks} does not"


def _check_requests(window: Window, limits: AdmissionLimits) -> Iterator[str]:
    run = window.run
    yield from (describe_remark(problem) for problem in run.problems)
    yield from _check_form(window, limits.scenario.load)
    wanted = limits.scenario.load.num_prompts
    if run.requested not in (None, wanted):
        yield f"was asked for {run.requested} requests, the scenario for {wanted}; measure again with this scenario"
    if run.completed != wanted:
        yield f"{run.completed} of {wanted} requests completed; read the server's log, then measure again"


def _check_form(window: Window, load: Load) -> Iterator[str]:
    """A grammar that is not followed costs nothing, and looks like a gain."""
    if not load.answer_form:
        return
    malformed = window.telemetry.get(ANSWERS_MALFORMED)
    if malformed is None:
        yield f"nothing tells whether its answers match load.answer_form ({ANSWERS_MALFORMED} is missing); measure again"
    elif malformed:
        yield f"{malformed:g} of {load.num_prompts} answers do not match load.answer_form: the engine dropped its grammar"


def _check_values(window: Window, limits: AdmissionLimits) -> Iterator[str]:
    for metric in limits.gated:
        name = METRICS[metric].of_window
        value = window.run.values.get(name)
        if value is None:
            told = metric if name == metric else f"{metric}, told by {name},"
            yield f"{told} is missing although it gates; measure with raw details or set advisory = true in the scenario"
        elif not isfinite(value) or value <= 0:
            yield f"{name} is {value:g}, which no server can deliver; the window measured nothing, measure again"


def _check_length(window: Window, limits: AdmissionLimits) -> Iterator[str]:
    """The load generator's clock and the session's ran alike."""
    wall_s, reported_s, most_s = window.ended_s - window.begun_s, window.run.duration_s or 0.0, limits.scenario.load.timeout_s
    if reported_s > CLOCK_RATIO * wall_s + CLOCK_SLACK_S:
        yield (
            f"its requests took {reported_s:.1f} s, the window {wall_s:.1f} s; a clock jumped or this was edited, measure again"
        )
    if wall_s > most_s + CLOCK_SLACK_S:
        yield f"lasted {wall_s:.1f} s where {most_s:g} s are allowed; a clock jumped or this was edited, measure again"


def _check_telemetry(window: Window, limits: AdmissionLimits) -> Iterator[str]:
    yield from check_telemetry(window.telemetry, window.ended_s - window.begun_s, limits.scenario.load)


def check_telemetry(telemetry: Mapping[str, float], lasted_s: float, load: Load) -> Iterator[str]:
    """Name what disturbed a window of `load` that took `lasted_s` seconds, as its own readings tell."""
    if (found := telemetry.get(FOREIGN_PROCESSES, 0)) > 0:
        yield f"other processes used the GPU; stop them, or take another runner ({found:g} seen)"
    if (share := telemetry.get(THROTTLED_SHARE, 0)) > MAX_THROTTLED_SHARE:
        lost = format_percent(share, 0)
        yield f"the GPU throttled for {lost} of the window; let it cool, lock lower clocks, then measure again"
    is_readable = SM_CLOCK_MHZ in telemetry and lasted_s >= MIN_READABLE_S
    if is_readable and (share := _sum_lost_cpu(telemetry) or 0.0) > MAX_LOST_CPU_SHARE:
        yield f"others took {format_percent(share, 0)} of the machine's CPU time; {_STOP_OTHERS}"
    rate = telemetry.get(CACHE_HIT_RATE, 0)
    if load.is_random and not load.keep_cache and rate > MAX_RANDOM_HIT_RATE + 1 / load.num_prompts:
        yield f"{format_percent(rate, 0)} of random prompts came from the prefix cache, which is emptied before; find out why"


def _sum_lost_cpu(telemetry: Mapping[str, float]) -> float | None:
    """The share of the CPU that others had; None where it was not read."""
    return telemetry[FOREIGN_CPU] + telemetry.get(STOLEN_CPU, 0.0) if FOREIGN_CPU in telemetry else None


def _pool_lost_cpu(windows: Sequence[Window]) -> float | None:
    """What others had of a start's windows: the median, or the mean over their time where one alone is too short.

    None where one was not read, or all together are too short.
    """
    shares = [share for window in windows if (share := _sum_lost_cpu(window.telemetry)) is not None]
    lengths_s = [window.ended_s - window.begun_s for window in windows]
    if len(shares) < len(windows) or sum(lengths_s) < MIN_READABLE_S:
        return None
    if min(lengths_s) >= MIN_READABLE_S:
        return median(shares)
    return sum(share * length_s for share, length_s in zip(shares, lengths_s, strict=True)) / sum(lengths_s)


def name_disturbed(session: Session) -> Iterator[str]:
    """Say how much of the CPU others had while an engine served on it; that both arms lost as much voids nothing.

    A CPU engine shares its cores with whatever else a laptop or a test run does, and claims no more than relative change.
    """
    lost = [
        (share, window.name)
        for window in sort_by_time(session.windows)
        if window.role is not Role.WARMUP and SM_CLOCK_MHZ not in window.telemetry
        if (share := _sum_lost_cpu(window.telemetry)) is not None and share > NAMED_CPU_SHARE
    ]
    if lost:
        most, place = max(lost)
        yield (
            f"others took more than {format_percent(NAMED_CPU_SHARE, 0)} of the machine's CPU time in "
            f"{format_count(len(lost), 'window')}, {format_percent(most, 0)} in {place}; {_STOP_OTHERS}"
        )


def name_saturated(session: Session) -> Iterator[str]:
    """Say where a server's one thread for requests and tokens was at the end of its core: its clients wait for that, then."""
    told = [
        window
        for window in sort_by_time(session.windows)
        if window.role is Role.MEASURED and SM_CLOCK_MHZ in window.telemetry and FRONT_END_SHARE in window.telemetry
    ]
    full = [window for window in told if window.telemetry[FRONT_END_SHARE] >= FULL_CORE_SHARE]
    if full:
        arms = ", ".join(f"{sum(window.arm is arm for window in full)} of the {arm.value}" for arm in Arm)
        yield (
            f"in {len(full)} of {format_count(len(told), 'window')} ({arms}) the server's thread for requests and tokens "
            "used a whole core for a second: there tokens may have waited for the host, and not for the GPU"
        )


def check_arms(starts: Iterable[ServerStart]) -> Iterator[str]:
    """Within a block both arms answered the same prompts with as many tokens, at like clocks."""
    blocks: dict[int, dict[Arm, ServerStart]] = {}
    for start in starts:
        blocks.setdefault(start.block, {})[start.arm] = start
    for number, arms in blocks.items():
        if len(arms) == len(Arm):
            yield from _check_tokens(number, arms[Arm.BASE], arms[Arm.CANDIDATE])
            yield from _check_clocks(number, arms[Arm.BASE], arms[Arm.CANDIDATE])
            yield from _check_lost_cpu(number, arms[Arm.BASE], arms[Arm.CANDIDATE])


def _check_tokens(block: int, base: ServerStart, candidate: ServerStart) -> Iterator[str]:
    for one, two in zip(base.measured, candidate.measured, strict=False):
        for kind in ("input_tokens", "output_tokens"):
            left, right = getattr(one.run, kind), getattr(two.run, kind)
            if left != right:
                yield (
                    f"block {block}, windows {one.index} and {two.index}: base has {left} {kind.replace('_', ' ')}, candidate "
                    f"{right}; they did different work, fix lengths and seed, then measure again"
                )
                return


def _check_clocks(block: int, base: ServerStart, candidate: ServerStart) -> Iterator[str]:
    clocks = [
        [window.telemetry[SM_CLOCK_MHZ] for window in start.measured if SM_CLOCK_MHZ in window.telemetry]
        for start in (base, candidate)
    ]
    if all(clocks):
        left, right = median(clocks[0]), median(clocks[1])
        if min(left, right) < MIN_CLOCK_RATIO * max(left, right):
            yield f"block {block}: base ran at {left:g} MHz, candidate at {right:g} MHz; lock the clocks, then measure again"


def _check_lost_cpu(block: int, base: ServerStart, candidate: ServerStart) -> Iterator[str]:
    left, right = (_pool_lost_cpu(start.measured) for start in (base, candidate))
    if left is None or right is None:
        return
    if abs(left - right) > MAX_LOST_CPU_DIFFERENCE:
        yield (
            f"block {block}: others took {format_percent(left, 0)} of the machine's CPU time from base, "
            f"{format_percent(right, 0)} from candidate; {_STOP_OTHERS}"
        )
