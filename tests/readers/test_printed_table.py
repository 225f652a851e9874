"""Printed results as people paste them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.core import Remark, RemarkKind
from perfgate.errors import EvidenceError
from perfgate.readers.bench_serving import read_runs
from perfgate.readers.printed_table import has_table, parse_tables

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
LINE = "=" * 50


def make_table(*rows, is_closed=True):
    kept = ("Successful requests: 10", "Benchmark duration (s): 5.00", "Total generated tokens: 100", *rows)
    return "\n".join(["===== Serving Benchmark Result =====", *kept, *([LINE] if is_closed else [])]) + "\n"


def test_read_runs__founding_run():
    (run,) = read_runs(RUNS / "fusion_off_1.txt")

    assert run.problems == ()
    assert run.values["request_per_s"] == 1.48
    assert run.values["output_tok_per_s"] == 282.29
    assert run.values["p99_ttft_ms"] == 14051.11
    assert run.values["p99_itl_ms"] == 2200.30
    assert run.workload == {
        "backend": "sglang",
        "request_rate": 20.0,
        "max_concurrency": 64,
        "num_prompts": 100,
        "input_tokens": 33694,
    }


def test_parse_tables__two_in_one_file():
    text = "first\n" + make_table("Mean ITL (ms): 5.00") + "\nsecond\n" + make_table("Mean ITL (ms): 6.00")

    runs = parse_tables(text, "log")

    assert [(run.source, run.values["mean_itl_ms"]) for run in runs] == [("log:2", 5.0), ("log:10", 6.0)]


def test_parse_tables__time_stamps_colours_and_windows_line_ends():
    text = "\n".join(f"2026-01-01T00:00:00Z \x1b[32m{line}\x1b[0m\r" for line in make_table("P99 ITL (ms): 7.50").splitlines())

    (run,) = parse_tables(text, "ci.log")

    assert run.problems == ()
    assert (run.completed, run.values["p99_itl_ms"]) == (10, 7.5)


def test_parse_tables__peak_is_not_throughput():
    (run,) = parse_tables(
        make_table("Output token throughput (tok/s): 20.00", "Peak output token throughput (tok/s): 99.00"), "t"
    )

    assert run.values["output_tok_per_s"] == 20.0


@pytest.mark.parametrize(
    ("row", "fact"),
    [
        ("Max request concurrency: not set", "not set"),
        ("Max reqeuest concurrency: 16", 16),
        ("Maximum request concurrency: 16", 16),
    ],
)
def test_parse_tables__spellings_of_concurrency(row, fact):
    (run,) = parse_tables(make_table(row), "t")

    assert run.workload["max_concurrency"] == fact


@pytest.mark.parametrize(("told", "rate"), [("inf", "inf"), ("4.0", 4.0), ("trace", "trace"), ("nan", "nan")])
def test_parse_tables__request_rate(told, rate):
    (run,) = parse_tables(make_table(f"Traffic request rate: {told}"), "t")

    assert run.workload["request_rate"] == rate


def test_parse_tables__argument_line_tells_what_was_requested():
    arguments = (
        "Namespace(backend='vllm', dataset_name='random', model='/m/moe/', num_prompts=12, random_input_len=8, seed=1)\n"
    )

    (run,) = parse_tables(arguments + make_table(), "t")

    assert run.requested == 12
    assert run.problems == (Remark(kind=RemarkKind.INCOMPLETE, found=10, due=12),)
    assert run.workload == {"dataset": "random", "model": "moe", "random_input_len": 8.0, "num_prompts": 12}


def test_parse_tables__argument_line_belongs_to_the_next_table_only():
    runs = parse_tables("Namespace(num_prompts=10)\n" + make_table() + make_table("Mean ITL (ms): 6.00"), "t")

    assert [run.requested for run in runs] == [10, None]


def test_parse_tables__cut_off():
    (run,) = parse_tables(make_table(is_closed=False), "t")

    assert run.problems == (Remark(kind=RemarkKind.OPEN_TABLE),)


def test_parse_tables__cut_off_by_the_next():
    first, second = parse_tables(make_table(is_closed=False) + make_table(), "t")

    assert first.problems
    assert not second.problems


def test_parse_tables__negative_zero_is_no_data():
    (run,) = parse_tables(make_table("Mean TPOT (ms): -0.00"), "t")

    assert "mean_tpot_ms" not in run.values


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("Mean ITL (ms): fast", "t:5: mean itl (ms): expected a number, found 'fast'"),
        ("Mean ITL (ms):", "t:5: mean itl (ms): expected a number, found ''"),
        ("Mean ITL (ms): -3.00", "t:5: mean itl (ms): -3 is negative"),
        ("Mean ITL (ms): inf", "t:5: mean itl (ms): inf is no measurement"),
        ("Total input tokens: 1.5", "t:5: total input tokens: 1.5 is no whole number"),
        ("Successful requests: 11", "t:5: Successful requests: given twice in one table"),
    ],
)
def test_parse_tables__row_that_holds_no_number(row, message):
    with pytest.raises(EvidenceError) as caught:
        parse_tables(make_table(row), "t")

    assert str(caught.value).startswith(message)


def test_has_table__other_text():
    assert not has_table("Serving Benchmark Results will follow")
    assert has_table(make_table())


@given(
    rows=st.lists(
        st.sampled_from(
            [
                "===== Serving Benchmark Result =====",
                LINE,
                "Mean ITL (ms):",
                "Traffic request rate: ",
                "Namespace(num_prompts=",
                "SERVER: a",
                "CLIENT: b",
                "COMMAND: c",
                "Successful requests: 9",
                "1/9 [00:03<01:00, ",
            ]
        ),
        max_size=12,
    ),
    tails=st.lists(st.text(max_size=9), max_size=12),
)
def test_read_runs__any_arrangement_of_lines(tmp_path_factory, rows, tails):
    path = tmp_path_factory.mktemp("fuzz") / "log.txt"
    path.write_text("\n".join(row + tail for row, tail in zip(rows, [*tails, *[""] * len(rows)], strict=False)))

    runs, message = (), None
    try:
        runs = read_runs(path)
    except EvidenceError as error:
        message = str(error)

    assert bool(runs) != bool(message)
    assert message is None or message.startswith(str(path))
    assert all(value > 0 for run in runs for value in run.values.values())
