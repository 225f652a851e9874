"""benchmarks/kernels/conformance.py and error_ratios.py on the CPU: a crash costs one answer, and files of any age are read."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfgate.kernels.cases import Case
from tests.kernels.scripts import loaded

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "benchmarks" / "kernels"
KILLER = """
    import gc
    import os
    from perfgate.kernels.conformance import Exam
    from perfgate.kernels.reference import staged

    def dies(problem):
        if problem.tokens == 17:
            os._exit(7)
        return staged(problem)

    def strays(problem):
        for exam in (each for each in gc.get_objects() if type(each) is Exam):
            exam.reference.zero_()
            exam.originals["gate_up"].zero_()
        return staged(problem)

    def raises_late(problem):
        raise KeyError("missing")
"""


@pytest.fixture(scope="module")
def ratios():
    with loaded("error_ratios") as module:
        yield module


@pytest.fixture(scope="module")
def conformance():
    with loaded("conformance") as module:
        yield module


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """The lines of a run in which one implementation takes its process down in the middle."""
    folder = tmp_path_factory.mktemp("conformance")
    (folder / "killer.py").write_text(textwrap.dedent(KILLER))
    out = folder / "out.jsonl"
    argv = [sys.executable, str(SCRIPTS / "conformance.py"), "--device=cpu", "--workers=1", "--reruns=3", f"--out={out}"]
    argv += [
        "--only=E=5,k=3,H=80,I=96,M=17,dtype=float16",
        "--impl=killer:dies",
        "--impl=killer:strays",
        "--impl=torch-staged",
        "--impl=killer:raises_late",
    ]
    done = subprocess.run(
        argv, env=os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"}, capture_output=True, text=True, check=False, timeout=120
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_conformance__begins_with_versions_commit_and_command(judged):
    about = judged[0]["about"]

    assert {"device", "torch", "triton", "sglang", "commit"} <= about.keys()
    assert about["reruns"] == 3
    assert "--only=E=5,k=3,H=80,I=96,M=17,dtype=float16" in about["command"]


def test_conformance__a_process_that_ends_is_wrong_in_that_case_and_the_rest_is_asked(judged):
    found = {entry["implementation"]: entry for entry in judged[1:]}

    assert found["killer:dies"]["problems"] == ["its process ended with 7"]
    assert found["torch-staged"]["problems"] == []
    assert found["torch-staged"]["errors"]["relative"] > 0
    assert found["killer:raises_late"]["problems"] == ["raised KeyError: [\"'missing'\"]"]


def test_conformance__what_damages_the_exam_spoils_no_other_answer(judged):
    found = {entry["implementation"]: entry for entry in judged[1:]}

    assert "input gate_up was overwritten" in found["killer:strays"]["problems"]
    assert [entry["implementation"] for entry in judged[2:4]] == ["killer:strays", "torch-staged"]
    assert found["torch-staged"]["problems"] == []


def test_ask__a_broken_device_is_replaced_and_blamed_on_one_implementation_only(conformance):
    def entry(name):
        return {"implementation": name, "case": "M=1", "problems": []}

    lives = [[entry("a"), conformance.BROKEN], ["its process ended with -11"], [entry("c"), conformance.DONE]]
    asked = []

    class Scripted(conformance.Worker):
        """Its processes say what stands in `lives`, one life after the other."""

        def _start(self):
            self._life = iter(lives.pop(0))
            self._pipe = SimpleNamespace(send=asked.append)

        def _receive(self):
            return next(self._life)

        _restart = _start

    found = list(Scripted(2, "cpu").ask(conformance.Task(case="M=1", implementations=("a", "b", "c"))))

    assert [one["implementation"] for one in found] == ["a", "b", "c"]
    assert [one["problems"] for one in found] == [[], ["its process ended with -11"], []]
    assert [names for _, names in asked] == [("a", "b", "c"), ("b", "c"), ("c",)]


def test_plan_tasks__a_large_layer_takes_what_it_holds(conformance):
    large = Case(E=128, k=4, H=2880, I=2880, dtype="bfloat16")

    (task,) = conformance.plan_tasks((Case(), large), ("triton",), "E=128")

    layer = large.E * large.H * large.I
    held, compared, drawn = 2 * 3 * 2 * layer, 2 * 2 * 2 * layer, (4 + 2) * 2 * layer
    assert task.size >= max(held + compared, drawn)


def test_plan_tasks__keeps_the_order_and_leaves_out_what_was_asked(conformance):
    cases = tuple(Case(M=tokens, dtype=dtype) for tokens in (5, 3) for dtype in ("float32", "float16", "bfloat16"))

    found = [task.case for task in conformance.plan_tasks(cases, ("triton",), "float16", "M=3")]

    assert found == [str(Case(M=5, dtype="float16")), str(Case(M=5, dtype="bfloat16"))]


def test_memory__a_large_task_waits_for_the_one_before_it(conformance):
    memory = conformance.Memory(10)
    first = memory.take(7)
    waiter = threading.Thread(target=lambda: memory.take(99))
    waiter.start()
    waiter.join(timeout=0.2)
    assert waiter.is_alive()

    memory.give(first)

    waiter.join(timeout=10)
    assert not waiter.is_alive()


def line(name, relative, case="E=8,k=4,H=64,I=96,M=33,dtype=bfloat16"):
    return {"implementation": name, "case": case, "problems": [], "errors": {"relative": relative}}


def test_find_ratios__only_where_both_answered(ratios):
    entries = [
        line("sglang", 2.0),
        line("triton", 1.0),
        line("triton", 1.0, "M=1"),
        line("sglang", 0.0, "M=2"),
        line("triton", 1.0, "M=2"),
    ]
    entries.append({"implementation": "triton-owner", "case": "M=1", "not_covered": "why"})

    assert ratios.find_ratios(entries) == {("triton", "E=8,k=4,H=64,I=96,M=33,dtype=bfloat16"): 0.5}


def test_join__keeps_the_larger_ratio_of_a_case_that_ran_twice(ratios):
    key = ("triton", "M=1")

    assert ratios.join([{key: 0.5}, {key: 0.9}, {key: 0.7}]) == {key: 0.9}


@pytest.mark.parametrize("head", [[], [{"about": {"torch": "2"}}]], ids=["old", "with versions"])
def test_read_entries__of_files_with_and_without_a_first_line_of_versions(ratios, tmp_path, head):
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in [*head, line("sglang", 1.0)]) + "\n")

    assert ratios.read_entries(path) == [line("sglang", 1.0)]


def test_rows__say_how_often_an_error_is_larger_than_sglangs(ratios):
    cases = [f"E=8,k=4,H=64,I=96,M={tokens},dtype=float16" for tokens in (1, 2, 3)]
    found = {("triton", case): ratio for case, ratio in zip(cases, (0.5, 0.75, 1.5), strict=True)}

    assert ratios.rows(found) == ["| `triton` | float16 | 3 | 0.750 | 1.500 | 1 |"]


def test_documentation__states_the_table_of_the_committed_files(ratios):
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    files = sorted((ROOT / "benchmarks" / "h200" / "kernels").glob("conformance-*.jsonl"))
    found = ratios.join(ratios.find_ratios(ratios.read_entries(path)) for path in files)

    assert found
    assert all(row in page for row in ratios.rows(found))
