"""`perfgate show` as typed."""

import json
from pathlib import Path

import pytest

from perfgate.cli import main

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"


def show(capsys, *args):
    code = main(["show", *map(str, args)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_command__printed_result(capsys):
    code, out, _ = show(capsys, RUNS / "fusion_off_1.txt")
    rows = [line.split() for line in out.splitlines()]

    assert code == 0
    assert ["P99", "ITL", "(ms)", "2,200.30"] in rows
    assert ["Output", "throughput", "(tok/s)", "282.3"] in rows
    assert (
        out.splitlines()[-1]
        == "workload: backend sglang, input_tokens 33694, max_concurrency 64, num_prompts 100, request_rate 20"
    )


def test_command__matrix_log(capsys):
    code, out, _ = show(capsys, RUNS / "matrix.log")
    header, *rows = [" ".join(line.split()) for line in out.splitlines()]

    assert code == 0
    assert header == "server rand256x32 rand128x16"
    assert rows[0] == "flashinfer 1,002.9 tok/s, P99 ITL 32.20 ms 635.6 tok/s, P99 ITL 25.39 ms"
    assert rows[1] == "triton 915.4 tok/s, P99 ITL 35.33 ms 584.0 tok/s, P99 ITL 27.63 ms"
    assert out.count("no request ended in the first") == 4
    assert "first 38.3 s, where the mean one takes 34.9 s" in out


def test_command__matrix_log_with_a_failed_client(capsys, tmp_path):
    path = tmp_path / "matrix.log"
    path.write_text("SERVER: a\nCLIENT: x\nCOMMAND: bench\nTraceback\nSERVER: b\nCLIENT: y\nCOMMAND: bench\n")

    code, out, _ = show(capsys, path)

    assert code == 0
    assert out.splitlines()[1].split("  ")[0] == "a"
    assert "no result" in out
    assert out.count("PROBLEM") == 2


def test_command__many_runs_stand_below_one_another(capsys, tmp_path):
    path = tmp_path / "all.txt"
    path.write_text("\n".join(file.read_text() for file in sorted(RUNS.glob("fusion_*.txt"))))

    _, out, _ = show(capsys, path)
    header, *rows = out.splitlines()

    assert header.split("  ")[0] == "run"
    assert len([row for row in rows if row.startswith(f"{path}:")]) == 6


def test_command__json(capsys):
    _, out, _ = show(capsys, RUNS / "matrix.log", "--format", "json")
    content = json.loads(out)

    assert [cell["first_request_s"] for cell in content["matrix"]] == [34.87, 27.26, 38.31, 29.98]
    assert content["runs"][0]["values"]["output_tok_per_s"] == 1002.94


def test_command__json_of_jsonl_has_no_matrix(capsys, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"completed": 2, "duration": 1.0, "num_prompts": 3, "total_output_tokens": 8}')

    _, out, _ = show(capsys, path, "--format", "json")
    content = json.loads(out)

    assert content.keys() == {"file", "runs"}
    assert "2 of 3 requests completed" in content["runs"][0]["problems"][0]


def test_command__problem_is_shown(capsys, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"completed": 2, "duration": 1.0, "num_prompts": 3, "total_output_tokens": 8}')

    _, out, _ = show(capsys, path)

    assert f"PROBLEM {path}: 2 of 3 requests completed" in out
    assert "2 of 3" in out.splitlines()[1]


def test_command__control_characters_do_not_reach_the_terminal(capsys, tmp_path):
    path = tmp_path / "matrix.log"
    path.write_text("SERVER: a\x07b\nCLIENT: x\nCOMMAND: bench\n")

    _, out, _ = show(capsys, path)

    assert "\x07" not in out


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b'{"completed": ', "not valid JSON"), (b"hello", "no bench_serving JSONL line")],
)
def test_command__file_that_is_none(capsys, tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)

    code, out, err = show(capsys, path)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"perfgate: {path}")
    assert message in err


def test_command__directory(capsys, tmp_path):
    code, _, err = show(capsys, tmp_path)

    assert (code, err) == (2, f"perfgate: {tmp_path}: is a directory; give the files in it\n")


def test_command__a_result_folder_is_judged_by_another_command(capsys, tmp_path):
    (tmp_path / "session.json").write_text("{}")

    code, _, err = show(capsys, tmp_path)

    assert (code, err) == (2, f"perfgate: {tmp_path}: is a result folder; `perfgate check {tmp_path}` judges it\n")
