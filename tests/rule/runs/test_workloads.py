"""Which runs did the same work."""

import pytest

from perfgate.core import Arm, Run
from perfgate.errors import InputError, WorkloadMismatchError
from perfgate.verdict.runs.workloads import find_groups, find_repeats, show_fact


def make_run(source="run.txt", values=None, **workload):
    return Run(
        source=source,
        values=values or {},
        workload=workload,
        requested=1,
        completed=1,
        input_tokens=1,
        output_tokens=1,
        duration_s=1.0,
    )


def test_find_groups__one_group_a_workload():
    slow, fast = ([make_run(rate=rate), make_run(rate=rate)] for rate in (4.0, 8.0))

    groups, unchecked = find_groups({Arm.BASE: [slow[0], fast[0]], Arm.CANDIDATE: [fast[1], slow[1]]})

    assert [facts for facts, _ in groups] == [{"rate": 4.0}, {"rate": 8.0}]
    assert groups[0][1] == {Arm.BASE: [slow[0]], Arm.CANDIDATE: [slow[1]]}
    assert unchecked == []


def test_find_groups__numbers_are_equal_as_numbers():
    groups, _ = find_groups({Arm.BASE: [make_run(rate=64)], Arm.CANDIDATE: [make_run(rate=64.0)]})

    assert len(groups) == 1


def test_find_groups__fact_that_not_every_run_tells():
    groups, unchecked = find_groups({Arm.BASE: [make_run(rate=4, dataset="random")], Arm.CANDIDATE: [make_run(rate=4)]})

    assert groups[0][0] == {"rate": 4}
    assert unchecked == ["not every run tells its dataset, so it was not compared"]


@pytest.mark.parametrize(
    ("base", "candidate", "message"),
    [
        ([20.0], ["inf"], r"rate 20 in base, inf in candidate \(base\.txt, candidate\.txt\)"),
        ([20.0, "inf"], ["inf"], "rate 20 in base, inf in candidate"),
        (["inf"], ["inf", 20.0], "rate 20 in candidate, inf in base"),
    ],
)
def test_find_groups__work_that_the_other_arm_did_not_do(base, candidate, message):
    arms = {
        Arm.BASE: [make_run("base.txt", rate=rate, same=1) for rate in base],
        Arm.CANDIDATE: [make_run("candidate.txt", rate=rate, same=1) for rate in candidate],
    }

    with pytest.raises(WorkloadMismatchError, match=message):
        find_groups(arms)


def test_find_groups__arm_without_runs():
    with pytest.raises(WorkloadMismatchError, match="the other arm has no run"):
        find_groups({Arm.BASE: [make_run()], Arm.CANDIDATE: []})


def test_find_repeats__same_numbers_under_another_name():
    values = {f"metric_{number}": 1.5 * number for number in range(1, 7)}

    with pytest.raises(InputError, match=r"copy\.txt: the same run as run\.txt"):
        find_repeats([make_run(values=values), make_run("copy.txt", values=values)])


def test_find_repeats__few_equal_numbers_may_be_chance():
    values = {"a": 1.0, "b": 2.0}

    find_repeats([make_run(values=values), make_run("other.txt", values=values)])

    assert show_fact(64.0) == show_fact(64) == "64"
