"""JSON documents of other load generators.

guidellm.json was written by guidellm 0.8.1 against its own mock server; aiperf.json and aiperf_rate.json by aiperf 0.13.0
against a server that streams a token every 2 ms (the first with one request refused); the others against, or with, SGLang
0.5.23 on a CPU and the tiny mixture of experts: genai_perf.json by genai-perf 0.0.16 with perf_analyzer 2.60.0 (--request-count
12 --concurrency 2), bench_one_batch.jsonl, bench_one_batch_server.jsonl (its last line with --disable-ignore-eos) and
sglang_nightly.json by SGLang's own benchmarks. The last is what the same run of bench_one_batch_server wrote for
--pydantic-result-filename, as nightly runs call it; bench_one_batch draws words up to 10,000, so its model had 10,240 and dummy
weights; vllm_sweep.json by `vllm bench sweep serve --num-runs 2` of vLLM 0.32.0. What is not read was cut out of the files of
guidellm, aiperf, genai-perf and vLLM. AIPERF has the form of older releases.
"""

import json
from pathlib import Path

import pytest

from perfgate.core import Remark, RemarkKind
from perfgate.errors import EvidenceError
from perfgate.readers.bench_serving import read_runs

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
AIPERF = {
    "schema_version": "1.4",
    "aiperf_version": "0.13.0",
    "request_throughput": {"unit": "requests/sec", "avg": 8.0},
    "request_latency": {"unit": "ms", "avg": 400.0, "p50": 390.0, "p99": 510.0},
    "request_count": {"unit": "requests", "avg": 32.0},
    "time_to_first_token": {"unit": "ms", "avg": 30.5, "p50": 29.0, "p99": 60.0},
    "inter_token_latency": {"unit": "ms", "avg": 7.3, "p50": 7.25, "p95": 9.0, "p99": 9.5},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 512.0},
    "total_osl": {"unit": "tokens", "avg": 2048},
    "benchmark_duration": {"unit": "sec", "avg": 4.0},
    "was_cancelled": False,
    "input_config": {"loadgen": {"concurrency": 8}, "endpoint": {"model_names": ["gpt-oss-20b"]}},
}
VLLM = json.loads((RUNS / "vllm_sweep.json").read_text())
GENAI_PERF = json.loads((RUNS / "genai_perf.json").read_text())
NIGHTLY = json.loads((RUNS / "sglang_nightly.json").read_text())[0]


def read(tmp_path, content):
    path = tmp_path / "result.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    return read_runs(path)


def test_read_runs__guidellm():
    (run,) = read_runs(RUNS / "guidellm.json")

    assert (run.completed, run.requested, run.output_tokens) == (24, 24, 768)
    assert run.values["median_ttft_ms"] == pytest.approx(47.261, abs=0.001)
    assert run.values["mean_e2e_ms"] == pytest.approx(246.431, abs=0.001)
    assert run.values["output_tok_per_s"] == pytest.approx(768 / 1.5345, rel=1e-3)
    assert run.workload["max_concurrency"] == 4
    assert run.problems == ()


def test_read_runs__its_gaps_are_not_those_of_bench_serving():
    (run,) = read_runs(RUNS / "guidellm.json")

    assert run.estimators["p99_itl_ms"] == "mean gap of a request"


def test_read_runs__vllm_with_line_breaks(tmp_path):
    (whole,) = read(tmp_path, VLLM[0])
    (line,) = read(tmp_path, json.dumps(VLLM[0]))

    assert whole.values == line.values
    assert whole.workload == line.workload
    assert whole.values["median_itl_ms"] == pytest.approx(8.7075, abs=1e-4)
    assert whole.values["mean_e2e_ms"] == pytest.approx(141.929, abs=1e-3)
    assert (whole.requested, whole.completed, whole.output_tokens) == (12, 12, 144)
    assert whole.problems == ()


def test_read_runs__all_runs_of_a_sweep_of_vllm():
    first, second = read_runs(RUNS / "vllm_sweep.json")

    assert (Path(first.source).name, Path(second.source).name) == ("vllm_sweep.json:1", "vllm_sweep.json:2")
    assert first.workload == second.workload
    assert second.values["output_tok_per_s"] == pytest.approx(131.48, abs=0.01)


def test_read_runs__vllm_with_a_bare_infinity(tmp_path):
    (run,) = read(tmp_path, json.dumps(VLLM[0] | {"request_rate": float("inf")}, indent=2))

    assert run.workload["request_rate"] == "inf"


