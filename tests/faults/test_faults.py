"""Every seeded fault gets the answer that it must get; the page that lists them is whole, and their bars are met."""

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.fault import Kind, Where
from tests.faults.render import BARS, PAGE, render
from tests.faults.results import RECORDED, build_result, keep, load


def mark(fault):
    marks = [pytest.mark.long] if fault.is_long else []
    if fault.where is Where.ENGINE:
        marks += [pytest.mark.engine, pytest.mark.timeout(1800), pytest.mark.xdist_group("engine")]
    if fault.where is Where.FAKE:
        marks.append(pytest.mark.session)
    if fault.is_long and fault.where is Where.FAKE:
        marks.append(pytest.mark.timeout(1800))
    if fault.missed:
        marks.append(pytest.mark.xfail(reason=fault.missed))
    return pytest.param(fault, id=fault.slug, marks=marks)


@pytest.mark.parametrize("fault", [mark(fault) for fault in FAULTS])
def test_gate__answers_a_seeded_fault(fault, tmp_path):
    answer = fault.run(tmp_path)
    result = build_result(fault, answer)
    keep(result)

    assert result.caught, answer


def test_faults__have_names_of_their_own():
    names = [fault.name for fault in FAULTS]

    assert len(names) == len(set(names))
    assert len(names) >= 40


def test_fault_table__lists_every_fault_as_it_was_recorded():
    assert PAGE.read_text() == render(FAULTS, load(RECORDED)), "write it anew: python -m tests.faults.render"


def test_fault_table__has_a_run_of_every_fault_as_it_stands_now():
    results = load(RECORDED)
    missing = [fault.name for fault in FAULTS if fault.name not in results]
    outdated = [
        fault.name
        for fault in FAULTS
        if (result := results.get(fault.name)) is not None
        and (result.expected != " or ".join(fault.expected) or (result.caught and fault.words not in result.by))
    ]

    assert (missing, outdated) == ([], [])


def test_fault_table__misses_no_fault_without_a_reason():
    results = load(RECORDED)
    missed = {fault.name for fault in FAULTS if not results[fault.name].caught}

    assert missed == {fault.name for fault in FAULTS if fault.missed}


@pytest.mark.parametrize("kind", list(Kind))
def test_fault_table__says_whether_its_bar_is_met(kind):
    results = load(RECORDED)
    faults = [fault for fault in FAULTS if fault.kind is kind]
    caught = [fault.name for fault in faults if results[fault.name].caught]
    [row] = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {kind.value} | {len(faults)} |")]

    assert row.endswith(", NOT met |") is (len(caught) < BARS[kind] * len(faults))
