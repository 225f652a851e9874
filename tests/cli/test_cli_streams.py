"""`-` is standard input where a command reads a file, and standard output where it writes one."""

from __future__ import annotations

import io
import os

import pytest

from perfgate.cli import main
from perfgate.scenario.catalog import SCENARIO_DIR, compose
from perfgate.storage.stream import STREAM, open_file
from tests.fakes.recorded import BASELINE, ROOT, SLOWER

RUNS = ROOT / "tests/fixtures/runs"
OFF, ON = RUNS / "fusion_off_1.txt", str(RUNS / "fusion_on_1.txt")
LOCK = b"a==1\n"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def type_in(monkeypatch):
    """Give commands a standard input."""
    return lambda content: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("words", "content", "said"),
    [
        (["show", "-"], OFF, "Completed requests"),
        (["compare", "-", ON], OFF, "not enough data: 1 warm run per arm"),
        (["export", "-", "--csv", "table.csv"], OFF, "13 rows"),
        (["history", "import", "-", "--store", "store", "--hardware", "h"], OFF, "1 run read, 1 added"),
        (["history", "import", "-", "--store", "store", "--hardware", "h"], RUNS / "matrix.log", "read"),
        (["history", "import", "-", "--store", "store", "--hardware", "h"], b"window.BENCHMARK_DATA = 1", "data.js"),
        (["baseline", "show", "-"], BASELINE, "A/A blocks"),
        (["baseline", "verify", "-"], BASELINE, "-: whole and unedited"),
        (["baseline", "diff", "-", str(BASELINE)], BASELINE, ""),
        (["baseline", "expire", "-", "--older-than", "9"], BASELINE, "-: expire changes a file in its place"),
        (["compare", str(OFF), ON, "--baseline", "-"], BASELINE, "workload"),
        (["compare", str(OFF), ON, "--model-config", "-"], b"{}", "-: "),
        (["power", "--baseline", "-"], BASELINE, "Smallest loss"),
        (["scenarios", "show", "-"], compose("cpu-moe").encode(), 'name = "cpu-moe"'),
        (["power", "--baseline", str(BASELINE), "--scenario", "-"], compose("cpu-moe").encode(), "--scenario: cpu-moe"),
        (["matrix", "-", "--out", "out"], b"x = 1", "-:1: x: no such key"),
        (["plan", "--table", "-", "--changed", "a"], SCENARIO_DIR / "plan.toml", "perfgate gate"),
        (["deps", "-", "-", "--scenario", "cpu-moe", "--budget", "3", "--out", "out"], LOCK, "pin the same versions"),
        (["handoff", "choices", "-"], b"{}", "-: differences: Field required"),
    ],
    ids=lambda one: " ".join(one[:2]) if isinstance(one, list) else "",
)
def test_command__reads_standard_input(words, content, said, type_in, capsys):
    type_in(content if isinstance(content, bytes) else content.read_bytes())
    main(words)
    captured = capsys.readouterr()

    assert said in captured.out + captured.err
    assert "is empty" not in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("words", "begun"),
    [
        (["report", str(SLOWER), "--html", "-"], b"<!DOCTYPE html>"),
        (["report", str(SLOWER), "--output", "-"], b"### "),
        (["check", str(SLOWER), "--output", "-"], b"REGRESSION"),
        (["export", str(SLOWER), "--csv", "-"], b"session,scenario,"),
        (["scenarios", "new", "-"], b"# The first gate"),
        (["ledger", "show", str(ROOT / "benchmarks/engines/ledger"), "--output", "-"], b"#"),
    ],
    ids=lambda one: " ".join(one[:1]) if isinstance(one, list) else "",
)
def test_command__writes_to_standard_output(tmp_path, words, begun, capsysbinary):
    main(words)
    out, _ = capsysbinary.readouterr()

    assert out.startswith(begun)
    assert list(tmp_path.iterdir()) == []


def test_report__a_browser_opens_no_stream(capsys):
    assert main(["report", str(SLOWER), "--html", "-", "--open"]) == 2
    assert "--open: a browser opens a file" in capsys.readouterr().err


def test_open_file__each_reader_gets_all_of_it(type_in):
    type_in(b"all")
    with open_file(STREAM) as first, open_file(STREAM) as second:
        assert (first.read(), second.read()) == (b"all", b"all")


def test_write_file__pipe_stays_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["check", str(SLOWER), "--output", str(tmp_path / "pipe")]) == 1
        assert os.read(reader, 10) == b"REGRESSION"
        assert (tmp_path / "pipe").is_fifo()
    finally:
        os.close(reader)
