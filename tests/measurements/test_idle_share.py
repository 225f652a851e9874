"""What the page of costs computes from result folders."""

import pytest

from benchmarks.h200.serving.routed_noise import H100, ROUTED
from benchmarks.idle_share.scenarios import HEAD, BlockCost, SessionBlocks, list_price, list_shapes, price_scenarios
from benchmarks.idle_share.shares import Stay, split_parts, summarize
from benchmarks.idle_share.write_cost import (
    PAGE,
    build_page,
    describe_shares,
    describe_verdicts,
    main,
    read_cost,
    read_costs,
)
from perfgate.core import Outcome, Role
from perfgate.scenario.catalog import load_scenario
from tests.fakes.recorded import bring_back
from tests.fakes.sessions import make_scenario, make_session, write_folder

LIVE = {
    "scenario": "cpu-moe",
    "load_average": [0.5, 0.5, 0.5],
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


def make_blocks(*minutes, cold=(), hardware="nvidia-x-80gb", scenario="gpt-oss-20b-shape-mxfp4-c1"):
    blocks = [
        BlockCost(number=number, gpu_minutes=took, is_cold=number in cold) for number, took in enumerate(minutes, 1) if took
    ]
    return SessionBlocks(scenario=scenario, hardware=hardware, gpus=1, blocks=tuple(blocks))


def price(*sessions, scenario="gpt-oss-20b-shape-mxfp4-c1"):
    return list(price_scenarios([load_scenario(scenario)], sessions))


def test_price_scenarios__cold_blocks_stand_apart():
    [found] = price(make_blocks(4.0, 2.0, 2.2), make_blocks(5.0, 3.0), make_blocks(9.0, 2.4, cold=[1]))

    assert (found.sessions, found.blocks, found.gpus) == (3, 7, 1)
    assert (found.first, found.first_cold, found.later) == (4.5, 9.0, 2.3)
    # The third block came after the first look.
    assert (found.look, found.look_cold) == pytest.approx((7.0, 11.4))


def test_price_scenarios__of_a_session_that_was_cut_off():
    [found] = price(make_blocks(4.0), make_blocks())

    assert (found.sessions, found.blocks, found.first) == (1, 1, 4.0)
    assert (found.first_cold, found.later, found.look, found.look_cold) == (None, None, None, None)


def test_price_scenarios__without_a_whole_first_block():
    [found] = price(make_blocks(None, 2.0))

    assert (found.first, found.later, found.look) == (None, 2.0, None)


def test_price_scenarios__each_kind_of_gpu_has_a_row():
    rows = price(make_blocks(4.0, hardware="nvidia-y"), make_blocks(3.0), make_blocks(9.0, scenario="another"))

    assert [(row.hardware, row.first) for row in rows] == [("nvidia-x-80gb", 3.0), ("nvidia-y", 4.0)]


def test_list_price__of_what_was_never_recorded():
    [found] = price(make_blocks(3.0), scenario="gpt-oss-20b-shape-mxfp4-pd-closed-c16")

    assert list_price(found)[:3] == ["gpt-oss-20b-shape-mxfp4-pd-closed-c16", "2", "not measured"]
    assert len(list_price(found)) == len(HEAD)


def test_list_shapes__leaves_out_checkpoints_and_what_runs_on_a_cpu():
    names = [shape.name for shape in list_shapes()]

    assert "deepseek-shape-fp8-closed-c16" in names
    assert all("-shape-" in name for name in names)


def test_read_cost__tells_cold_blocks_of_others():
    """Both servers of the first block found an empty cache, as the session's events tell."""
    cost = read_cost(bring_back(ROUTED) / "mxfp4-soak-aa-2")

    assert [(block.number, block.is_cold) for block in cost.session.blocks] == [(1, True), (2, False)]
    assert [round(block.gpu_minutes, 1) for block in cost.session.blocks] == [11.6, 7.0]


def test_split_parts__servers_one_after_the_other_have_a_part_each():
    session = make_session(make_scenario())
    blocks = {window.block for window in session.windows}
    starts = {window.start for window in session.windows}
    counted = sum(window.role is not Role.WARMUP for window in session.windows)

    assert sum(map(len, split_parts(session, resident="both"))) == counted
    assert len(list(split_parts(session, resident="both"))) == len(blocks)
    assert len(list(split_parts(session, resident="one"))) == len(starts)


def test_build_page__of_a_folder(tmp_path):
    write_folder(tmp_path / "one", make_session(make_scenario()))
    [cost] = read_costs(tmp_path)
    page = build_page([cost], LIVE)

    assert "| deepseek-shape-fp8-mixed-c16 | 1 | not measured |" in page
    assert "The first look comes after 2 blocks." in page
    assert "on cpu-x-2c without a GPU, in one run" in page
    assert "h200.json" not in page
    # 19.9 + 0.1 s of waiting for a window, less 0.3 + 0.2 s.
    assert f"{19.5 * cost.windows / cost.timing.took_s:.0%} more: the GPU waits\n19.5 s longer for each" in page
    assert "waits" not in build_page([cost], {key: value for key, value in LIVE.items() if key != "worker"}).rpartition("|")[2]
    assert "waits 40.0 times as long" in page


def test_build_page__with_a_live_run_on_a_gpu(tmp_path):
    write_folder(tmp_path / "one", make_session(make_scenario()))
    [cost] = read_costs(tmp_path)
    alone = {"idle": {**LIVE["process_per_run"]["idle"], "preparing_s": 9.9}, "cpu_s": 11.5}
    gpu = {**LIVE, "process_per_run": alone, "environment": {"sglang": "0.5.16", "hardware": "nvidia-x-80gb"}}
    page = build_page([cost], LIVE, gpu)

    assert "`benchmarks/idle_share/cpu.json` and `benchmarks/idle_share/h200.json`" in page
    assert "\n9.5 s longer for each" in page
    assert "at one server (nvidia-x-80gb, SGLang 0.5.16, at the end of this page)" in page
    assert "SGLang 0.5.16 on nvidia-x-80gb, in one run" in page
    assert ("waits 40.0 times as long" in page, "waits 20.0 times as long" in page) == (True, True)


def test_read_cost__counts_whole_blocks_and_the_minutes_to_the_look():
    """The recorded session measured four blocks; its first look decided."""
    cost = read_cost(bring_back(ROUTED) / "mxfp4-mixed-c16-graphs-aa-6")

    assert (cost.outcome, len(cost.session.blocks), cost.decided) == (Outcome.PASS, 4, 2)
    # As the folder's events tell: the second block ended 307.8 s after the first server's start.
    assert cost.decided_minutes == pytest.approx(307.81 / 60, abs=0.001)
    assert cost.timing.took_s == pytest.approx(561.5, abs=0.1)
    assert next(describe_verdicts([cost])).startswith(
        "Of 1 sessions with a window that counts, 1 came to a verdict: 1 after 2 blocks.\n"
    )


def test_read_cost__of_what_was_never_decided():
    cost = read_cost(bring_back(ROUTED) / "mxfp4-mixed-c16-graphs-aa-5")

    assert (cost.outcome, len(cost.session.blocks)) == (Outcome.INCONCLUSIVE, 1)
    assert (cost.decided, cost.decided_minutes) == (None, None)
    assert not list(describe_verdicts([cost]))


def test_read_cost__both_gpus_are_paid_for():
    cost = read_cost(bring_back(H100) / "mxfp4-tp2-closed-c16-aa-1")

    assert (cost.session.gpus, cost.session.hardware) == (2, "nvidia-h100-80gb-hbm3")
    # Wall time of both.
    assert f"took {2 * cost.timing.took_s / 60:.0f} GPU-minutes" in describe_shares([cost])
    assert sum(block.gpu_minutes for block in cost.session.blocks) == pytest.approx(2 * cost.timing.took_s / 60, abs=0.1)


def test_write_cost__the_page_is_what_the_folders_give(monkeypatch, tmp_path):
    bring_back(H100)
    bring_back(ROUTED)
    monkeypatch.setattr("benchmarks.idle_share.write_cost.PAGE", tmp_path / "cost.md")
    main()

    assert (tmp_path / "cost.md").read_text() == PAGE.read_text()
