"""What recorded H200 profiles prove of SGLang's fused sum: a difference between the arms, and not a kernel that both run."""

from dataclasses import replace
from functools import cache

import pytest

from perfgate.core import Arm
from perfgate.readers.traces import read_traces
from perfgate.results.profiling.profiles import PROFILES_FILE, load_profiles, read_seen
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.safeguards import Expect
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.proof import SUM_OPTION, find_expect
from perfgate.verdict.validity.expectations import check_expectations
from tests.fakes.recorded import bring_fused, bring_unfused


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """Sum each recorded trace once for all tests, which differ in what they expect of it."""
    summed = cache(read_traces)
    with pytest.MonkeyPatch.context() as patch:
        place = "perfgate.results.profiling.profiles.read_traces"
        patch.setattr(place, lambda traces: summed(tuple(trace.resolve() for trace in traces)))
        yield


def expect_fused_sum():
    arms = {Arm.BASE: ArmSpec(), Arm.CANDIDATE: ArmSpec(args=(SUM_OPTION,))}
    return find_expect(load_scenario("cpu-moe"), arms)


def check(folder, expect):
    """What the profiles in `folder` do not show of what is expected."""
    return list(check_expectations(expect, read_seen(folder, expect, ())))


def test_check_expectations__recorded_fused_sum_is_seen():
    assert check(bring_fused(), expect_fused_sum()) == []


def test_check_expectations__recorded_session_without_the_fused_sum_is_refused():
    still, more = check(bring_unfused(), expect_fused_sum())

    assert still.startswith("block 1, candidate, start 2: kernel triton_poi_fused_copy__mul_sum_0 still runs where")
    assert "ran 0.0 times a step, 0.0 times in the base" in more


def test_check_expectations__kernel_that_both_arms_run_proves_no_difference():
    """The kernel that was asked for before runs in the unfused session, too."""
    assert check(bring_unfused(), Expect(kernels=("fused_moe_kernel",))) == []

    [problem] = check(bring_unfused(), Expect(added=("fused_moe_kernel",)))
    assert "ran 49.5 times a step, 49.5 times in the base" in problem


def test_check_expectations__base_without_the_kernel_has_nothing_to_lose():
    """A model whose tokens visit two experts adds them up without a reduce kernel, whatever is asked for."""
    [problem] = check(bring_fused(), Expect(removed=("no_such_sum",)))

    assert problem.startswith("block 1, base, start 1: no kernel matches 'no_such_sum', which the candidate was to do without")


@pytest.mark.parametrize("arm", list(Arm))
def test_check_expectations__difference_needs_both_profiles(tmp_path, arm):
    fused = bring_fused()
    lines = (fused / PROFILES_FILE).read_text().splitlines()
    (tmp_path / PROFILES_FILE).write_text("\n".join(line for line in lines if f'"arm":"{arm.value}"' not in line) + "\n")
    (tmp_path / "profiles").symlink_to(fused / "profiles")

    [problem] = check(tmp_path, expect_fused_sum())

    assert len(load_profiles(tmp_path)) == 1
    assert problem == f"{arm.value}: it was never profiled, so it is unknown whether the path under test ran; measure again"


def test_extend__keeps_differences_of_both():
    one, other = Expect(removed=("a",), added=("b",)), Expect(removed=("c",))

    assert one.extend(other) == replace(one, removed=("a", "c"))
