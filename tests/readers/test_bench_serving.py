"""JSONL of bench_serving, in every shape that it had in a year and in every shape that a disk can leave it in."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.core import Remark, RemarkKind, Run
from perfgate.errors import EvidenceError
from perfgate.metrics import METRICS
from perfgate.readers.bench_serving import read_bytes, read_runs, read_window
from perfgate.results.words import describe_remark

REQUESTS = 4
GAPS = 9
DURATION_S = 2.0


def make_record(**changes):
    """A consistent result line without details; `None` removes a field."""
    record = {
        "tag": None,
        "backend": "sglang",
        "dataset_name": "random-ids",
        "request_rate": float("inf"),
        "max_concurrency": 2,
        "random_input_len": 16,
        "random_output_len": GAPS + 1,
        "random_range_ratio": 1.0,
        "server_info": {"model_path": "/models/tiny-moe/"},
        "duration": DURATION_S,
        "completed": REQUESTS,
        "total_input_tokens": 16 * REQUESTS,
        "total_output_tokens": (GAPS + 1) * REQUESTS,
        "total_output_tokens_retokenized": (GAPS + 1) * REQUESTS,
        "request_throughput": REQUESTS / DURATION_S,
        "output_throughput": (GAPS + 1) * REQUESTS / DURATION_S,
        "mean_e2e_latency_ms": 500.0,
        "p99_e2e_latency_ms": 600.0,
        "mean_ttft_ms": 50.0,
        "median_itl_ms": 10.0,
        "mean_itl_ms": 10.0,
        "p99_itl_ms": 12.0,
    } | changes
    return {name: value for name, value in record.items() if value is not None}


def make_details(**changes):
    return {
        "input_lens": [16] * REQUESTS,
        "output_lens": [GAPS + 1] * REQUESTS,
        "ttfts": [0.05, 0.06, 0.07, 0.08],
        "itls": [[0.01 + 0.001 * gap for gap in range(GAPS)] for _ in range(REQUESTS)],
        "generated_texts": ["text"] * REQUESTS,
        "errors": [""] * REQUESTS,
    } | changes


@pytest.fixture
def write(tmp_path):
    def write_lines(*records, name="run.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write_lines


def test_read_runs__plain_line(write):
    (run,) = read_runs(write(make_record()))

    assert run.problems == ()
    assert run.values["output_tok_per_s"] == 20.0
    assert run.values["total_tok_per_s"] == (16 + GAPS + 1) * REQUESTS / DURATION_S
    assert (run.requested, run.completed, run.duration_s) == (None, REQUESTS, DURATION_S)
    assert run.estimators == {}


def test_read_runs__workload_of_a_closed_loop(write):
    (run,) = read_runs(write(make_record()))

    assert run.workload == {
        "backend": "sglang",
        "dataset": "random-ids",
        "random_input_len": 16.0,
        "random_output_len": 10.0,
        "random_range_ratio": 1.0,
        "request_rate": "inf",
        "max_concurrency": 2,
        "model": "tiny-moe",
        "num_prompts": REQUESTS,
        "input_tokens": 16 * REQUESTS,
    }


def test_read_runs__arguments_of_another_data_set_are_no_facts(write):
    (run,) = read_runs(write(make_record(dataset_name="sharegpt", request_rate=20.0)))

    assert "random_input_len" not in run.workload
    assert run.workload["request_rate"] == 20.0


def test_read_runs__short_form_of_old_versions(write):
    old = make_record(total_output_tokens_retokenized=None, request_throughput=None, p99_itl_ms=None, server_info=None)

    (run,) = read_runs(write(old))

    assert run.problems == ()
    assert run.values["request_per_s"] == REQUESTS / DURATION_S
    assert "p99_itl_ms" not in run.values


def test_read_runs__other_field_names(write):
    other = make_record(total_token_throughput=52.0, mean_e2el_ms=500.0, mean_e2e_latency_ms=None, num_prompts=REQUESTS)

    (run,) = read_runs(write(other))

    assert (run.values["total_tok_per_s"], run.values["mean_e2e_ms"], run.requested) == (52.0, 500.0, REQUESTS)


def test_read_runs__details_replace_printed_values(write):
    (run,) = read_runs(write(make_record() | make_details()))
    pooled = np.tile([10.0 + gap for gap in range(GAPS)], REQUESTS)

    assert run.problems == ()
    assert run.values["median_itl_ms"] == pytest.approx(14.0)
    assert run.values["p95_itl_ms"] == pytest.approx(np.percentile(pooled, 95))
    assert run.values["max_itl_ms"] == pytest.approx(18.0)
    assert run.values["es5_itl_ms"] == pytest.approx(18.0)
    assert run.values["mean_ttft_ms"] == pytest.approx(65.0)
    assert run.values["mean_e2e_ms"] == 500.0
    assert run.requested == REQUESTS


def test_read_runs__details_name_their_estimator(write):
    (run,) = read_runs(write(make_record() | make_details()))

    assert run.estimators == {"p99_itl_ms": "harrell-davis", "p99_ttft_ms": "harrell-davis"}
    assert 17.0 < run.values["p99_itl_ms"] <= 18.0


@pytest.mark.parametrize("lengths", [[16, 16, 400, 900], [16, 16, 16, 900], [900, 16, 400, 16]])
def test_read_runs__short_prompts_have_a_tail_of_their_own(write, lengths):
    """Large requests wait longer here, and the one that waits longest is large."""
    ttfts = [0.01 * length for length in lengths]

    (run,) = read_runs(write(make_record() | make_details(input_lens=lengths, ttfts=ttfts)))

    assert run.values["p99_ttft_short_ms"] == pytest.approx(160.0)
    assert run.values["p99_ttft_ms"] > 5000.0
    assert run.estimators["p99_ttft_short_ms"] == "harrell-davis"


@pytest.mark.parametrize("lengths", [[16] * REQUESTS, None])
def test_read_runs__equal_or_untold_lengths_have_no_class(write, lengths):
    (run,) = read_runs(write(make_record() | make_details(input_lens=lengths)))

    assert "p99_ttft_short_ms" not in run.values


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([16] * (REQUESTS - 1), "input_lens: 3 entries for 4 requests"), (["a"] * REQUESTS, "input_lens: expected numbers only")],
)
def test_read_runs__lengths_of_other_requests_are_refused(write, lengths, message):
    with pytest.raises(EvidenceError, match=message):
        read_runs(write(make_record() | make_details(input_lens=lengths)))


# As bench_serving keeps an error: the cause's traceback, then that of the exception, then what it says.
DROPPED = """Traceback (most recent call last):
  File "aiohttp/_http_parser.pyx", line 620, in aiohttp._http_parser.HttpParser.feed_eof
