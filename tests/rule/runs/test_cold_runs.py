"""Which leading runs count as cold."""

import pytest

from perfgate.core import Run
from perfgate.verdict.runs.workloads import find_slow, order_runs, split_cold


def make_run(request_per_s, source="run.txt", mean_e2e_ms=None):
    values = {"request_per_s": request_per_s} | ({"mean_e2e_ms": mean_e2e_ms} if mean_e2e_ms else {})
    return Run(
        source=source,
        values=values,
        workload={},
        requested=100,
        completed=100,
        input_tokens=1,
        output_tokens=1,
        duration_s=1.0,
    )


@pytest.mark.parametrize(
    ("speeds", "dropped"),
    [
        ([1.48, 3.22, 3.24], 1),
        ([2.29, 3.25, 3.23], 1),
        ([1.0, 2.0, 3.22, 3.24, 3.23], 2),
        ([1.48, 3.22], 0),
        ([1.48], 0),
        ([], 0),
        ([3.0, 3.22, 3.24], 0),
        ([3.22, 1.48, 3.24], 0),
        ([3.22, 3.24, 1.48], 0),
        ([1.48, 1.50, 3.22, 3.24], 0),
        ([2.0, 3.0, 2.4], 0),
        ([3.30, 1.48, 3.22, 3.24, 3.21], 0),
    ],
)
def test_split_cold__only_a_lead_far_below_the_rest(speeds, dropped):
    runs = [make_run(speed) for speed in speeds]

    cold, kept = split_cold(runs)

    assert [found.run for found in cold] == runs[:dropped]
    assert list(kept) == runs[dropped:]


def test_split_cold__figures():
    (cold,), _ = split_cold([make_run(1.48), make_run(3.24), make_run(3.22)])

    assert cold.figures == "1.48 requests/s against 3.22"


def test_split_cold__latency_where_the_client_sets_the_pace():
    (cold,), _ = split_cold([make_run(3.2, mean_e2e_ms=900), make_run(3.2, mean_e2e_ms=300), make_run(3.2, mean_e2e_ms=310)])

    assert cold.figures == "mean E2E 900.00 ms against 310.00"


def test_find_slow__run_in_the_middle_is_named():
    runs = [make_run(3.22), make_run(1.48), make_run(3.24)]

    assert [slow.run for slow in find_slow(runs)] == [runs[1]]


def test_order_runs__numbers_as_numbers_whatever_the_order():
    names = ["a/run.txt", "a/run2.txt", "a/run10.txt", "b.jsonl:2", "b.jsonl:10", "b2.jsonl:1"]
    runs = [make_run(1.0, source=name) for name in names]

    assert [run.source for run in order_runs(reversed(runs))] == names
