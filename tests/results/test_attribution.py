"""Which kernels a difference consists of, and the names that people know them by."""

from __future__ import annotations

import pytest

from perfgate.evidence import KernelTime, KernelTrace
from perfgate.results.profiling.attribution import TOP, attribute, shorten_name, summarise


def make_trace(**times_us):
    return KernelTrace(kind="kernel", spent={name: KernelTime(time_us=time_us, count=2) for name, time_us in times_us.items()})


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
