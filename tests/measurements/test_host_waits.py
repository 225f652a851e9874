"""What a slow server's host did: where threads are put, when tokens arrived, what is read of a thread, and the tables."""

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.h200.serving.host_threads import COUNTERS, FRONT_END, MAIN, Sampler, read_thread
from benchmarks.h200.serving.host_waits import ARMS, list_arrivals, measure_gaps, order_arms, plan_cores
from benchmarks.h200.serving.host_waits_table import Second, describe, list_seconds, tabulate_front_end
from perfgate.runner.setup.topology import parse_list

EIGHT = [(core, core + 8) for core in range(8)]


def make_window(arm, itl_ms, delay_s):
    groups = {MAIN: [0.9, delay_s, 10, 0.8, 0.1, 5, 20, 3], "client main": [0.5, 0.0, 10, 0.5, 0.0, 0, 9, 1]}
    second = {"itl_ms": itl_ms, "tokens": 900, "groups": groups, "cpus": {"0": [0.9, 0.0]}, "lap": [80.0], "cpu": 0, "moves": 1}
    values = {"output_tok_per_s": 900.0, "median_itl_ms": itl_ms, "p99_itl_ms": 2 * itl_ms}
    return {"arm": arm, "values": values, "seconds": [second, {**second, "itl_ms": None}]}


def test_order_arms__each_round_has_all_and_begins_with_another():
    rounds = [order_arms(ARMS, number) for number in range(5)]

    assert all(sorted(one) == sorted(ARMS) for one in rounds)
    assert rounds[0] == list(ARMS)
    assert rounds[1] == ["plain", "frozen", "quiet", "alone", "pinned"]


def test_plan_cores__pinned_parts_share_no_core_and_leave_the_samplers():
    places = plan_cores(EIGHT, "pinned")

    assert places[MAIN] == {1}
    assert places[""] == {0, 8}
    others = [places[part] for part in places if part != MAIN]
    assert sum(map(len, others)) == len(set().union(*others)) == 12
    assert not {7, 15} & set().union(*places.values())


def test_plan_cores__alone_keeps_all_others_off_the_siblings():
    places = plan_cores(EIGHT, "alone")

    assert places[MAIN] == {1}
    assert places[""] == set(range(16)) - {1, 9}
    assert plan_cores(EIGHT, "plain") == plan_cores(EIGHT, "quiet") == {"": set(range(16))}


@pytest.mark.parametrize("groups", [[(0,)], [(0, 1)], [(0,), (1,)], [(0,), (1,), (2,)]])
def test_plan_cores__few_cores_are_shared(groups):
    assert all(plan_cores(groups, arm)[""] for arm in ARMS)
    assert all(plan_cores(groups, arm).get(MAIN, {0}) for arm in ARMS)


def test_parse_list__ranges_and_single_ones():
    assert parse_list("0-1,8\n") == [0, 1, 8]


def test_list_arrivals__a_request_begins_where_the_first_one_ends():
    gaps = [[0.1, 0.1], [0.4], [0.2]]
    details = SimpleNamespace(
        ttft_s=np.array([1.0, 1.0, 0.5]), itl_s=np.array([gap for one in gaps for gap in one]), itl_count=np.array([2, 1, 1])
    )
    arrivals = list_arrivals(details, 2)

    assert [np.round(one, 6).tolist() for one in arrivals] == [[1.0, 1.1, 1.2], [1.0, 1.4], [1.7, 1.9]]
    assert measure_gaps(arrivals, 1.0, 3) == [(None, 0), (150.0, 4), (None, 0)]


def test_read_thread__this_one_and_none_that_has_ended():
    found = read_thread(os.getpid(), os.getpid())

    assert found.counters.shape == (len(COUNTERS),)
    assert found.cpu in range(os.cpu_count())
    assert read_thread(os.getpid(), 2**22 + 1) is None


def test_sampler__sums_what_the_threads_did():
    allowed = os.sched_getaffinity(0)
    monitor = SimpleNamespace(read=lambda: (SimpleNamespace(values={"power_w": 550.0, "sm_clock_mhz": 1980.0}),))
    try:
        sampler = Sampler(roles={os.getpid(): "scheduler"}, monitor=monitor, groups=[sorted(allowed)])
        for _ in range(7):
            sampler.read()
            end = time.thread_time() + 0.03
            while time.thread_time() < end:
                pass
    finally:
        os.sched_setaffinity(0, allowed)
    edges = np.array([sampler.begun, time.monotonic()])
    [second] = sampler.tell(edges)

    assert second["groups"][MAIN][0] == pytest.approx(0.18, abs=0.05)
    assert (second["cpu"], second["gpu"]) == (max(allowed), [550.0, 1980.0])
    assert sampler.tell_main(edges)[0][2:] == [max(allowed), "R"]
    assert sampler.begun < sampler.find_end(MAIN) <= edges[1]


def test_tabulate_front_end__slow_seconds_by_the_share_of_a_core():
    def second(share, is_slow):
        return Second(arm="plain", told={"groups": {FRONT_END: [share, 0.0]}}, is_slow=is_slow)

    told = tabulate_front_end([second(0.5, False), second(0.95, False), second(0.98, True), second(1.0, False)])

    assert told.rows == [[arm, "0.86", "0 of 1", "0 of 1", "1 of 2"] for arm in ("all", "plain")]


def test_describe__slow_seconds_and_windows_by_arm():
    windows = [make_window("plain", 9.3, 0.0) for _ in range(3)] + [make_window("quiet", 11.0, 0.2)]

    assert [second.is_slow for second in list_seconds(windows)] == [False, False, False, True]
    lines = describe(windows).splitlines()
    assert next(line for line in lines if line.startswith("quiet")).split()[-5:] == ["1", "(100.0%)", "100.0%", "of", "1"]
    assert next(line for line in lines if line.startswith("scheduler main delay_s")).split()[-2:] == ["0", "0.2"]
    assert describe([]) == "no window was measured"
