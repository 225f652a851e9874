"""A session for real is measured again where the work of others voided it, and in no other case."""

from dataclasses import replace

import pytest

from perfgate.check import Case, judge
from perfgate.core import Arm, Outcome, Remark, RemarkKind
from perfgate.results.readings import FOREIGN_CPU, STOLEN_CPU
from tests.e2e.commands import AGAIN
from tests.e2e.undisturbed import TRIES, is_of_others, measure_undisturbed, name_disturbance
from tests.fakes.sessions import change_window, make_scenario, make_session, write_folder

SCENARIO = make_scenario()
FEW_GAPS = Remark(kind=RemarkKind.FEW_GAPS, found=112, due=120)
FAILED = Remark(kind=RemarkKind.FAILED, found=1, due=400, detail="ConnectionResetError")
PLACE = 3
"""Of a measured window."""


def make_void(*problems, shares, place=PLACE):
    """A judged session with problems in one window, and what others had of the processor in the one at `place`."""
    session = change_window(make_session(SCENARIO), PLACE, problems=problems)
    session = change_window(session, place, telemetry=shares)
    return Case(session=session, scenario=SCENARIO, baseline=None, verdict=judge(session, SCENARIO, None))


def write_session(folder, lost):
    """A result folder; others had the share `lost` of the processor while the base was measured, and nothing of it else."""
    session = make_session(SCENARIO)
    windows = (replace(one, telemetry={FOREIGN_CPU: lost if one.arm is Arm.BASE else 0.0}) for one in session.windows)
    return write_folder(folder, replace(session, windows=tuple(windows)))


def count_tries(folder, *lost):
    """Measure sessions in which others had `lost` of the base's processor, the last of them from then on; count them."""
    measured = []

    def measure(place):
        measured.append(write_session(place, lost[min(len(measured), len(lost) - 1)]))
        return place

    last = measure_undisturbed(measure, folder, lambda place: place)
    assert last == measured[-1]
    return len(measured)


@pytest.mark.parametrize("name", [FOREIGN_CPU, STOLEN_CPU])
def test_name_disturbance__tokens_came_at_once_while_others_had_the_machine(name):
    case = make_void(FEW_GAPS, shares={name: 0.89})

    assert case.verdict.outcome is Outcome.INVALID
    assert "112 inter-token gaps for 120 due" in name_disturbance(case)


@pytest.mark.parametrize(
    ("problems", "shares", "place"),
    [
        ((), {FOREIGN_CPU: 0.89}, PLACE),
        ((FEW_GAPS,), {FOREIGN_CPU: 0.02}, PLACE),
        ((FEW_GAPS,), {}, PLACE),
        ((FEW_GAPS,), {FOREIGN_CPU: 0.89}, PLACE + 1),
        ((FAILED,), {FOREIGN_CPU: 0.89}, PLACE),
        ((FEW_GAPS, FAILED), {FOREIGN_CPU: 0.89}, PLACE),
    ],
    ids=["valid", "idle machine", "nothing read", "another window", "a failed request", "both"],
)
def test_name_disturbance__nothing_that_others_explain(problems, shares, place):
    assert name_disturbance(make_void(*problems, shares=shares, place=place)) == ""


@pytest.mark.parametrize(("start", "is_explained"), [(3, True), (1, False)])
def test_is_of_others__a_start_that_is_named(start, is_explained):
    """The work of others beside one start explains nothing of another."""
    session = make_session(SCENARIO)
    windows = (replace(one, telemetry={FOREIGN_CPU: 0.5 if one.start == start else 0.0}) for one in session.windows)
    case = make_void(shares={})

    reason = "start 3: never steady (slowness against its first window: 0.0 %, +90.0 %); stop other work on the machine"

    assert is_of_others(reason, replace(case, session=replace(session, windows=tuple(windows)))) is is_explained


@pytest.mark.parametrize(("lost", "tries"), [((0.0,), 1), ((0.8, 0.0), 2), ((0.8, 0.8, 0.0), 3), ((0.8,), TRIES)])
def test_measure_undisturbed__until_one_is_not_void(tmp_path, capsys, lost, tries):
    assert count_tries(tmp_path, *lost) == tries
    assert capsys.readouterr().out.count(f"{AGAIN}: block 1: others took 80 %") == tries - 1


def test_measure_undisturbed__void_for_another_reason_is_measured_once(tmp_path):
    measured = []

    def measure(folder):
        session = make_session(SCENARIO)
        measured.append(write_folder(folder, change_window(session, PLACE, completed=399)))
        return folder

    measure_undisturbed(measure, tmp_path, lambda folder: folder)

    assert len(measured) == 1
