"""What the long run calls a fault: the measurement itself takes minutes, its criterion is asked here."""

from __future__ import annotations

import pytest

from benchmarks.long_run.run import draw_tables, list_faults, measure_growth

LIFE = {"lines": 260, "code": 1, "left": [], "said": [], "memory_mib": [[1, 67.5], [40, 68.4], [204, 69.5]]}


def make_run(**changed):
    sound = {
        "kills": 0,
        "outcome": "REGRESSION",
        "equals_undisturbed": True,
        "windows": 204,
        "server_starts_that_count": 12,
        "windows_superseded": 0,
        "counted_twice": [],
        "problems": [],
        "took_s": 27.2,
        "lives": [LIFE],
    }
    return sound | changed


def test_list_faults__of_a_sound_run():
    assert list_faults(make_run()) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"outcome": "PASS"}, "ends in PASS"),
        ({"equals_undisturbed": False}, "not that of the windows that count"),
        ({"windows": 203}, "203 windows of 12 starts count"),
        ({"server_starts_that_count": 11}, "204 windows of 11 starts count"),
        ({"counted_twice": ["(1, 'base', 2)"]}, "counts twice: (1, 'base', 2)"),
        ({"problems": ["index line 7"]}, "unsound: index line 7"),
        ({"lives": [LIFE | {"left": ["python -m server"]}]}, "still running after a life: python -m server"),
        ({"lives": [LIFE, LIFE | {"memory_mib": [[40, 68.0], [90, 70.1], [100, 68.0]]}]}, "life 2 grew by 2.1 MiB"),
    ],
)
def test_list_faults__names_each(changed, words):
    (fault,) = list_faults(make_run(**changed))

    assert words in fault


def test_measure_growth__what_is_loaded_before_does_not_count():
    assert measure_growth([[1, 50.0], [39, 68.0], [41, 70.0], [204, 70.5]]) == 0.5


@pytest.mark.parametrize("memory", [[], [[1, 50.0], [39, 90.0]]])
def test_measure_growth__of_a_life_too_short_to_tell(memory):
    assert measure_growth(memory) == 0.0


def test_draw_tables__shows_a_verdict_that_differs():
    facts = {"date": "2026-11-21", "commit": "abc", "rule": 1, "python": "Python 3.11", "machine": "x86_64, 2 cores"}

    page = draw_tables(facts | {"runs": [make_run(), make_run(kills=12, equals_undisturbed=False)]})

    assert "| yes | **no** |" in page
    assert "| faults | 0 | 1 |" in page
