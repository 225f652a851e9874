"""What the page of costs computes from result folders."""

import pytest

from benchmarks.idle_share.shares import Idle, Stay, split_parts, summarize
from benchmarks.idle_share.write_cost import build_page, describe_without_rest, read_costs
from perfgate.core import Role
from tests.fakes.sessions import make_scenario, make_session, write_folder

LIVE = {
    "scenario": "cpu-moe",
    "load_average": [0.5, 0.5, 0.5],
    "import_cpu_s": 10.0,
    "environment": {"sglang": "0.5.15", "hardware": "cpu-x-2c"},
    "worker": {
        "idle": {"windows": 6, "share": 0.2, "load_s": 2.0, "preparing_s": 0.3, "between_s": 0.2},
        "cpu_s": 1.5,
    },
    "process_per_run": {
        "idle": {"windows": 2, "share": 0.9, "load_s": 2.0, "preparing_s": 19.9, "between_s": 0.1},
        "cpu_s": 11.5,
    },
}


def test_summarize__what_is_no_load_is_waiting():
    one = [Stay(begun_s=0.0, ended_s=6.0, load_s=5.0), Stay(begun_s=7.0, ended_s=14.0, load_s=5.0)]
    two = [Stay(begun_s=100.0, ended_s=106.0, load_s=5.0)]
    found = summarize([one, [], two])

    assert found.windows == 3
    assert found.share == pytest.approx(1 - 15 / 20)
    assert (found.load_s, found.preparing_s, found.between_s) == (5.0, 1.0, 1.0)
    assert found.waiting_s == 2.0


def test_split_parts__servers_one_after_the_other_have_a_part_each():
    session = make_session(make_scenario())
    blocks = {window.block for window in session.windows}
    starts = {window.start for window in session.windows}
    counted = sum(window.role is not Role.WARMUP for window in session.windows)

    assert sum(map(len, split_parts(session, resident="both"))) == counted
    assert len(list(split_parts(session, resident="both"))) == len(blocks)
    assert len(list(split_parts(session, resident="one"))) == len(starts)


def test_describe_without_rest__of_an_old_session_and_of_a_new_one():
    old = Idle(windows=6, share=0.25, load_s=4.5, preparing_s=1.5, between_s=0.15)
    new = Idle(windows=6, share=0.1, load_s=4.5, preparing_s=0.4, between_s=0.05)

    assert (describe_without_rest(old), describe_without_rest(new)) == ("13%", "")


def test_build_page__of_a_folder(tmp_path):
    write_folder(tmp_path / "one", make_session(make_scenario()))
    [cost] = read_costs(tmp_path)
    page = build_page([cost], LIVE)
    row = next(line for line in page.splitlines() if line.startswith("| one |"))

    assert "10.0 s more" in page
    assert "waits" not in build_page([cost], {key: value for key, value in LIVE.items() if key != "worker"}).rpartition("|")[2]
    assert f"| {(cost.timing.took_s + 10 * cost.windows) / 60:.1f} |" in row
    assert "waits 40.0 times as long" in page
