"""The command: commits that are installed and served, commits that are run, and what cannot be used."""

from __future__ import annotations

import json
import sys
from math import log

import orjson
import pytest

from perfgate.cli import main
from tests.fakes.commands import kill_at, start_perfgate
from tests.fakes.repositories import commit, git, grow, make_repository
from tests.fakes.requests import build_text, use_fake_processes

# The package of a commit sets what the fake engine takes for its speed, in each Python that it is installed into.
SETUP = """import os, sys, sysconfig
from setuptools import setup
site = os.path.relpath(sysconfig.get_path("purelib"), sys.prefix)
setup(name="engine", version="1", py_modules=[], data_files=[(site, ["slow.pth"])])
"""


@pytest.fixture
def program(tmp_path):
    """A repository whose program prints a number that another one in it sets: 1.0 to 1.3 at the fourth change."""
    folder = make_repository(tmp_path / "repo")
    grow(folder, 6, lambda number: {"value": f"{1.3 if number >= 4 else 1.0}", "number": str(number)})
    return folder


def write_printer(folder, *lines):
    """A command that prints what the checkout says, with a scatter of 1 %."""
    path = folder / "printer.py"
    path.write_text("\n".join(["import random", "value = float(open('value').read())", *lines]))
    return f"{sys.executable} {path}"


def bisect(repo, out, *arguments, good="main~6"):
    few = ["--budget", "60", *([] if "--scenario" in arguments else ["--windows", "1", "--aa-blocks", "2"])]
    return main(["bisect", good, "main", "--repo", str(repo), "--out", str(out), *few, *map(str, arguments)])


SCATTER = "print(value * random.uniform(0.99, 1.01))"


def test_bisect__a_command(program, tmp_path, capsys):
    code = bisect(program, tmp_path / "out", "--command", write_printer(tmp_path, SCATTER))
    told = capsys.readouterr()
    culprit = git(program, "rev-parse", "main~2")

    assert code == 0
    assert told.out.splitlines()[0] == "FOUND: this commit made it slower"
    assert f"culprit: {culprit} change 4" in told.out
    assert f"to see it: git -C {program} show {culprit}" in told.out
    assert "GPU-minutes:" in told.out.splitlines()[-1]
    assert "+30" in told.out or "+29" in told.out or "+31" in told.out
    assert "against GOOD" in told.err


def test_bisect__resumed_after_its_end_says_the_same(program, tmp_path, capsys):
    arguments = ("--command", write_printer(tmp_path, SCATTER), "--format", "json")
    bisect(program, tmp_path / "out", *arguments)
    first = capsys.readouterr().out
    bisect(program, tmp_path / "out", *arguments, "--resume")

    assert capsys.readouterr().out == first


def test_bisect__a_throughput(program, tmp_path, capsys):
    command = write_printer(tmp_path, "print(random.uniform(0.99, 1.01) / value)")
    code = bisect(program, tmp_path / "out", "--command", command, "--better", "higher", "--format", "json")
    found = json.loads(capsys.readouterr().out)

    assert (code, found["culprit"]) == (0, git(program, "rev-parse", "main~2"))
    assert found["commits"][-1]["change"] == pytest.approx(1 / 1.3 - 1, abs=0.03)


LINE = {
    "backend": "sglang",
    "dataset_name": "random-ids",
    "request_rate": 4.0,
    "max_concurrency": 16,
    "num_prompts": 64,
    "completed": 64,
    "total_input_tokens": 1024,
    "total_output_tokens": 2048,
    "duration": 10.0,
    "mean_itl_ms": 0.0,
}


def test_bisect__a_command_that_prints_bench_serving_json(program, tmp_path, capsys):
    lines = [
        "import json",
        f"line = {LINE!r}",
        "line['mean_itl_ms'] = 5 * value * random.uniform(0.99, 1.01)",
        "print('loading')",
        "print(json.dumps(line))",
    ]
    command = write_printer(tmp_path, *lines)
    code = bisect(program, tmp_path / "out", "--command", command, "--metric", "mean_itl_ms")

    assert code == 0, capsys.readouterr()
    assert "Mean ITL" in capsys.readouterr().out


def test_bisect__a_budget_that_is_used_up_and_raised(program, tmp_path, capsys):
    command = write_printer(tmp_path, SCATTER)
    first = bisect(program, tmp_path / "out", "--command", command, "--budget", "0.0001")
    told = capsys.readouterr().out
    second = bisect(program, tmp_path / "out", "--command", command, "--resume")

    assert (first, second) == (3, 0)
    assert told.startswith("OUT_OF_BUDGET: not found within the budget")


def test_bisect__equal_ends(program, tmp_path, capsys):
    code = bisect(program, tmp_path / "out", "--command", write_printer(tmp_path, "print(random.uniform(0.995, 1.005))"))

    assert code == 3
    assert "BAD is not slower by as much as the margin: the gate's rule says PASS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["raise SystemExit('out of memory')"], "ended with exit code 1"),
        (["raise SystemExit(125)"], "says that it cannot be measured (exit code 125)"),
        (["print('fast')"], "printed 'fast' where a number above zero was expected"),
        (["print(-1.0)"], "printed '-1.0' where a number above zero was expected"),
        (["import time", "time.sleep(60)"], "did not end within 2 s"),
    ],
)
def test_bisect__a_command_that_measures_nothing(program, tmp_path, capsys, lines, words):
    timeout = "2" if "import time" in lines else "600"
    code = bisect(program, tmp_path / "out", "--command", write_printer(tmp_path, *lines), "--timeout", timeout)
    told = capsys.readouterr().out

    assert code == 3
    assert told.startswith("UNMEASURABLE: ")
    assert words in told


