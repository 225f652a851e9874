"""Whole matrices with the fake engine: shared starts, cells without result, a table, and going on after a kill."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.core import Arm, Role
from perfgate.errors import EngineError
from perfgate.report.cells import remark, tabulate_cells
from perfgate.results.answers import load_answers
from perfgate.results.expert_use import list_use
from perfgate.results.matrix import load_matrix, read_entries
from perfgate.results.server_info import load_infos
from perfgate.verdict.cells import judge_cells
from tests.e2e.commands import find_leftovers, wait_for_leftovers
from tests.fakes.commands import kill_at, run_perfgate, start_perfgate
from tests.fakes.recorded import SLOWER
from tests.fakes.requests import use_fake_engine, use_fake_processes

FILE = Path(__file__).parents[2] / "fakes" / "matrix.toml"


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


@pytest.fixture
def write(tmp_path):
    """Write the matrix with changes."""

    def write(changes=()):
        text = FILE.read_text()
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        (tmp_path / "matrix.toml").write_text(text)
        return str(tmp_path / "matrix.toml")

    return write


def judge(folder):
    return judge_cells(*load_matrix(folder))


def read_events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_matrix__one_table_from_one_start_a_server_and_round(write, tmp_path, capsys):
    code = main(["matrix", write(), "--out", str(tmp_path / "out")])
    out = capsys.readouterr().out.splitlines()
    started = [event["server"] for event in read_events(tmp_path / "out") if event["event"] == "server_started"]
    cells = judge(tmp_path / "out")
    with (tmp_path / "out" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert code == 0
    assert started == ["plain", "slowed", "slowed", "plain"]
    assert [line.split()[:3] for line in out[1:5]] == [
        ["plain", "closed", "4"],
        ["plain", "paced", "4"],
        ["slowed", "closed", "4"],
        ["slowed", "paced", "4"],
    ]
    assert "levels without a verdict" in out[-1]
    assert cells[2].find_level("median_itl_ms") == pytest.approx(2 * cells[0].find_level("median_itl_ms"), rel=0.1)
    assert (tmp_path / "out" / "table.md").read_text().startswith("| server | load |")
    assert {(row["arm"], row["scenario"], row["block"]) for row in rows} >= {("slowed", "paced", "2")}
    # A window that the machine disturbed is measured again and stays in the table; warm-ups are not in it.
    assert {row["role"] for row in rows} <= {"measured", "rerun"}
    assert find_leftovers(tmp_path / "state") == []


def test_matrix__each_start_is_asked_and_keeps_its_settings(write, tmp_path, capsys):
    code = main(["matrix", write(), "--out", str(tmp_path / "out")])
    out = capsys.readouterr().out
    answers, infos = load_answers(tmp_path / "out"), load_infos(tmp_path / "out")
    frozen = [event["server"] for event in read_events(tmp_path / "out") if event["event"] == "gc_freeze"]
    [ready] = [event for event in read_events(tmp_path / "out") if event["event"] == "server_ready" and event["start"] == 1]

    assert code == 0
    assert [(found.block, found.arm, found.start) for found in answers] == [
        (1, Arm.BASE, 1),
        (1, Arm.CANDIDATE, 2),
        (2, Arm.CANDIDATE, 3),
        (2, Arm.BASE, 4),
    ]
    assert [(info.arm, info.start) for info in infos] == [(found.arm, found.start) for found in answers]
    assert all(info.settings for info in infos)
    assert [(record.arm, record.start) for record, _ in list_use(tmp_path / "out")] == [(Arm.BASE, 1), (Arm.CANDIDATE, 2)]
    assert frozen == ["plain", "slowed", "slowed", "plain"]
    assert ready["ready_s"] > 0
    assert "answers of slowed held against plain: log-probs of the candidate differ from the base's by 0.00 %" in out
    assert "answers of plain" not in out


def test_matrix__backend_with_wrong_answers_is_no_result_however_fast(write, tmp_path, capsys):
    code = main(["matrix", write([('FAKE_SLOW = "2.0"', 'FAKE_ANSWER = "wrong"')]), "--out", str(tmp_path / "out")])
    out = capsys.readouterr().out
    cells = judge(tmp_path / "out")

    assert code == 3
    assert [len(cell.problems) for cell in cells] == [0, 0, 1, 1]
    assert "PROBLEM slowed x closed: block " in out
    assert "its answers are wrong, however fast" in out


def test_matrix__answers_that_are_meant_to_differ_are_not_asked(write, tmp_path):
    file = write([('FAKE_SLOW = "2.0"', 'FAKE_ANSWER = "wrong"'), ("[warmup]", "[equivalence]\nenabled = false\n\n[warmup]")])

    assert main(["matrix", file, "--out", str(tmp_path / "out")]) == 0
    assert load_answers(tmp_path / "out") == []


def test_load_matrix__start_that_was_never_asked(write, tmp_path):
    """One of a server's starts is missing among the answers; a folder from before servers were asked has none at all."""
    main(["matrix", write(), "--out", str(tmp_path / "out")])
    path = tmp_path / "out" / "answers.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[3:]))
    cells = judge(tmp_path / "out")
    path.unlink()
    old = judge(tmp_path / "out")

    never = "block 2, candidate, start 3: measured but never asked the equivalence prompts; measure again"
    assert [cell.problems for cell in cells] == [(), (), (never,), (never,)]
    assert [cell.problems for cell in old] == [(), (), (), ()]