def test_read_runs__aiperf_as_it_wrote_it():
    (run,) = read_runs(RUNS / "aiperf.json")

    assert (run.requested, run.completed, run.input_tokens, run.output_tokens) == (12, 11, 352, 176)
    assert run.values["median_ttft_ms"] == pytest.approx(25.592, abs=0.001)
    assert run.values["p99_itl_ms"] == pytest.approx(6.600, abs=0.001)
    assert run.values["mean_e2e_ms"] == pytest.approx(89.639, abs=0.001)
    assert run.values["output_tok_per_s"] == pytest.approx(275.256, abs=0.001)
    assert run.workload == {
        "backend": "aiperf",
        "strategy": "concurrency",
        "max_concurrency": 2,
        "model": "tiny",
        "num_prompts": 12,
        "input_tokens": 352,
    }
    assert run.problems == (Remark(kind=RemarkKind.INCOMPLETE, found=11, due=12),)


def test_read_runs__aiperf_tells_the_load_of_its_measured_phase():
    (run,) = read_runs(RUNS / "aiperf_rate.json")

    assert (run.workload["strategy"], run.workload["request_rate"], run.workload["num_prompts"]) == ("poisson", 40.0, 40)
    assert run.problems == ()


@pytest.mark.parametrize("moment", ["yesterday", "2026-11-25T18:14:03+00:00"])
def test_read_runs__aiperf_with_moments_that_are_none(tmp_path, moment):
    told = json.loads((RUNS / "aiperf.json").read_text()) | {"end_time": moment}

    with pytest.raises(EvidenceError, match="start_time, end_time: expected two moments"):
        read(tmp_path, told)


def test_read_runs__aiperf_of_an_older_release(tmp_path):
    (run,) = read(tmp_path, AIPERF)

    assert (run.completed, run.output_tokens, run.duration_s) == (32, 2048, 4.0)
    assert run.values["p99_itl_ms"] == 9.5
    assert run.values["output_tok_per_s"] == 512.0
    assert run.workload == {"backend": "aiperf", "max_concurrency": 8, "model": "gpt-oss-20b", "num_prompts": 32}


def test_read_runs__aiperf_in_seconds(tmp_path):
    (run,) = read(tmp_path, AIPERF | {"request_latency": {"unit": "sec", "avg": 0.4}})

    assert run.values["mean_e2e_ms"] == pytest.approx(400.0)


@pytest.mark.parametrize("told", [{"was_cancelled": True}, {"was_cancelled": False, "is_complete": False}])
def test_read_runs__aiperf_that_was_cancelled_or_lost_records(tmp_path, told):
    (run,) = read(tmp_path, AIPERF | told)

    assert run.problems == (Remark(kind=RemarkKind.CANCELLED),)


def test_read_runs__aiperf_with_failed_requests(tmp_path):
    (run,) = read(tmp_path, AIPERF | {"error_request_count": {"unit": "requests", "avg": 2}})

    assert run.requested == 34
    assert run.problems == (Remark(kind=RemarkKind.INCOMPLETE, found=32, due=34),)


def test_read_runs__genai_perf():
    (run,) = read_runs(RUNS / "genai_perf.json")

    assert (run.requested, run.completed, run.input_tokens, run.output_tokens) == (12, 12, 192, 96)
    # Between the first request and the last response of its profile_export.json, which counts the end of the stream too.
    assert run.duration_s == pytest.approx(0.814988761, rel=1e-3)
    assert run.values["mean_ttft_ms"] == pytest.approx(50.70, abs=0.005)
    assert run.values["mean_itl_ms"] == pytest.approx(11.96, abs=0.005)
    assert run.values["p99_e2e_ms"] == pytest.approx(161.75, abs=0.005)
    assert run.values["output_tok_per_s"] == pytest.approx(117.89, abs=0.005)
    assert run.values["request_per_s"] == pytest.approx(14.74, abs=0.005)
    assert run.workload == {
        "backend": "genai-perf",
        "strategy": "concurrency",
        "max_concurrency": 2,
        "model": "tiny",
        "num_prompts": 12,
        "input_tokens": 192,
    }
    assert run.estimators["p99_itl_ms"] == "mean gap of a request"
    assert run.problems == ()


def test_read_runs__genai_perf_at_a_rate(tmp_path):
    config = {"model_names": ["tiny"], "perf_analyzer": {"stimulus": {"request_rate": 10.0}}}

    (run,) = read(tmp_path, GENAI_PERF | {"input_config": config})

    assert (run.workload["strategy"], run.workload["request_rate"]) == ("request_rate", 10.0)


