"""A cell of a matrix is admitted as a session is: whole or not at all, and by the same checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.core import Arm, Role
from perfgate.evidence import CellEvidence, Damage, DamageKind, DriverProblem
from perfgate.scenario.matrix import parse_matrix
from perfgate.verdict.cells import judge_cells
from tests.fakes.sessions import make_session

MATRIX = parse_matrix((Path(__file__).parents[1] / "fakes" / "matrix.toml").read_text(), "matrix.toml")
SESSION = make_session(MATRIX.build_scenario("plain", "closed"), arms=(Arm.BASE,), has_base=False)
CHANGED = Damage(kind=DamageKind.CHANGED, file="windows/0000.jsonl.gz")
FIRST = next(place for place, window in enumerate(SESSION.windows) if window.role is Role.MEASURED)


def judge(session):
    [cell] = judge_cells(MATRIX, [CellEvidence(server="plain", load="closed", session=session)])
    return cell


def change(place, **changes):
    """The session with one window that is not as it was."""
    windows = list(SESSION.windows)
    windows[place] = replace(windows[place], **changes)
    return replace(SESSION, windows=tuple(windows))


def drop(*roles, block):
    """The session without the windows of some roles in a round."""
    return replace(SESSION, windows=tuple(one for one in SESSION.windows if one.block != block or one.role not in roles))


def test_judge_cells__the_level_is_the_median_of_the_rounds():
    cell = judge(SESSION)

    rounds = cell.find_round_levels("output_tok_per_s")
    assert (cell.problems, len(cell.windows), len(rounds)) == ((), 4, 2)
    assert cell.find_level("output_tok_per_s") == pytest.approx(sum(rounds) / 2)
    assert cell.find_level("gsm8k") is None


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (change(FIRST, telemetry={"throttled_share": 0.5}), "the GPU throttled for 50 % of the window"),
        (change(FIRST, telemetry={"kernels_compiled": 2.0}), "the server compiled 2 kernels, and no re-run"),
        (change(FIRST, run=replace(SESSION.windows[FIRST].run, completed=7)), "7 of 8 requests completed"),
        (change(FIRST, ended_s=SESSION.windows[FIRST].begun_s + 0.5), "a clock jumped or this was edited"),
        (drop(Role.WARMUP, block=1), "no window was discarded, so a cold one would be judged"),
        (drop(Role.MEASURED, block=2), "block 2, base: 0 measured windows where the scenario fixed 2"),
        (replace(SESSION, problems=(DriverProblem(message="the server died", round=2),)), "round 2: the server died"),
        (replace(SESSION, damage=(CHANGED,)), "does not match its digest"),
        (replace(SESSION, checks=("equivalence",)), "measured but never asked the equivalence prompts"),
        (replace(SESSION, fingerprints={}), "the base arm has no fingerprint"),
    ],
)
def test_judge_cells__what_voids_a_session_voids_a_cell(session, words):
    cell = judge(session)

    assert words in cell.problems[0]
    assert (cell.windows, cell.find_level("output_tok_per_s")) == ((), None)


def test_judge_cells__a_matrix_that_was_cut_off_has_the_rounds_that_are_whole():
    partly = judge(replace(drop(Role.MEASURED, block=2), is_complete=False))
    never = judge(replace(SESSION, windows=(), is_complete=False))

    assert (partly.problems, {window.block for window in partly.windows}) == ((), {1})
    assert never.problems == ("was not measured yet; continue with --resume",)


def test_judge_cells__a_rerun_takes_the_place_of_a_window_with_other_work():
    spoilt = change(FIRST, telemetry={"kernels_compiled": 2.0})
    last = SESSION.windows[FIRST + 1]
    again = replace(last, role=Role.RERUN, index=last.index + 1, begun_s=last.ended_s + 0.1, ended_s=last.ended_s + 0.9)
    values = {**again.run.values, "p99_itl_ms": 31.0}
    again = replace(again, run=replace(again.run, source="again", duration_s=0.7, values=values))
    cell = judge(replace(spoilt, windows=(*spoilt.windows, again)))

    assert cell.problems == ()
    assert "again" in {window.run.source for window in cell.windows}
    assert spoilt.windows[FIRST] not in cell.windows
