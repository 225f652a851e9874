"""What must be seen of a candidate whose change is known to change the MoE path, where nobody said it."""

from __future__ import annotations

from collections.abc import Mapping

from perfgate.core import Arm
from perfgate.moe_path import OFF, PROOF, SUM_KERNEL, SUM_OPTION, VARIABLE
from perfgate.safeguards import Expect
from perfgate.scenario import Scenario
from perfgate.serving.arms import ArmSpec


def find_expect(scenario: Scenario, arms: Mapping[Arm, ArmSpec]) -> Expect:
    """The expectation that the candidate's own settings bring along; empty where they say nothing of the MoE path."""
    base, candidate = (_read_settings(scenario, arms[arm]) for arm in (Arm.BASE, Arm.CANDIDATE))
    is_asked = candidate[0] not in {*OFF, base[0]}
    is_fused = candidate[1] and not base[1]
    return Expect(log=(PROOF,) if is_asked else (), kernels=(SUM_KERNEL,) if is_fused else ())


def _read_settings(scenario: Scenario, spec: ArmSpec) -> tuple[str, bool]:
    """The value of the variable, and whether the fused sum is asked for."""
    return {**scenario.server.env, **spec.env}.get(VARIABLE, ""), SUM_OPTION in (*scenario.server.args, *spec.args)


def describe_expect(found: Expect) -> str:
    """One line that tells the user what was added, and how to say otherwise."""
    wanted = [*(f"a line {pattern!r} in its log" for pattern in found.log), *(f"kernel {name!r}" for name in found.kernels)]
    told = " and ".join(wanted)
    return f"the candidate asks for another MoE path, so it must show {told}; --expect-log or --expect-kernel replace this"