def test_read_runs__bench_one_batch():
    runs = read_runs(RUNS / "bench_one_batch.jsonl")

    assert [run.workload["batch_size"] for run in runs] == [1, 4]
    assert [run.values["median_itl_ms"] for run in runs] == pytest.approx([10.55, 11.71], abs=0.005)
    assert [run.values["mean_ttft_ms"] for run in runs] == pytest.approx([18.95, 26.40], abs=0.005)
    assert [run.values["total_tok_per_s"] for run in runs] == pytest.approx([258.96, 854.16], abs=0.005)
    assert [run.problems for run in runs] == [(), ()]


def test_read_runs__bench_one_batch_server():
    runs = read_runs(RUNS / "bench_one_batch_server.jsonl")

    assert [run.workload["batch_size"] for run in runs] == [1, 4, 8]
    assert [run.values["mean_itl_ms"] for run in runs] == pytest.approx([6.99, 8.63, 50.88], abs=0.005)
    assert [run.values["mean_ttft_ms"] for run in runs] == pytest.approx([26.4, 42.0, 256.2])
    assert [run.values["mean_e2e_ms"] for run in runs] == pytest.approx([82.3, 111.1, 27312.6])
    assert {run.estimators["mean_ttft_ms"] for run in runs} == {"last request of a batch"}
    assert [run.problems for run in runs] == [(), (), ()]


def test_read_runs__bench_one_batch_server_counts_answers_that_ended_early():
    *_, run = read_runs(RUNS / "bench_one_batch_server.jsonl")

    assert (run.workload["output_len"], run.output_tokens) == (600, 4262)
    assert run.values["output_tok_per_s"] == pytest.approx(4262 / 27.3126)


def test_read_runs__bench_one_batch_server_with_one_token_has_no_gap(tmp_path):
    (run,) = read(tmp_path, NIGHTLY | {"output_len": 1, "overall_throughput": 17 / NIGHTLY["latency"]})

    assert "mean_itl_ms" not in run.values
    assert run.problems == ()


def test_read_runs__a_batch_without_a_size_is_no_run(tmp_path):
    (run,) = read(tmp_path, [NIGHTLY | {"batch_size": None}])

    assert run.workload["batch_size"] == 0
    assert run.problems == (Remark(kind=RemarkKind.NO_REQUEST),)


def test_read_runs__a_batch_of_a_server_is_no_batch_of_a_model():
    (model, *_), (server, *_) = (read_runs(RUNS / f"{name}.jsonl") for name in ("bench_one_batch", "bench_one_batch_server"))

    assert (model.workload["backend"], server.workload["backend"]) == ("bench_one_batch", "bench_one_batch_server")


def test_read_runs__nightly_is_what_its_lines_say_and_names_the_model():
    nightly, lines = read_runs(RUNS / "sglang_nightly.json"), read_runs(RUNS / "bench_one_batch_server.jsonl")

    for whole, line in zip(nightly, lines[:2], strict=True):
        assert whole.values == pytest.approx(line.values, rel=2e-3)
        assert whole.estimators == line.estimators
        assert whole.workload == {**line.workload, "model": "tiny"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"metric": 1, "other": 2}, "is JSON of no load generator that perfgate reads"),
        ({"benchmarks": []}, "benchmarks: holds none"),
        ({"benchmarks": [{"metrics": {}}]}, "request_totals: is missing"),
        ({"benchmarks": ["x"]}, "metrics: is missing"),
        (AIPERF | {"request_latency": {"unit": "ms", "avg": "fast"}}, "request_latency.avg: expected a number"),
        ([NIGHTLY | {"batch_size": 1.5}], "batch_size: 1.5 is no whole number"),
        ([NIGHTLY, 3], "expected JSON objects"),
        ([NIGHTLY | {"output_throughput": 1e-320}], "batch over output_throughput: inf is no measurement"),
        ([NIGHTLY | {"total_output_tokens": "many"}], "total_output_tokens: expected a number"),
        (GENAI_PERF | {"request_throughput": {"avg": 1e-320}}, "count over request_throughput: inf is no measurement"),
    ],
)
def test_read_runs__document_that_cannot_be_used(tmp_path, content, words):
    with pytest.raises(EvidenceError) as caught:
        read(tmp_path, content)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
