"""Once a session, after the windows of its first block: see that the path under test ran, and keep where the time went.

Not before the windows, though a wrong candidate would cost less then: a server that was profiled may be slower ever after. The
line of perfgate's own plug-in alone is looked for earlier: reading a log disturbs no window.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfgate.core import Arm
from perfgate.errors import ServerError
from perfgate.results.profiling.profiles import LOG_EVENT, Profile, read_seen
from perfgate.results.records import EVENTS_FILE
from perfgate.results.writer import ResultWriter
from perfgate.scenario.safeguards import Expect
from perfgate.scenario.schema import Scenario
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.startup import find_line
from perfgate.serving.profiling import profile_server
from perfgate.serving.starts import Start
from perfgate.serving.window import Plan
from perfgate.storage.journal import read_lines
from perfgate.verdict.validity.expectations import check_expectations, describe_missing
from perfgate_moe.engines.switch import OFF, PROOF, VARIABLE

SUM_OPTION = "--enable-fused-moe-sum-all-reduce"
"""Asks SGLang's Triton runner to add the experts' results up within its down projection."""

SUM_REDUCED = r"moe_sum|triton_\w*mul_sum"
"""Kernels that add the experts' results up when nothing is fused: SGLang's `moe_sum_reduce`, and up to 32 tokens what
torch.compile makes of `sum` and `mul_`. SGLang fuses them away only where a token visits more than two experts."""

SUM_FUSED = r"FillFunctor<c10::(BFloat16|Half)>"
"""The fused path sets each layer's result to zero before its down projection adds to it: one such kernel a layer more. The
projection itself is `fused_moe_kernel` either way, and proves nothing."""


def prove_warm(plan: Plan, start: Start) -> None:
    """Hold a warm candidate against what the plug-in writes at the first layer that it computes.

    Raise ServerError where that is expected and missing: the load of the windows that count is the one of the warm-up.
    """
    is_expected = start.arm is Arm.CANDIDATE and PROOF in plan.expect.log
    if is_expected and find_line(start.server.log, PROOF) is None:
        raise ServerError(describe_missing(PROOF))


def prove(plan: Plan, writer: ResultWriter, start: Start, elapsed_s: float) -> None:
    """Profile a start where the plan wants it, and hold the candidate against what is expected of it.

    Raise ServerError where the path under test did not run: all further blocks would measure something else.
    """
    if plan.expect.needs_profile or plan.is_profiled:
        _profile(plan, writer, start, elapsed_s)
    if start.arm is Arm.CANDIDATE and not plan.expect.is_empty:
        for pattern in plan.expect.log:
            line = find_line(start.server.log, pattern)
            writer.add_event(LOG_EVENT, elapsed_s, start=start.number, pattern=pattern, line=line)
        seen = read_seen(writer.folder, plan.expect, read_lines(writer.folder / EVENTS_FILE))
        for problem in check_expectations(plan.expect, seen):
            raise ServerError(problem)


def _profile(plan: Plan, writer: ResultWriter, start: Start, elapsed_s: float) -> None:
    """Profile one batch; where nothing is expected of it, a profiler that fails costs the profile and not the session."""
    place = Profile(arm=start.arm, block=start.block, start=start.number)
    try:
        profile_server(start.server, plan.scenario.load, writer.folder, place)
    except ServerError as error:
        start.server.raise_if_dead()
        if plan.expect.needs_profile:
            raise
        writer.add_event("profile_failed", elapsed_s, arm=start.arm.value, start=start.number, message=str(error))


def find_expect(scenario: Scenario, arms: Mapping[Arm, ArmSpec]) -> Expect:
    """The expectation that the candidate's own settings bring along; empty where they say nothing of the MoE path."""
    base, candidate = (_read_settings(scenario, arms[arm]) for arm in (Arm.BASE, Arm.CANDIDATE))
    is_asked = candidate[0] not in {*OFF, base[0]}
    is_fused = candidate[1] and not base[1]
    return Expect(
        log=(PROOF,) if is_asked else (),
        removed=(SUM_REDUCED,) if is_fused else (),
        added=(SUM_FUSED,) if is_fused else (),
    )


def _read_settings(scenario: Scenario, spec: ArmSpec) -> tuple[str, bool]:
    """The value of the variable, and whether the fused sum is asked for."""
    return {**scenario.server.env, **spec.env}.get(VARIABLE, ""), SUM_OPTION in (*scenario.server.args, *spec.args)


def describe_expect(found: Expect) -> str:
    """One line that tells the user what was added, and how to say otherwise."""
    wanted = [
        *(f"a line {pattern!r} in its log" for pattern in found.log),
        *(f"that kernel {pattern!r} of the base is gone" for pattern in found.removed),
        *(f"that kernel {pattern!r} runs more often" for pattern in found.added),
    ]
    told = " and ".join(wanted)
    return f"the candidate asks for another MoE path, so it must show {told}; --expect-log or --expect-kernel replace this"
