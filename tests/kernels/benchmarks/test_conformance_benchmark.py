"""benchmarks/kernels/conformance.py and error_ratios.py on the CPU: a crash costs one answer, and files of any age are read."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
import torch

from perfgate_moe.exam.accuracy import measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.conformance import prepare
from perfgate_moe.layer.reference import FLOAT8, FLOAT8_MAX, Steps, layer, project, split_gate_up, split_groups
from tests.kernels.scripts import loaded

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "benchmarks" / "kernels"
RESULTS = ROOT / "benchmarks" / "h200" / "kernels"
KILLER = """
    import gc
    import os
    from perfgate_moe.exam.conformance import PreparedCase
    from perfgate_moe.layer.reference import staged

    def dies(problem):
        if problem.tokens == 17:
            os._exit(7)
        return staged(problem)

    def strays(problem):
        for exam in (each for each in gc.get_objects() if type(each) is PreparedCase):
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


def test_judge__a_case_without_memory_for_its_tensors_is_not_judged(conformance, monkeypatch):
    def prepare(*_):
        raise RuntimeError("CUDA out of memory.\nTried to allocate 3.50 GiB")

    monkeypatch.setattr("perfgate_moe.exam.conformance.prepare", prepare)

    found = list(conformance.judge("E=4,k=2,H=64,I=64,M=17,dtype=bfloat16", ("torch-staged", "triton"), 1, "cpu"))

    assert [entry["not_judged"] for entry in found] == ["its tensors cannot be made: CUDA out of memory."] * 2
    assert [conformance.name_state(entry) for entry in found] == ["not judged"] * 2


@pytest.mark.parametrize(
    ("entry", "state"),
    [({"not_covered": "why"}, "not covered"), ({"problems": []}, "sound"), ({"problems": ["wrong"]}, "wrong")],
)
def test_name_state__of_an_answer(conformance, entry, state):
    assert conformance.name_state(entry) == state


def test_ask__a_broken_device_is_replaced_and_costs_one_implementation_only(conformance):
    def entry(name):
        return {"implementation": name, "case": "M=1", "problems": []}

    processes = [[entry("a"), conformance.BROKEN], ["its process ended with -11"], [entry("c"), conformance.DONE]]
    asked = []

    class Scripted(conformance.Worker):
        """Its processes answer what stands in `processes`, one after the other."""

        def _start(self):
            self._answers = iter(processes.pop(0))
            self._pipe = SimpleNamespace(send=asked.append)

        def _receive(self):
            return next(self._answers)

        _restart = _start

    found = list(Scripted(2, "cpu").ask(conformance.Task(case="M=1", implementations=("a", "b", "c"))))

    assert [one["implementation"] for one in found] == ["a", "b", "c"]
    assert [one["problems"] for one in found] == [[], ["its process ended with -11"], []]
    assert [names for _, names in asked] == [("a", "b", "c"), ("b", "c"), ("c",)]


def test_plan_tasks__a_large_layer_takes_what_it_holds(conformance):
    large = LayerCase(E=128, k=4, H=2880, I=2880, dtype="bfloat16")

    (task,) = conformance.plan_tasks((LayerCase(), large), ("triton",), "E=128")

    layer = large.E * large.H * large.I
    held, compared, drawn = 2 * 3 * 2 * layer, 2 * 2 * 2 * layer, (4 + 2) * 2 * layer
    assert task.size >= max(held + compared, drawn)


def test_plan_tasks__keeps_the_order_and_leaves_out_what_was_asked(conformance):
    cases = tuple(LayerCase(M=tokens, dtype=dtype) for tokens in (5, 3) for dtype in ("float32", "float16", "bfloat16"))

    found = [task.case for task in conformance.plan_tasks(cases, ("triton",), "float16", "M=3")]

    assert found == [str(LayerCase(M=5, dtype="float16")), str(LayerCase(M=5, dtype="bfloat16"))]


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


def test_find_ratios__of_a_case_that_ran_twice_the_larger_error_over_sglangs_smaller(ratios):
    """Among runs of one case, SGLang's answer differs only where something damaged what it was judged by."""
    runs = [line(name, error, "M=1") for name, error in (("triton", 1.0), ("sglang", 20.0), ("triton", 3.0), ("sglang", 2.0))]

    assert ratios.find_ratios([*runs, line("triton", 2.0, "M=1")]) == {("triton", "M=1"): 1.5}