def test_matrix__a_server_that_dies_leaves_the_others_alone(write, tmp_path, capsys):
    file = write([('FAKE_SLOW = "2.0"', 'FAKE_ENGINE = "die"')])
    code = main(["matrix", file, "--out", str(tmp_path / "out")])
    out = capsys.readouterr().out
    cells = judge(tmp_path / "out")

    assert code == 3
    assert [len(cell.windows) for cell in cells] == [4, 4, 0, 0]
    assert "PROBLEM slowed x closed: round 1: server ended by itself with exit code 7" in out
    assert "n/a" in out.splitlines()[3]


def test_matrix__a_load_that_its_server_does_not_survive(write, tmp_path):
    """The third window of a start never ends, whatever the load: each load gets a start of its own to show it on."""
    file = write(
        [('FAKE_SLOW = "2.0"', 'FAKE_ENGINE = "hang:3"'), ("max_concurrency = 4", "max_concurrency = 4\ntimeout_s = 2.0")]
    )
    code = main(["matrix", file, "--out", str(tmp_path / "out")])
    cells = judge(tmp_path / "out")
    failed = [(event["round"], event["load"]) for event in read_events(tmp_path / "out") if event["event"] == "cell_failed"]

    assert code == 3
    assert [len(cell.windows) for cell in cells[:2]] == [4, 4]
    assert failed == [(1, "closed"), (1, "paced"), (2, "paced"), (2, "closed")]
    assert find_leftovers(tmp_path / "state") == []