aiohttp.http_exceptions.TransferEncodingError: 400, message:
  Not enough data to satisfy transfer length header.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "sglang/benchmark/serving.py", line 686, in async_request_sglang_generate
    async for chunk_bytes in response.content:
aiohttp.ClientPayloadError: Response payload is not completed: <TransferEncodingError: 400,
    message='Not enough data to satisfy transfer length header.'>
"""
SHORTENED = DROPPED[:80]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"errors": ["", "connection reset", "", ""]}, "1 of 4 requests failed (connection reset)"),
        (
            {"errors": ["", DROPPED, "", ""]},
            "1 of 4 requests failed (aiohttp.ClientPayloadError: Response payload is not compl",
        ),
        ({"errors": ["", "x" * 999, "", ""]}, f"1 of 4 requests failed ({'x' * 200}): read the server's log"),
        ({"errors": ["", SHORTENED, "", ""]}, "1 of 4 requests failed (Traceback (most recent call last): File"),
        ({"ttfts": [0.05, 0.0, 0.07, 0.08]}, "1 of 4 requests never saw a first token"),
        ({"output_lens": [10, 0, 10, 10]}, "1 of 4 requests have no output token"),
        ({"generated_texts": ["text", "", "", "text"]}, "2 of 4 requests have no text"),
        ({"itls": [[0.01] * GAPS, [0.01] * 2, [0.01] * GAPS, [0.01] * GAPS]}, "29 inter-token gaps for 36 due"),
        ({"itls": [[0.01] * 12] * 4}, "48 inter-token gaps for 36 due"),
    ],
)
def test_read_runs__request_that_failed_inside_its_stream(write, changes, message):
    (run,) = read_runs(write(make_record() | make_details(**changes)))

    assert len(run.problems) == 1
    assert message in describe_remark(run.problems[0])


def test_read_runs__few_tokens_that_share_an_event(write):
    gaps = [[0.01] * (GAPS - 1), *([[0.01] * GAPS] * 3)]

    (run,) = read_runs(write(make_record() | make_details(itls=gaps)))

    assert run.problems == ()
    assert run.notes == (Remark(kind=RemarkKind.SHARED_EVENT, found=35, due=36),)


def test_read_runs__speculative_decoding_keeps_the_printed_itl(write):
    record = make_record(backend="sglang-oai", accept_length=2.5) | make_details(itls=[[0.03] * 3] * 4)

    (run,) = read_runs(write(record))

    assert run.problems == ()
    assert run.values["median_itl_ms"] == 10.0
    assert run.estimators == {"p99_ttft_ms": "harrell-davis"}
    assert run.notes == (Remark(kind=RemarkKind.SPECULATIVE),)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completed": 0}, "no request completed"),
        ({"num_prompts": 5}, "4 of 5 requests completed"),
        ({"total_output_tokens": 0, "output_throughput": None}, "no output token"),
        ({"total_output_tokens_retokenized": 0}, "the text received makes 0 tokens of the 40"),
        ({"mean_ttft_ms": 0.0}, "mean TTFT is 0 ms"),
        ({"mean_itl_ms": 0.0, "median_itl_ms": 0.0}, "ITL is 0 ms"),
        ({"output_throughput": 373912.0}, "output_tok_per_s says 373912.00 where count over duration makes 20.00"),
        ({"duration": None}, "no duration"),
    ],
)
def test_read_runs__totals_that_contradict_themselves(write, changes, message):
    record = make_record() | changes

    (run,) = read_runs(write({name: value for name, value in record.items() if value is not None}))

    assert any(message in describe_remark(problem) for problem in run.problems)


def test_read_runs__zero_is_absent(write):
    (run,) = read_runs(write(make_record(mean_itl_ms=0.0, median_itl_ms=0.0, p99_itl_ms=0.0)))

    assert not {"mean_itl_ms", "median_itl_ms", "p99_itl_ms"} & run.values.keys()


def test_read_runs__one_token_answers_have_no_gaps(write):
    record = make_record(total_output_tokens=REQUESTS, total_output_tokens_retokenized=REQUESTS, output_throughput=2.0)

    (run,) = read_runs(write(record | {"mean_itl_ms": 0.0, "median_itl_ms": 0.0}))

    assert run.problems == ()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mean_ttft_ms": -1.0}, "mean_ttft_ms: -1 is negative"),
        ({"p99_itl_ms": float("nan")}, "p99_itl_ms: nan"),
        ({"output_throughput": float("inf")}, "output_throughput: inf"),
        ({"completed": 1.5}, "completed: 1.5 is no whole number"),
        ({"duration": "2 s"}, "duration: expected a number, found '2 s'"),
        ({"completed": True}, "completed: expected a number, found True"),
        ({"mean_itl_ms": ["x" * 99]}, "mean_itl_ms: expected a number"),
        (make_details(itls=[[0.01] * GAPS] * 3), "itls: 3 entries for 4 requests"),
        (make_details(itls=[0.01] * 4), "itls: expected one list of seconds"),
        (make_details(itls=[["fast"] * GAPS] * 4), "itls: expected numbers only"),
        (make_details(ttfts=[0.1, 0.1, 0.1, None]), "ttfts: holds a negative or non-finite number"),
        (make_details(ttfts=[0.1, 0.1, 0.1, -0.1]), "ttfts: holds a negative or non-finite number"),
        (make_details(output_lens="10"), "output_lens: expected a list"),
        (make_details(errors=["", ""]), "errors: 2 entries for 4 requests"),
    ],
)
def test_read_runs__field_that_is_no_measurement(write, changes, field):
    path = write(make_record(), make_record() | changes)

    with pytest.raises(EvidenceError) as caught:
        read_runs(path)

    assert str(caught.value).startswith(f"{path}:2: {field}")


def test_read_runs__generated_text_that_looks_like_json(write):
    tricky = ['", "request_rate": Infinity, "x": "NaN'] * REQUESTS

    (run,) = read_runs(write(make_record() | make_details(generated_texts=tricky)))

    assert run.problems == ()


def test_read_runs__several_lines(write):
    path = write(make_record(), make_record(mean_ttft_ms=51.0))

    runs = read_runs(path)

    assert [run.source for run in runs] == [f"{path}:1", f"{path}:2"]


def test_read_runs__repeated_line(write):
    path = write(make_record(), make_record())

    with pytest.raises(EvidenceError, match=r"run\.jsonl:2: repeats line 1"):
        read_runs(path)


def test_read_runs__line_that_was_cut_off(tmp_path):
    path = tmp_path / "cut.jsonl"
    path.write_text(json.dumps(make_record())[:-20] + "\n")

    with pytest.raises(EvidenceError, match=r"cut\.jsonl:1: not valid JSON"):
        read_runs(path)


@pytest.mark.parametrize("line", ["{}", '{"benchmark": "of something else"}'])
def test_read_runs__json_of_something_else(tmp_path, line):
    path = tmp_path / "other.json"
    path.write_text(line)

    with pytest.raises(EvidenceError, match="no field of a bench_serving result"):
        read_runs(path)


def test_read_runs__line_that_is_no_object(tmp_path):
    path = tmp_path / "mixed.jsonl"
    path.write_text(json.dumps(make_record()) + "\n[1, 2]\n")

    with pytest.raises(EvidenceError, match=r"mixed\.jsonl:2: expected the JSON object"):
        read_runs(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"hello", "no bench_serving JSONL line"),
        (gzip.compress(b"{}" * 999, mtime=0)[:-9], "damaged gzip file"),
        (b"\x1f\x8b\x08garbage", "damaged gzip file"),
    ],
)
def test_read_runs__file_that_is_none(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)

    with pytest.raises(EvidenceError, match=message):
        read_runs(path)


def test_read_runs__missing_file(tmp_path):
    with pytest.raises(EvidenceError, match=r"nothing\.jsonl: no such file"):
        read_runs(tmp_path / "nothing.jsonl")


def test_read_bytes__directory(tmp_path):
    with pytest.raises(EvidenceError, match="is a directory"):
        read_bytes(tmp_path)


def test_read_bytes__device():
    with pytest.raises(EvidenceError, match="is a device"):
        read_bytes(Path("/dev/zero"))


def test_read_bytes__path_that_no_system_takes():
    with pytest.raises(EvidenceError):
        read_bytes(Path("x" * 5000))


def test_read_window__gzip_is_the_same_run(write, tmp_path):
    plain = write(make_record() | make_details())
    packed = tmp_path / "0001.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    assert read_window(packed).values == read_window(plain).values
    assert read_window(packed).source == str(packed)


def test_read_window__two_lines(write):
    with pytest.raises(EvidenceError, match="2 result lines where one window has one"):
        read_window(write(make_record(), make_record(mean_ttft_ms=51.0)))


def test_read_runs__utf16_of_a_windows_shell(tmp_path):
    path = tmp_path / "pasted.txt"
    path.write_text("= Serving Benchmark Result =\nSuccessful requests: 3\n" + "=" * 50, encoding="utf-16")

    assert read_runs(path)[0].completed == 3


def assert_readable(path):
    """A file either gives runs whose values are usable, or an EvidenceError of one line that names the file."""
    runs, message = (), None
    try:
        runs = read_runs(path)
    except EvidenceError as error:
        message = str(error)
    assert bool(runs) != bool(message)
    assert message is None or (message.startswith(str(path)) and "\n" not in message)
    for run in runs:
        assert isinstance(run, Run)
        assert run.values.keys() <= METRICS.keys()
        assert all(np.isfinite(value) and value > 0 for value in run.values.values())


@given(content=st.binary(max_size=400))
def test_read_runs__any_bytes(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_bytes(content)

    assert_readable(path)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted((make_record() | make_details()).keys())


@given(field=st.sampled_from([*FIELDS, "num_prompts", "accept_length"]), value=JSON_VALUES, has_details=st.booleans())
def test_read_runs__any_value_in_any_field(tmp_path_factory, field, value, has_details):
    record = make_record() | (make_details() if has_details else {}) | {field: value}
    path = tmp_path_factory.mktemp("fuzz") / "file.jsonl"
    path.write_text(json.dumps(record))

    assert_readable(path)


@given(cut=st.integers(min_value=0, max_value=2000), flip=st.integers(min_value=0, max_value=2000), byte=st.integers(0, 255))
def test_read_runs__any_byte_changed_and_any_cut(tmp_path_factory, cut, flip, byte):
    content = bytearray(json.dumps(make_record() | make_details()).encode())
    content[flip % len(content)] = byte
    path = tmp_path_factory.mktemp("fuzz") / "file.jsonl"
    path.write_bytes(bytes(content[: len(content) - cut % len(content)]))

    assert_readable(path)


def test_read_runs__details_without_texts_and_errors(write):
    details = {name: values for name, values in make_details().items() if name in ("ttfts", "itls", "output_lens")}

    (run,) = read_runs(write(make_record() | details))

    assert run.problems == ()
    assert "es5_itl_ms" in run.values


def test_read_runs__details_of_answers_without_gaps(write):
    details = make_details(itls=[[]] * REQUESTS, ttfts=[0.0] * REQUESTS)

    (run,) = read_runs(write(make_record() | details))

    assert run.estimators == {}
    assert run.problems[0] == Remark(kind=RemarkKind.NO_FIRST_TOKEN, found=4, due=4)


def test_read_runs__arguments_that_are_missing(write):
    (run,) = read_runs(write(make_record(request_rate=None, max_concurrency=None, backend=None, dataset_name=None)))

    assert run.workload.keys() == {"model", "num_prompts", "input_tokens"}
