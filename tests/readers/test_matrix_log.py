"""The log of a server x client matrix."""

from pathlib import Path

import pytest

from perfgate.core import Remark, RemarkKind
from perfgate.readers.bench_serving import read_runs
from perfgate.readers.matrix_log import is_matrix_log, parse_matrix_log
from perfgate.results.words import describe_remark

LOG = Path(__file__).parents[1] / "fixtures" / "runs" / "matrix.log"
BLOCK = "SERVER: s\nCLIENT: c\nCOMMAND: bench --num-prompts 4\n"
TABLE = f"= Serving Benchmark Result =\nSuccessful requests: 4\nMean E2E Latency (ms): 2000.00\n{'=' * 50}\n"


def test_parse_matrix_log__founding_log():
    cells = parse_matrix_log(LOG.read_text(), "matrix.log")

    assert [
        (cell.server, cell.client, cell.run.values["output_tok_per_s"], cell.run.values["p99_itl_ms"]) for cell in cells
    ] == [
        ("flashinfer", "rand256x32", 1002.94, 32.20),
        ("flashinfer", "rand128x16", 635.64, 25.39),
        ("triton", "rand256x32", 915.43, 35.33),
        ("triton", "rand128x16", 583.99, 27.63),
    ]
    assert all(cell.run.problems == () for cell in cells)


def test_parse_matrix_log__slow_first_requests():
    cells = parse_matrix_log(LOG.read_text(), "matrix.log")

    assert [cell.first_request_s for cell in cells] == [34.87, 27.26, 38.31, 29.98]
    assert describe_remark(cells[0].run.notes[0]).startswith(
        "no request ended in the first 34.9 s, where the mean one takes 31.9 s"
    )


def test_parse_matrix_log__argument_line_is_the_workload():
    run = parse_matrix_log(LOG.read_text(), "matrix.log")[1].run

    assert run.requested == 128
    assert run.workload["model"] == "DeepSeek-V3-0324"
    assert run.workload["dataset"] == "random"
    assert run.workload["random_output_len"] == 1000.0


def test_read_runs__matrix_log_gives_every_run():
    sources = [run.source for run in read_runs(LOG)]

    assert len(sources) == 4
    assert sources[0].startswith(f"{LOG}:")
    assert sources[0].endswith("(flashinfer x rand256x32)")


def test_parse_matrix_log__client_that_failed():
    cells = parse_matrix_log(BLOCK + "Traceback\n" + BLOCK + TABLE, "m")

    assert cells[0].run.problems == (Remark(kind=RemarkKind.NO_TABLE, found=1),)
    assert cells[0].run.values == {}
    assert cells[1].run.completed == 4


def test_parse_matrix_log__error_names_the_line_of_the_file(tmp_path):
    path = tmp_path / "m.log"
    path.write_text("\n\n" + BLOCK + TABLE.replace("2000.00", "slow"))

    with pytest.raises(Exception, match=r"m\.log:8: mean e2e latency \(ms\)"):
        read_runs(path)


@pytest.mark.parametrize(
    ("bar", "first_s"),
    [
        ("1/4 [00:07<00:21,  7.25s/it]", 7.25),
        ("1/4 [00:07<00:21]", 7.0),
        ("1/4 [01:02:03<9:00:00, ?it/s]", 3723.0),
        ("1/4 [00:01<00:03,  1.20it/s]", 1.0),
        ("2/4 [00:07<00:21,  3.50s/it]", None),
        ("1/4 [00:07<00:21,  7.2.5s/it]", 7.0),
    ],
)
def test_parse_matrix_log__progress_bar(bar, first_s):
    (cell,) = parse_matrix_log(f"{BLOCK}{TABLE}  0%| | 0/4 [00:00<?, ?it/s]\r 25%|\x1b[0m| {bar}\r", "m")

    assert cell.first_request_s == first_s


def test_cold_note__first_request_like_the_others():
    (cell,) = parse_matrix_log(f"{BLOCK}{TABLE} 1/4 [00:02<00:06,  2.00s/it]", "m")

    assert cell.cold_note is None
    assert cell.run.notes == ()


def test_is_matrix_log__server_line_alone():
    assert not is_matrix_log("SERVER: x\n" + TABLE)
    assert is_matrix_log(BLOCK)