def test_matrix__failed_requests_are_no_level(write, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_BENCH", "drop_one")
    code = main(["matrix", write([("rounds = 2", "rounds = 1")]), "--out", str(tmp_path / "out")])
    out = capsys.readouterr().out

    assert code == 3
    assert "PROBLEM plain x closed: block 1, base, start 1, window 0: 7 of 8 requests completed" in out
    assert "one start of each server: two starts may differ as much as two servers" in out


@pytest.mark.parametrize(("lines", "use"), [(3, use_fake_engine), (14, use_fake_processes), (26, use_fake_engine)])
def test_matrix__killed_and_resumed(*, write, monkeypatch, tmp_path, lines, use):
    """A server that goes on with its second load is asked with the same prompts as the others, which met their first one."""
    use(monkeypatch, tmp_path)
    monkeypatch.setenv("FAKE_ROUTING", "mixture")
    folder = tmp_path / "out"
    file = write([("max_concurrency = 4\n\n[loads.paced]", "max_concurrency = 12\n\n[loads.paced]")])
    command = ("matrix", file, "--out", folder)
    # However late it is killed, it has not ended: its last server does not come up.
    limit = {"FAKE_SERVERS": f"{tmp_path / 'servers'}:3"}
    kill_at(start_perfgate(tmp_path / "state", *command, **limit), folder, lines)
    refused = run_perfgate(tmp_path / "state", *command)
    code, out, err = run_perfgate(tmp_path / "state", *command, "--resume")
    again = run_perfgate(tmp_path / "state", *command, "--resume")
    cells = judge(folder)
    entries = read_entries(folder)
    named = [file for event in read_events(folder) for file in event.get("superseded", [])]
    ended = [event["event"] for event in read_events(folder)].count("cell_ended")

    assert refused[0] == 2
    assert "already holds a matrix; continue with --resume" in refused[2]
    assert code == 0, out + err
    assert [len(cell.windows) for cell in cells] == [4, 4, 4, 4]
    assert ended == 8
    assert len(entries) - len(named) == 8 * (2 + 2)
    assert len({entry.file for entry in entries}) == len(entries)
    assert wait_for_leftovers(tmp_path / "state") == []
    assert again[:2] == (0, out)
    assert len(read_entries(folder)) == len(entries)


def test_matrix__an_unknown_engine_is_told_before_anything_is_measured(write, tmp_path, monkeypatch, capsys):
    def refuse(_, arms):
        [(record, _)] = arms
        raise EngineError(f"sglang {record.facts['sglang']} has no --enable-metrics")

    monkeypatch.setattr("perfgate.serving.matrix_run.verify_facts", refuse)
    code = main(["matrix", write(), "--out", str(tmp_path / "out")])

    assert code == EngineError.exit_code
    assert "has no --enable-metrics" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_matrix__another_one_is_not_gone_on_with(write, tmp_path, capsys):
    code = main(["matrix", write([("rounds = 2", "rounds = 1")]), "--out", str(tmp_path / "out")])
    capsys.readouterr()
    other = main(["matrix", write(), "--out", str(tmp_path / "out"), "--resume"])

    assert (code, other) == (0, 2)
    assert "cannot go on: rounds was 1 and is 2" in capsys.readouterr().err


def test_matrix__inherited_variable_that_changed(write, tmp_path, monkeypatch, capsys):
    code = main(["matrix", write([("rounds = 2", "rounds = 1")]), "--out", str(tmp_path / "out")])
    capsys.readouterr()
    monkeypatch.setenv("SGLANG_X", "1")
    other = main(["matrix", write([("rounds = 2", "rounds = 1")]), "--out", str(tmp_path / "out"), "--resume"])

    assert (code, other) == (0, 2)
    assert "the variable SGLANG_X, which servers inherit, was absent and is 1; set it as it was" in capsys.readouterr().err


def test_matrix__folder_of_a_session(write, tmp_path, capsys):
    shutil.copytree(SLOWER, tmp_path / "session")
    before = sorted((tmp_path / "session").rglob("*"))

    assert main(["matrix", write(), "--out", str(tmp_path / "session")]) == 2
    assert "session: already holds other results than a matrix; give a new folder" in capsys.readouterr().err
    assert sorted((tmp_path / "session").rglob("*")) == before


def test_matrix__nothing_to_resume(write, tmp_path, capsys):
    code = main(["matrix", write(), "--out", str(tmp_path / "none"), "--resume"])

    assert code == 2
    assert "there is nothing to go on with; leave --resume out" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_load_matrix__damaged_raw_data_is_no_level(write, tmp_path):
    main(["matrix", write([("rounds = 2", "rounds = 1")]), "--out", str(tmp_path / "out")])
    counted = [entry for entry in read_entries(tmp_path / "out") if entry.role is not Role.WARMUP]
    (tmp_path / "out" / counted[0].file).write_bytes(b"edited")
    (tmp_path / "out" / counted[2].file).unlink()
    cells = judge(tmp_path / "out")

    assert [len(cell.windows) for cell in cells] == [0, 0, 2, 2]
    assert "does not match its digest" in cells[0].problems[0]
    assert "is missing although the index names it" in cells[1].problems[0]


@pytest.mark.parametrize(
    ("telemetry", "words"),
    [
        ({"throttled_share": 0.5}, "block 1, base, start 1, window 2: the GPU throttled for 50 % of the window; let it cool"),
        ({"foreign_processes": 1.0}, "block 1, base, start 1, window 2: other processes used the GPU; stop them"),
        ({"cache_hit_rate": 0.9}, "block 1, base, start 1, window 2: 90 % of random prompts came from the prefix cache"),
        (
            {"kernels_compiled": 3.0},
            "block 1, base, start 1, window 2: the server compiled 3 kernels, and no re-run",
        ),
    ],
)
def test_load_matrix__disturbed_window_is_no_level(write, tmp_path, capsys, telemetry, words):
    command = ["matrix", write([("rounds = 2", "rounds = 1")]), "--out", str(tmp_path / "out")]
    clean = main(command)
    index = tmp_path / "out" / "windows.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()]
    first = next(line for line in lines if line["role"] == "measured")
    first["telemetry"] |= telemetry
    index.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code = main([*command, "--resume"])
    cells = judge(tmp_path / "out")

    assert (clean, code) == (0, 3)
    assert [len(cell.windows) for cell in cells] == [0, 2, 2, 2]
    assert cells[0].problems[0].startswith(words)
    assert f"PROBLEM plain x closed: {words}" in capsys.readouterr().out


def test_matrix__a_window_that_compiled_is_measured_again(write, tmp_path, monkeypatch):
    """The warm-up under the first load ends with the fourth window, of which the third compiled; so did the fifth."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    changes = [("rounds = 2", "rounds = 1"), ('FAKE_SLOW = "2.0"', 'FAKE_SLOW = "2.0", FAKE_COMPILES = "2,3,5"')]
    code = main(["matrix", write(changes), "--out", str(tmp_path / "out")])
    events = [event for event in read_events(tmp_path / "out") if event["event"] == "other_work"]
    roles = [
        line["role"]
        for line in map(json.loads, (tmp_path / "out" / "windows.jsonl").read_text().splitlines())
        if (line["server"], line["load"]) == ("slowed", "closed")
    ]
    cells = judge(tmp_path / "out")

    assert code == 0
    assert roles == ["warmup"] * 4 + ["measured"] * 2 + ["rerun"]
    assert [(event["server"], event["load"], event["index"]) for event in events] == [
        ("slowed", "closed", n) for n in (1, 2, 4)
    ]
    assert [(len(cell.windows), cell.problems) for cell in cells] == [(2, ())] * 4


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("['--json-model-override-args', '{\"num_experts_per_tok\": 1}']", "top_k is 1, the scenario wants 2"),
        ("['--quantization', 'fp8']", "quantization is fp8, the scenario wants none"),
        ("['--model-path', '/elsewhere']", "its arguments serve /elsewhere instead of"),
    ],
)
def test_matrix__a_server_whose_arguments_make_another_model(write, tmp_path, capsys, args, words):
    """Refused as `perfgate run` refuses it, before anything starts: the other servers' numbers would stand beside nothing."""
    file = write([('env = { FAKE_SLOW = "2.0" }', f"args = {args}")])
    code = main(["matrix", file, "--out", str(tmp_path / "out")])
    told = capsys.readouterr().err.splitlines()[-1]

    assert code == 3
    assert "slowed: " in told
    assert words in told
    assert not (tmp_path / "out").exists()


def test_tabulate_cells__a_cell_that_was_not_measured_yet(write, tmp_path):
    folder = tmp_path / "out"
    limit = {"FAKE_SERVERS": f"{tmp_path / 'servers'}:1"}
    process = start_perfgate(tmp_path / "state", "matrix", write(), "--out", folder, **limit)
    kill_at(process, folder, 3)
    cells = judge(folder)

    assert tabulate_cells(cells).rows[3][:4] == ("slowed", "paced", "0", "n/a")
    remarks = list(remark(cells, 2))
    assert "PROBLEM slowed x paced: was not measured yet; continue with --resume" in remarks
    entry = "docs/troubleshooting.md#the-folder-was-changed-or-is-incomplete"
    assert any(line.startswith("what to do about a problem: ") and line.endswith(entry) for line in remarks)


def test_matrix__a_table_that_cannot_be_written(write, tmp_path, capsys):
    (tmp_path / "out" / "table.md").mkdir(parents=True)

    assert main(["matrix", write(), "--out", str(tmp_path / "out")]) == 2
    assert "out/table.md: cannot be written (Is a directory)" in capsys.readouterr().err


def test_matrix__curve_as_a_picture_and_again_from_what_is_stored(write, tmp_path):
    first, again = tmp_path / "curve.svg", tmp_path / "again.svg"
    command = ["matrix", write(), "--out", str(tmp_path / "out")]

    codes = [main([*command, "--picture", str(first)]), main([*command, "--resume", "--picture", str(again)])]

    assert codes == [0, 0]
    assert "plain" in first.read_text()
    assert again.read_bytes() == first.read_bytes()
    assert [event["event"] for event in read_events(tmp_path / "out")].count("server_started") == 4


@pytest.mark.parametrize(
    ("matrix", "picture", "message"),
    [("swep", "curve.svg", "unknown matrix 'swep': choose from"), ("gpt-oss-20b-shape-sweep", "curve.png", "must end in .svg")],
)
def test_matrix__refused_before_anything_is_measured(tmp_path, capsys, matrix, picture, message):
    code = main(["matrix", matrix, "--out", str(tmp_path / "out"), "--picture", str(tmp_path / picture)])

    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