def test_bisect__a_skipped_culprit(program, tmp_path, capsys):
    code = bisect(
        program,
        tmp_path / "out",
        "--command",
        write_printer(tmp_path, SCATTER),
        "--build",
        f"{sys.executable} -c \"import sys; sys.exit(open('number').read() in '34')\"",
        "--format",
        "json",
    )
    found = json.loads(capsys.readouterr().out)
    names = [git(program, "rev-parse", f"main~{back}") for back in (3, 2, 1)]

    assert (code, found["outcome"], found["credible"]) == (3, "NARROWED", names)
    assert "--build ended with exit code 1" in found["commits"][4]["skipped"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either --scenario"),
        (["--scenario", "cpu-moe", "--command", "true"], "give either --scenario"),
        (["--command", "true", "--metric", "speed"], "--metric speed: no such metric"),
        (["--command", "'"], "No closing quotation"),
        (["--command", " "], "--command: is empty"),
        (["--command", "true", "--build", " "], "--build: is empty"),
        (["--command", "true", "--resume"], "has no search to continue"),
        (["--scenario", "cpu-moe", "--margin", "0.1"], "has no effect with --scenario"),
        (["--command", "true", "--both-arg=--flag"], "--both-arg: has no effect with --command"),
        (["--command", "true", "--metric", "mean_itl_ms", "--better", "lower"], "--better: a metric of --metric has its own"),
        (["--scenario", "nonsense"], "unknown scenario 'nonsense'"),
        (["--scenario", "cpu-moe", "--metric", "max_itl_ms"], "does not gate it; one of"),
        (["--scenario", "cpu-moe", "--both-env", "1=2"], "--both-env 1=2: expected NAME=VALUE"),
    ],
)
def test_bisect__bad_options(program, tmp_path, capsys, arguments, words):
    code = bisect(program, tmp_path / "out", *arguments)
    told = capsys.readouterr().err

    assert code == 2
    assert words in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("option", "words"), [("--command", "--command /no/such"), ("--build", "--build /no/such")])
def test_bisect__a_program_that_is_not_there(program, tmp_path, capsys, option, words):
    given = ["--command", "true", option, "/no/such"]
    code = bisect(program, tmp_path / "out", *given)
    told = capsys.readouterr().err.splitlines()[-1]

    assert code == 2
    assert f"{words}: cannot be run (No such file or directory)" in told


def test_bisect__another_search_is_not_gone_on_with(program, tmp_path, capsys):
    command = write_printer(tmp_path, SCATTER)
    bisect(program, tmp_path / "out", "--command", command)
    code = bisect(program, tmp_path / "out", "--command", command, "--margin", "0.05", "--resume")

    assert code == 2
    assert "cannot go on: margin was 0.03 and is 0.05" in capsys.readouterr().err


def test_bisect__a_damaged_journal(program, tmp_path, capsys):
    command = write_printer(tmp_path, SCATTER)
    bisect(program, tmp_path / "out", "--command", command)
    journal = tmp_path / "out" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes() + b'{"event": "measured", "place": 99, "minutes": 1}\n')
    code = bisect(program, tmp_path / "out", "--command", command, "--resume")

    assert code == 2
    assert "place or minutes are no numbers" in capsys.readouterr().err


def test_bisect__a_torn_line_is_measured_again(program, tmp_path):
    command = write_printer(tmp_path, SCATTER)
    bisect(program, tmp_path / "out", "--command", command)
    journal = tmp_path / "out" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])

    assert bisect(program, tmp_path / "out", "--command", command, "--resume") == 0
    assert all(orjson.loads(line) for line in journal.read_bytes().splitlines())


def read_windows(folder):
    """The index lines of a session, whole ones only."""
    return (folder / "windows.jsonl").read_bytes().split(b"\n")[:-1]


def test_bisect__commits_of_an_engine_with_a_kill_on_the_way(monkeypatch, tmp_path, capsys):
    use_fake_processes(monkeypatch, tmp_path)
    folder = make_repository(tmp_path / "repo")
    for number in range(4):
        slow = "import os; os.environ['FAKE_SLOW'] = '2.0'\n" if number >= 2 else "import os\n"
        files = {"python/setup.py": SETUP, "python/slow.pth": slow, "number": str(number)}
        commit(folder, files, f"change {number}")
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(build_text(**{"calibrate_first = true": "calibrate_first = false"}))
    out, good, bad = tmp_path / "out", git(folder, "rev-parse", "main~3"), git(folder, "rev-parse", "main")
    arguments = ["bisect", good, bad, "--repo", folder, "--out", out, "--budget", "60", "--scenario", scenario]
    first = out / "measurements" / f"0000-{bad[:12]}"
    kill_at(start_perfgate(tmp_path / "state", *arguments), first, 12)
    before = read_windows(first)
    code = main([*map(str, arguments), "--resume", "--format", "json"])
    told = capsys.readouterr()
    found = json.loads(told.out)

    assert code == 0, told.err
    assert found["culprit"] == git(folder, "rev-parse", "main~1")
    assert log(1 + abs(found["commits"][-1]["change"])) > 0.3
    assert all((out / name / "session.json").exists() for row in found["commits"] for name in row["folders"])
    assert before
    assert read_windows(first)[: len(before)] == before
