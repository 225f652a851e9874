"""A team's past: data.js, JSONL folders and printed logs become series, once, with what they say of themselves."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from shutil import copy

import pytest

from perfgate.errors import EvidenceError, InputError
from perfgate.history.database import HistoryQuestion
from perfgate.history.imports.data_js import is_data_js, read_data_js
from perfgate.history.imports.loose_runs import read_past_runs
from perfgate.history.imports.past import Past, enter_past, read_moment
from perfgate.history.query import read_history
from perfgate.history.store import Store
from perfgate.history.trends import Provenance
from tests.fakes.history import draw_levels

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
H20 = Past(hardware="NVIDIA H20", at=datetime(2025, 11, 20, tzinfo=UTC))


def make_result(day, value, tool="customBiggerIsBetter", unit="tok/s", name="throughput"):
    return {
        "commit": {"id": f"{day:040x}", "message": "</script>", "author": {"name": "An Author"}},
        "date": 1_767_200_000_000 + day * 86_400_000,
        "tool": tool,
        "benches": [{"name": name, "value": value, "unit": unit, "range": "± 3", "extra": "x"}],
    }


def write_data_js(path, results, suite="Serving / Qwen3 MoE"):
    path.write_text("window.BENCHMARK_DATA = " + json.dumps({"lastUpdate": 1, "entries": {suite: results}}) + ";\n")
    return path


def write_jsonl(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "backend": "sglang",
            "dataset_name": "random",
            "random_input_len": 256,
            "random_output_len": 32,
            "random_range_ratio": 1.0,
            "max_concurrency": 16,
            "num_prompts": 100,
            "completed": 100,
            "total_output_tokens": 3200,
            "duration": 3200 / value,
            "output_throughput": value,
            "mean_ttft_ms": 100.0 + index,
        }
        for index, value in enumerate(values)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def add(store, runs):
    return store.append([enter_past(run) for run in runs])


def test_read_data_js__becomes_a_series_with_its_commits(tmp_path):
    path = write_data_js(tmp_path / "data.js", [make_result(day, value) for day, value in enumerate(draw_levels([1000, 900]))])
    store = Store(str(tmp_path / "store"))
    add(store, read_data_js(path, Past(hardware="H100 SXM")))

    (series,) = read_history(store, HistoryQuestion()).series

    assert is_data_js(path)
    assert (series.subject.scenario, series.subject.hardware) == ("serving-qwen3-moe", "h100-sxm")
    assert (series.subject.metric, series.subject.unit, series.subject.better) == ("throughput", "tok/s", "higher")
    (change,) = series.changes
    assert change.is_worse
    assert change.commits == (f"{19:040x}", f"{20:040x}")


@pytest.mark.parametrize(
    ("tool", "better"),
    [("cargo", "lower"), ("pytest", "higher"), ("benchmarkjs", "higher"), ("customSmallerIsBetter", "lower")],
)
def test_read_data_js__a_tool_says_what_is_better(tmp_path, tool, better):
    (run,) = read_data_js(write_data_js(tmp_path / "data.js", [make_result(1, "2.5e-05", tool=tool)]), H20)

    assert (run.others[0].value, run.others[0].better) == (2.5e-05, better)


def test_read_data_js__a_number_can_be_one_of_perfgates_metrics(tmp_path):
    path = write_data_js(tmp_path / "data.js", [make_result(day, 1000.0 + day) for day in range(3)])
    store = Store(str(tmp_path / "store"))
    add(store, read_data_js(path, Past(hardware="h", metrics={"throughput": "output_tok_per_s"})))

    (series,) = read_history(store, HistoryQuestion()).series

    assert (series.subject.title, series.subject.unit) == ("Output throughput", "tok/s")


def test_read_data_js__another_unit_is_another_series(tmp_path):
    results = [make_result(1, 5.0, "pytest", "iter/sec"), make_result(2, 0.2, "customSmallerIsBetter", "seconds")]
    store = Store(str(tmp_path / "store"))
    add(store, read_data_js(write_data_js(tmp_path / "data.js", results), H20))

    units = {series.subject.unit: len(series.points) for series in read_history(store, HistoryQuestion()).series}

    assert units == {"iter/sec": 1, "seconds": 1}


def test_read_data_js__a_file_that_grew_adds_what_is_new(tmp_path):
    results = [make_result(day, 1000.0 + day) for day in range(5)]
    store = Store(str(tmp_path / "store"))

    assert len(add(store, read_data_js(write_data_js(tmp_path / "data.js", results[:3]), H20))) == 3
    assert len(add(store, read_data_js(write_data_js(tmp_path / "data.js", results), H20))) == 2
    assert len(read_history(store, HistoryQuestion()).series[0].points) == 5


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("window.BENCHMARK_DATA = {", "not valid JSON .*; give data.js as github-action-benchmark wrote it"),
        ("window.BENCHMARK_DATA = {}", "entries: Field required"),
        (
            "window.BENCHMARK_DATA = " + json.dumps({"entries": {"s": [{**make_result(1, 1.0), "date": -1}]}}),
            r"entries\.s\.0\.date",
        ),
        ("window.BENCHMARK_DATA = " + json.dumps({"entries": {"s": [make_result(1, "fast")]}}), r"benches\.0\.value"),
    ],
)
def test_read_data_js__says_in_a_line_what_is_wrong(tmp_path, content, problem):
    (tmp_path / "data.js").write_text(content)

    with pytest.raises(EvidenceError, match=problem) as caught:
        list(read_data_js(tmp_path / "data.js", H20))

    assert "\n" not in str(caught.value)


def test_read_past_runs__a_folder_tells_date_and_commit_in_its_paths(tmp_path):
    for day in (1, 2, 3):
        write_jsonl(tmp_path / "past" / f"2026-03-0{day}_abc{day:04x}" / "run.jsonl", [1000.0 + day, 1010.0 + day])
    (tmp_path / "past" / "notes.txt").write_text("nothing measured here")
    pattern = re.compile(r"(?P<date>\d{4}-\d\d-\d\d)_(?P<commit>[0-9a-f]{7})")

    found = read_past_runs([tmp_path / "past"], Past(hardware="h20", pattern=pattern))

    assert [run.at.isoformat() for run in found.runs[:3]] == [
        "2026-03-01T00:00:00+00:00",
        "2026-03-01T00:00:01+00:00",
        "2026-03-02T00:00:00+00:00",
    ]
    assert {run.provenance.commit for run in found.runs} == {"abc0001", "abc0002", "abc0003"}
    assert {run.scenario for run in found.runs} == {"random-256x32-c16-n100"}
    assert len(found.skipped) == 1
    assert "notes.txt" in found.skipped[0]


def test_read_past_runs__without_a_date_takes_that_of_the_file(tmp_path):
    path = write_jsonl(tmp_path / "run.jsonl", [1000.0])
    os.utime(path, (1_700_000_000, 1_700_000_000))

    (run,) = read_past_runs([path], Past(hardware="h20")).runs

    assert run.at == datetime.fromtimestamp(1_700_000_000, UTC)


def test_read_past_runs__the_founding_log_keeps_its_figures(tmp_path):
    store = Store(str(tmp_path / "store"))
    runs = read_past_runs([RUNS / "matrix.log"], H20).runs
    added = add(store, runs)

    history = read_history(store, HistoryQuestion(metrics=("output_tok_per_s",)))

    assert len(added) == 4
    assert add(store, runs) == ()
    assert {series.subject.scenario: series.points[0].value for series in history.series} == {
        "flashinfer-rand128x16": 635.64,
        "flashinfer-rand256x32": 1002.94,
        "triton-rand128x16": 583.99,
        "triton-rand256x32": 915.43,
    }
    assert {series.subject.hardware for series in history.series} == {"nvidia-h20"}


def test_read_past_runs__a_cold_run_is_kept_and_no_level(tmp_path):
    store = Store(str(tmp_path / "store"))
    runs = read_past_runs([RUNS / f"fusion_off_{number}.txt" for number in (1, 2, 3)], H20).runs
    add(store, runs)

    (series,) = read_history(store, HistoryQuestion(metrics=("output_tok_per_s",))).series

    assert [run.cold is not None for run in runs] == [True, False, False]
    assert len(series.points) == 2


def test_read_past_runs__refuses_what_is_given_and_holds_no_run(tmp_path):
    (tmp_path / "x.txt").write_text("hello")

    with pytest.raises(EvidenceError, match=r"x\.txt: no bench_serving JSONL line"):
        read_past_runs([tmp_path / "x.txt"], H20)
    with pytest.raises(EvidenceError, match=r"nothing\.jsonl: no such file"):
        read_past_runs([tmp_path / "nothing.jsonl"], H20)


def test_read_past_runs__a_link_in_a_folder_is_not_followed(tmp_path):
    (tmp_path / "past").mkdir()
    (tmp_path / "past" / "link.jsonl").symlink_to(write_jsonl(tmp_path / "outside.jsonl", [1.0]))

    assert read_past_runs([tmp_path / "past"], H20).runs == ()


def test_past__refuses_a_metric_that_is_none():
    with pytest.raises(InputError, match="--metric x=speed: speed is no metric"):
        Past(hardware="h", metrics={"x": "speed"})


def test_enter_past__a_run_with_a_problem_is_no_level(tmp_path):
    path = write_jsonl(tmp_path / "run.jsonl", [1000.0])
    path.write_text(path.read_text().replace('"completed": 100', '"completed": 90'))
    (run,) = read_past_runs([path], H20).runs

    entry = enter_past(run)

    assert entry.windows[0]["judged"] is False
    assert entry.verdict["reasons"]


@pytest.mark.parametrize("text", ["2026-11-21", "2026-11-21T00:00:00Z", "2026-11-21T01:00:00+01:00"])
def test_read_moment__is_utc(text):
    assert read_moment(text) == datetime(2026, 11, 21, tzinfo=UTC)


@pytest.mark.parametrize("text", ["yesterday", "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"])
def test_read_moment__refuses_what_is_no_date(text):
    with pytest.raises(InputError, match=f"'{re.escape(text)}' is no date"):
        read_moment(text)


def test_provenance__of_a_pattern_is_checked(tmp_path):
    path = write_jsonl(tmp_path / "past" / "main.jsonl", [1000.0])

    with pytest.raises(InputError, match="--commit 'main': give 7 to 40"):
        read_past_runs([path.parent], Past(hardware="h", pattern=re.compile(r"(?P<commit>main)"), provenance=Provenance()))


def test_read_past_runs__each_series_of_files_has_its_own_cold_start():
    found = read_past_runs(sorted(RUNS.glob("fusion_o*.txt")), H20).runs

    assert [Path(run.source).name for run in found if run.cold] == ["fusion_off_1.txt", "fusion_on_1.txt"]


@pytest.mark.parametrize(
    ("names", "cold"),
    [
        (("moe_before_1_cold.txt", "moe_before_2.txt", "moe_before_3.txt"), ["moe_before_1_cold.txt"]),
        (("run_1_before.txt", "run_1_after.txt", "run_2_after.txt"), []),
        (("rand256x32.txt", "rand256x32_2.txt", "rand256x32_3.txt"), []),
    ],
)
def test_read_past_runs__a_word_behind_the_number_is_a_remark_on_a_run(tmp_path, names, cold):
    """The founding runs have such names; where the number without the word is there too, the word tells servers apart."""
    for number, name in enumerate(names, 1):
        copy(RUNS / f"fusion_off_{number}.txt", tmp_path / name)

    found = read_past_runs([tmp_path / name for name in names], H20).runs

    assert [Path(run.source).name for run in found if run.cold] == cold
