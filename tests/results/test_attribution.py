"""Which kernels a difference consists of, and the names that people know them by."""

from __future__ import annotations

import pytest

from perfgate.evidence import KernelTime, KernelTrace, LaunchShape
from perfgate.results.profiling.attribution import (
    TOP,
    attribute,
    compare_code,
    list_ledger,
    list_recompiled,
    list_relaunched,
    name_unnamed,
    shorten_name,
    summarise,
)


def make_trace(**times_us):
    return KernelTrace(kind="kernel", spent={name: KernelTime(time_us=time_us, count=2) for name, time_us in times_us.items()})


def count_calls(**calls):
    return KernelTrace(kind="kernel", spent={name: KernelTime(time_us=8.0, count=count) for name, count in calls.items()})


def attribute_steps(base, candidate):
    return attribute(make_trace(**base), make_trace(**candidate), base_steps=2, candidate_steps=2)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("fused_moe_kernel", "fused_moe_kernel"),
        ("void at::native::add<float, 4>(int, float*)", "at::native::add"),
        ("void (anonymous namespace)::sort<std::pair<int, int>>(int)", "sort"),
        ("_ZN2at6native10add_kernelIfLi4EEEvPKf", "at::native::add_kernel"),
        ("_Z10add_kernelPf", "add_kernel"),
        ("aten::mm", "aten::mm"),
        ("<unknown>", "<unknown>"),
        (name_unnamed("kernel", "a5a2729ffa0e"), "unnamed-kernel-a5a2729ffa0e"),
    ],
)
def test_shorten_name__drops_types_templates_and_calls(name, short):
    assert shorten_name(name) == short


def test_attribute__what_got_slower_stands_before_what_got_faster_by_more():
    found = attribute_steps({"mm": 1000.0, "moe": 100.0}, {"mm": 600.0, "moe": 120.0})

    assert [part.name for part in found.parts] == ["moe", "mm"]


def test_summarise__instances_of_one_template_are_one_kernel_and_sums_stay():
    names = {f"void moe<{number}>()": 10.0 for number in range(6)} | {f"other{number}": 5.0 for number in range(20)}
    found = attribute_steps(names, {name: 2 * time_us for name, time_us in names.items()})

    short = summarise(found)

    assert (short.parts[0].name, short.parts[0].base_us, short.parts[0].candidate_us) == ("moe", 30.0, 60.0)
    assert len(short.parts) <= TOP
    assert (short.base_us, short.candidate_us) == (found.base_us, found.candidate_us)


def test_list_ledger__what_one_arm_calls_more_often_a_step():
    """A call in every second step or fewer is a prefill more or less, and no ledger."""
    base = count_calls(moe=96, moe_sum=96, select=6, copy=1, attention=96)
    candidate = count_calls(moe=96, fused=92, select=8, attention=99)
    found = attribute(base, candidate, base_steps=4, candidate_steps=4)

    assert (found.base_calls, found.candidate_calls) == (73.75, 73.75)
    told = [(part.name, part.base_count, part.candidate_count) for part in list_ledger(found)]
    assert told == [("moe_sum", 24.0, 0.0), ("fused", 0.0, 23.0), ("attention", 24.0, 24.75)]


def shape(grid, registers=16):
    return LaunchShape(grid=(grid, 1, 1), block=(128, 1, 1), registers=registers, shared_bytes=0)


def launch(**launches):
    """A trace of kernels by their launches."""
    spent = {name: KernelTime(time_us=8.0, count=sum(found.values()), launches=found) for name, found in launches.items()}
    return KernelTrace(kind="kernel", spent=spent)


def test_list_relaunched__what_runs_as_often_in_another_way():
    """A launch in every second step or fewer is that of a prefill; what is called more often stands in the ledger."""
    base = launch(
        moe={shape(360): 96, shape(9000): 4},
        same={shape(1): 96},
        copy={shape(number): 1 for number in range(8)},
        more={shape(1): 4},
    )
    candidate = launch(
        moe={shape(180, 31): 96, shape(9000): 4},
        same={shape(1): 96},
        copy={shape(40 + number): 1 for number in range(8)},
        more={shape(1): 96},
    )
    found = attribute(base, candidate, base_steps=4, candidate_steps=4)

    (part,) = list_relaunched(found)
    told = [(one.shape, one.base_count, one.candidate_count) for one in part.launches]
    assert (part.name, told) == ("moe", [(shape(360), 24.0, 0.0), (shape(180, 31), 0.0, 24.0)])
    assert [one.name for one in list_ledger(found)] == ["more"]
    assert found.has_launches


def test_list_relaunched__instances_of_one_template_that_took_each_other_s_place():
    """Of one kernel under a short name each launch is counted over all instances."""
    base = launch(**{"moe<1>": {shape(360): 96}, "moe<2>": {shape(180): 96}})
    candidate = launch(**{"moe<1>": {shape(180): 96}, "moe<2>": {shape(360): 96}})

    assert list_relaunched(attribute(base, candidate, base_steps=4, candidate_steps=4)) == ()
    assert not attribute(base, count_calls(moe=2), base_steps=4, candidate_steps=4).has_launches


def test_compare_code__of_kernels_that_run_in_both_arms_and_are_known_in_both():
    base = {"moe": "a" * 16, "same": "b" * 16, "gone": "c" * 16, "only": "d" * 16}
    candidate = {"moe": "e" * 16, "same": "b" * 16, "gone": "c" * 16, "cached": "f" * 16}
    times = {"moe": 9.0, "same": 8.0, "only": 7.0, "library": 6.0}
    found = compare_code(attribute_steps({**times, "gone": 5.0}, times), base, candidate)

    assert {part.name: part.code for part in found.parts} == {
        "moe": "other",
        "same": "same",
        "gone": "",
        "only": "",
        "library": "",
    }
    assert (found.same_code, [part.name for part in list_recompiled(found)]) == (1, ["moe"])


def test_summarise__keeps_a_kernel_of_other_code_whatever_it_takes():
    names = {f"slow{number}": 100.0 for number in range(20)} | {"tiny": 0.1}
    found = attribute_steps(names, {name: 2 * time_us for name, time_us in names.items()})
    short = summarise(compare_code(found, {"tiny": "a" * 16}, {"tiny": "b" * 16}))

    assert [part.name for part in list_recompiled(short)] == ["tiny"]


def test_summarise__keeps_the_ledger_whatever_it_takes():
    names = {f"slow{number}": 100.0 for number in range(20)} | {"tiny": 0.1}
    base = make_trace(**names)
    candidate = KernelTrace(
        kind="kernel",
        spent={name: KernelTime(time_us=time_us * 2, count=2) for name, time_us in names.items() if name != "tiny"}
        | {"tiny": KernelTime(time_us=0.1, count=9)},
    )
    short = summarise(attribute(base, candidate, base_steps=1, candidate_steps=1))

    assert [part.name for part in list_ledger(short)] == ["tiny"]
    assert len(short.parts) <= 2 * TOP
    assert (short.base_calls, short.candidate_calls) == (42.0, 49.0)