def test_error_ratios__sglangs_answer_may_stand_in_another_file(ratios, monkeypatch, tmp_path, capsys):
    case = "E=8,k=4,H=64,I=96,M=33,dtype=bfloat16"
    for name, error in (("vllm", 1.5), ("sglang", 1.0)):
        (tmp_path / name).write_text(json.dumps(line(name, error, case)) + "\n")
    monkeypatch.setattr(sys, "argv", ["error_ratios.py", str(tmp_path / "vllm"), str(tmp_path / "sglang")])

    ratios.main()

    assert capsys.readouterr().out.splitlines()[2:] == ["| `vllm` | bfloat16 | 1 | 1.500 | 1.500 | 1 |"]


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
    page = (ROOT / "docs" / "evidence" / "kernels.md").read_text(encoding="utf-8")
    files = sorted(RESULTS.glob("conformance-*.jsonl.xz"))
    found = ratios.find_ratios(entry for path in files for entry in ratios.read_entries(path))
    head = "| implementation | numbers |"

    assert found
    assert page[page.index(head) :].split("\n\n")[0].splitlines()[2:] == ratios.rows(found)


@pytest.mark.parametrize("name", ["silu,bias=off", "silu,mask=ep,bias=off"])
def test_vllm__rounds_to_16_bits_between_silu_and_the_product(ratios, name):
    """The reference that rounds there too has vLLM's error; without that rounding it has SGLang's."""
    case = f"E=8,k=4,H=64,I=96,M=33,dtype=bfloat16,activation={name}"
    found = {
        entry["implementation"]: entry["errors"]["relative"]
        for file in ("vllm", "fused-sum")
        for entry in ratios.read_entries(RESULTS / f"conformance-{file}.jsonl.xz")
        if entry["case"] == case
    }

    def round_(tensor):
        return tensor.bfloat16().to(tensor.dtype)

    def gated(rows, activation):
        gate, up = split_gate_up(rows, interleaved=activation.interleaved)
        return round_(gate * gate.sigmoid()) * up

    exam = prepare(LayerCase.parse(case))
    steps = Steps(gate_up=lambda *operands: round_(project(*operands)), store=round_)
    errors = [
        measure(layer(exam.problem, torch.float32, each).bfloat16(), exam.reference).relative
        for each in (replace(steps, activate=gated), steps)
    ]

    assert errors == pytest.approx([found["vllm"], found["sglang"]], rel=1e-2)


def test_sglang__rounds_gate_and_up_to_16_bits_and_multiplies_by_the_scales_reciprocal(ratios):
    """With these two differences the reference has the error of SGLang's sound 8-bit layer on an H200; limits rest on that."""
    found = {
        entry["case"]: entry["errors"]["relative"]
        for entry in ratios.read_entries(RESULTS / "conformance-quantised.jsonl.xz")
        if entry["implementation"] == "sglang" and entry["case"].startswith("E=4,") and entry.get("errors")
    }
    shares = [_sglang_error(case) / error for case, error in found.items() if error]

    assert len(shares) == 13
    assert median(shares) == pytest.approx(1.0, abs=0.03)
    assert 0.9 < min(shares) <= max(shares) < 1.12


def _sglang_error(case):
    exam = prepare(LayerCase.parse(case))
    dtype = exam.problem.hidden.dtype

    def store(rows):
        return rows.to(dtype).float()

    def round_rows(rows):
        groups = split_groups(rows)
        peaks = groups.abs().amax(dim=-1, keepdim=True)
        codes = (groups * (FLOAT8_MAX / peaks)).clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8).float()
        return (codes * (peaks / FLOAT8_MAX)).flatten(1)[:, : rows.shape[1]]

    steps = Steps(store=store, gate_up=lambda *operands: store(project(*operands)), round_rows=round_rows)
    sound = exam.reference.isfinite().all(dim=1)
    answer = layer(exam.problem, torch.float32, steps).to(dtype)
    return measure(answer[sound], exam.reference[sound]).relative
