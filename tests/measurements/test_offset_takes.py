"""What an offset of a whole session takes: the rows that the simulated page tells."""

from __future__ import annotations

from benchmarks.verdict.gate import PLAN
from benchmarks.verdict.offset import ALPHAS, STORED, list_tries, study


def test_list_tries__every_alpha_by_the_stored_blocks_of_the_case_and_the_shipped_one_by_more():
    rows = [(design.stored, plan.alpha) for design, plans in list_tries() for plan in plans]

    assert rows == [*((20, alpha) for alpha in ALPHAS), *((stored, PLAN.alpha) for stored in STORED)]


def test_study__a_stricter_alpha_judges_the_same_windows_and_finds_no_more():
    design, plans = next(iter(list_tries()))

    rows = study(design, plans, (11, 0), 200, 100)

    assert [row["equal"]["regression"]["tries"] for row in rows] == [200] * len(ALPHAS)
    found = [row["slower"]["regression"]["count"] for row in rows]
    assert found == sorted(found, reverse=True)
    assert found[0] > rows[0]["equal"]["regression"]["count"]
    assert {(row["stored"], row["sessions"]) for row in rows} == {(20, 5)}
