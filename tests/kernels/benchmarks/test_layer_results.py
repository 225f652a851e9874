"""benchmarks/kernels/layer.py and table.py without a GPU: the reference computes, and the clock is the CPU's."""

import base64
import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer.bricks import LaidOut
from perfgate_moe.layer.reference import staged
from perfgate_moe.layer.tables import read_table
from perfgate_moe.timing import tuner
from perfgate_moe.timing.roofline import Ceilings, expert_bytes, floor_us
from perfgate_moe.timing.shapes import SHAPES, SIXTEEN_BIT_SHAPES
from perfgate_moe.timing.timing import Calls
from tests.kernels.scripts import loaded

FOLDER = Path(__file__).parents[3] / "benchmarks" / "kernels"
ALL_TOKENS = [1, 4, 16, 64, 256, 1024, 4096]
SMALL = {
    "fp8": LayerCase(E=4, k=2, H=128, I=128, dtype="bfloat16", activation="silu", bias="off", quant="fp8"),
    "mxfp4": LayerCase(E=4, k=2, H=64, I=64, dtype="bfloat16", quant="mxfp4"),
    "plain": LayerCase(E=4, k=2, H=64, I=64, dtype="bfloat16"),
}
LIMITS = Ceilings(bytes_per_s=4e12, flop_per_s=8e14, fp8_flop_per_s=1.6e15)


@pytest.fixture
def table():
    with loaded("table") as module:
        yield module


@pytest.fixture
def layer(table, monkeypatch):  # noqa: ARG001 - it reads files by that script
    """layer.py on the CPU: every subject is the reference, every plan as fast as the next."""
    with loaded("layer") as module:
        monkeypatch.setattr(module, "SHAPES", SMALL)
        monkeypatch.setattr(module, "ROUNDS", 3)
        monkeypatch.setattr(module, "weight_sets", lambda case, _: [build(replace(case, M=2, seed=seed)) for seed in range(2)])
        monkeypatch.setattr(module, "measure_ceilings", lambda **_: LIMITS)
        monkeypatch.setattr(module, "capture", lambda run, problems: Calls(run=run, problems=problems[:1]))
        monkeypatch.setattr(module, "profile_us", lambda *_: {})
        monkeypatch.setattr(tuner, "quick_us", lambda *_: 1.0)
        for where in (module, tuner):
            monkeypatch.setattr(where, "runner", lambda *_: staged)
        yield module


def measure(layer, monkeypatch, out, shape, *more):
    argv = ["layer.py", "--shape", shape, "--workers", "0", "--out", str(out), *more]
    monkeypatch.setattr(sys, "argv", argv)
    layer.main()


def test_layer__measures_quantised_shapes_and_the_table_reads_them(layer, table, monkeypatch, tmp_path, capsys):
    for shape in ("fp8", "mxfp4"):
        measure(layer, monkeypatch, tmp_path / f"{shape}.json", shape, "--tokens", "1", "3")
    results = {shape: json.loads((tmp_path / f"{shape}.json").read_text())["cells"] for shape in ("fp8", "mxfp4")}

    for shape, widened in (("fp8", "fp8"), ("mxfp4", "16 bits (widened from mxfp4)")):
        for cell in results[shape]:
            assert set(cell["samples_us"]) == {"ours-slots", "sglang", "sglang-again", "sglang-untuned"}
            assert cell["weights"] == {"ours-slots": shape, "sglang": widened}
            assert all(error["relative"] < 2e-2 for error in cell["errors"].values())
            assert cell["floor_us"] > 0

    path = tmp_path / "plans.json"
    path.write_text(json.dumps({"about": {"from": ["old.json"]}, "plans": {"E=1,silu": {"1": {"kept": True}}}}))
    monkeypatch.setattr(sys, "argv", ["table.py", "--plans", str(path), *(str(tmp_path / f"{n}.json") for n in results)])
    for name in results:  # without a GPU there is no card's name
        content = json.loads((tmp_path / f"{name}.json").read_text())
        (tmp_path / f"{name}.json").write_text(json.dumps(content | {"card": {"name": "a card"}}))
    table.main()
    plans = read_table(path)["plans"]
    assert plans["E=1,silu"] == {"1": {"kept": True}}
    assert {key: list(cells) for key, cells in plans.items() if "E=4" in key} == {
        "E=4,k=2,H=128,I=128,silu,fp8": ["1", "3"],
        "E=4,k=2,H=64,I=64,swiglu,mxfp4": ["1", "3"],
    }
    assert read_table(path)["about"]["from"] == ["old.json", "fp8.json", "mxfp4.json"]
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["table.py", str(tmp_path / "fp8.json")])
    table.main()
    rows = capsys.readouterr().out.splitlines()
    assert sum(row.startswith(("| 1 |", "| 3 |")) for row in rows) == 2
    end = f"A/A | floor, us | error ratio | {table.AUTO} |"
    assert rows[3] == f"| M | ours, us | SGLang, us | stock, us | SGLang / ours | {end}"


@pytest.fixture
def recorded(tmp_path):
    """Choices as a session keeps them: two texts of three tokens, two layers, token t of text n at experts n and t + 2."""

    def text(number):
        ids = [[number, token + 2] for token in range(3)]
        layers = [base64.b64encode(np.array(pairs, "<u2").tobytes()).decode() for pairs in (ids, [pair[::-1] for pair in ids])]
        return {"tokens": [number, 7, 8], "layers": layers}

    path = tmp_path / "start-01.json.gz"
    content = {"experts": 5, "top_k": 2, "prompt_len": 1, "tokens_a_step": 2, "texts": [text(0), text(1)], "again": [text(0)]}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_find_draw__of_recorded_choices_token_for_token_of_all_texts(layer, recorded):
    case = LayerCase(E=5, k=2, M=7)
    draw = layer.find_draw(str(recorded), case)

    first, last = (draw(case, index, None) for index in (0, layer.LAYERS - 1))

    assert first.dtype == torch.int32
    assert first.tolist() == [[0, 2], [1, 2], [0, 3], [1, 3], [0, 4], [1, 4], [0, 2]]
    assert torch.equal(last, first.flip(1))


def test_find_draw__of_another_models_choices(layer, recorded):
    with pytest.raises(SystemExit, match=r"start-01\.json\.gz: 2 of 5 experts, where the layer chooses 4 of 32"):
        layer.find_draw(str(recorded), LayerCase(E=32, k=4))


def test_layer__a_cell_for_each_routing(layer, monkeypatch, tmp_path):
    measure(layer, monkeypatch, tmp_path / "out.json", "fp8", "--tokens", "3", "--routing", "uniform", "zipf", "by-turns")

    cells = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert [(cell["tokens"], cell["routing"]) for cell in cells] == [(3, "uniform"), (3, "zipf"), (3, "by-turns")]


def test_table__keeps_no_plan_whose_answer_was_wrong(layer, table, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(layer, "runner", lambda *_: lambda problem: staged(problem) * 1.5)
    measure(layer, monkeypatch, tmp_path / "fp8.json", "fp8", "--tokens", "1")

    assert "BEYOND THE LIMITS (relative error 0.5 > 0.02" in capsys.readouterr().out
    assert table.plan_table(json.loads((tmp_path / "fp8.json").read_text())["cells"]) == {}


def test_layer__begins_no_cell_after_its_deadline(layer, monkeypatch, tmp_path, capsys):
    measure(layer, monkeypatch, tmp_path / "late.json", "fp8", "--tokens", "1", "--deadline", "-1")

    assert "out of time before M=1" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_layer__keeps_the_cells_before_one_that_fails(layer, monkeypatch, tmp_path):
    measured = layer.cell

    def cell(at, *rest):
        if at.tokens == 3:
            raise RuntimeError("the device is gone")
        return measured(at, *rest)

    monkeypatch.setattr(layer, "cell", cell)
    with pytest.raises(RuntimeError, match="gone"):
        measure(layer, monkeypatch, tmp_path / "out.json", "mxfp4", "--tokens", "1", "3")

    assert [cell["tokens"] for cell in json.loads((tmp_path / "out.json").read_text())["cells"]] == [1]


def test_choose_subjects__quantised_weights_have_two(layer):
    assert layer.choose_subjects("fp8", None) == ["ours-slots", "sglang"]
    assert "ours-atomic32" in layer.choose_subjects("plain", None)
    with pytest.raises(SystemExit, match="--subjects ours-owner: fp8 has ours-slots, sglang, sglang-deep-gemm, vllm"):
        layer.choose_subjects("fp8", ["ours-owner", "sglang"])


def test_choose_subjects__vllm_only_where_it_is_installed(layer, monkeypatch, capsys):
    assert "vllm" not in layer.choose_subjects("plain", None)
    assert capsys.readouterr().out == "vllm is left out: it is not installed here\n"
    with pytest.raises(SystemExit, match="--subjects vllm: not installed here"):
        layer.choose_subjects("plain", ["sglang", "vllm"])

    monkeypatch.setattr(layer.vllm_peer, "is_installed", lambda: True)

    assert layer.choose_subjects("plain", None)[-1] == layer.choose_subjects("fp8", None)[-1] == "vllm"
    with pytest.raises(SystemExit, match=r"mxfp4 has ours-slots, sglang, sglang-mxfp4, sglang-marlin, \S+$"):
        layer.choose_subjects("mxfp4", ["vllm"])


def test_layer__times_vllm_with_tuned_tiles_and_its_own(layer, monkeypatch, tmp_path):
    monkeypatch.setattr(layer.vllm_peer, "is_installed", lambda: True)
    measure(layer, monkeypatch, tmp_path / "out.json", "plain", "--tokens", "64", "--subjects", "ours-slots", "sglang", "vllm")

    (cell,) = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert {"vllm", "vllm-untuned"} < set(cell["samples_us"])
    assert cell["plans"]["vllm"]["gate_up"] == cell["plans"]["vllm"]["down"]
    assert "vllm-untuned" in cell["control_over_subject"]


def test_layer__searches_no_plan_that_an_earlier_file_has(layer, monkeypatch, tmp_path):
    measure(layer, monkeypatch, tmp_path / "first.json", "mxfp4", "--tokens", "3")
    monkeypatch.setattr(layer, "find_plan", lambda *_: pytest.fail("a plan was searched for"))
    measure(layer, monkeypatch, tmp_path / "out.json", "mxfp4", "--tokens", "3", "--plans", str(tmp_path / "first.json"))

    first, again = (json.loads((tmp_path / f"{name}.json").read_text())["cells"][0] for name in ("first", "out"))
    assert again["plans"] == first["plans"]
    assert [found["tried"] for found in again["searched"].values()] == [0, 0]

    known = layer.read_plans([tmp_path / "first.json"], "mxfp4", ["ours-slots"])
    assert {tokens: set(plans) for tokens, plans in known.items()} == {3: {"sglang"}}


def test_layer__times_the_last_subject_again_where_sglangs_layer_is_left_out(layer, table, monkeypatch, tmp_path):
    measure(layer, monkeypatch, tmp_path / "out.json", "mxfp4", "--tokens", "3", "--subjects", "ours-slots")

    (cell,) = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert set(cell["samples_us"]) == {"ours-slots", "ours-slots-again"}
    assert table.quantised_rows([cell | {"samples_us": cell["samples_us"] | {"sglang-mxfp4": [1.0]},
                                         "errors": cell["errors"] | {"sglang-mxfp4": {"relative": 1.0}}}])[0] == (
        f"| M | ours, us | SGLang, us | SGLang / ours | A/A | floor, us | error ratio | {table.AUTO} |"
    )  # fmt: skip


def test_layer__times_sglangs_own_runner_of_4_bits_with_its_routing_and_without(layer, table, monkeypatch, tmp_path):
    peer = layer.sglang_mxfp4_peer
    monkeypatch.setattr(peer, "is_installed", lambda: True)
    for step in ("load", "score_ahead", "route_ahead"):
        monkeypatch.setattr(peer, step, lambda problem: problem)
    measure(layer, monkeypatch, tmp_path / "out.json", "mxfp4", "--tokens", "3")

    (cell,) = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert {"sglang-mxfp4", "sglang-mxfp4-routed"} < set(cell["samples_us"])
    assert cell["weights"]["sglang-mxfp4"] == "mxfp4"
    assert set(cell["plans"]) == {"ours-slots", "sglang"}
    head, _, line = table.quantised_rows([cell])
    assert (
        "| SGLang, us | routed before, us | widened, us | widened, stock, us | SGLang / ours | routed before / ours |" in head
    )
    assert line.count("|") == head.count("|")
    cell["samples_us"]["sglang-mxfp4-routed"] = [1e-3]
    assert table.fastest_sglang(cell["samples_us"]) == "sglang-mxfp4-routed"
    cell["samples_us"] = {"sglang": [1.0], "ours-slots": [2.0], "sglang-mxfp4-routed": [3.0]}
    assert table.gain(cell, "ours-slots")[0] == 1.5
    assert table.describe_choice(cell, "ours-slots") == "ours, 50.0%"
    cell["samples_us"]["sglang-mxfp4-routed"] = [1.6]
    assert table.describe_choice(cell, "ours-slots") == "SGLang's, 25.0%"


def test_layer__times_sglangs_marlin_runner_beside_the_others_without_a_search(layer, monkeypatch, tmp_path):
    monkeypatch.setitem(layer.OPTIONAL, "sglang-marlin", SimpleNamespace(is_installed=lambda: True))
    monkeypatch.setattr(tuner.sglang_runners, "load", lambda _, problem: problem)
    measure(layer, monkeypatch, tmp_path / "out.json", "mxfp4", "--tokens", "3")

    (cell,) = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert cell["weights"]["sglang-marlin"] == "mxfp4"
    assert "sglang-marlin" in cell["samples_us"].keys() - cell["plans"].keys() - cell["searched"].keys()


def test_layer__leaves_out_a_runner_that_does_not_compile_and_measures_the_others(layer, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(layer.OPTIONAL, "sglang-marlin", SimpleNamespace(is_installed=lambda: True))

    def load(*_):
        raise RuntimeError("ninja: build stopped")

    monkeypatch.setattr(tuner.sglang_runners, "load", load)
    measure(layer, monkeypatch, tmp_path / "out.json", "mxfp4", "--tokens", "3")

    assert "sglang-marlin is left out: RuntimeError: ninja: build stopped\n" in capsys.readouterr().out
    (cell,) = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert {"ours-slots", "sglang"} < set(cell["samples_us"])


@pytest.mark.parametrize("shape", ["fp8", "mxfp4"])
def test_warm_plans__hold_the_first_stage_of_every_side(layer, monkeypatch, shape):
    subjects = ["ours-slots", "sglang", *(["vllm"] if shape == "fp8" else [])]
    tasks = {(subject, json.dumps(plan)) for subject, _, _, plan in layer.warm_plans(shape, [1, 64], subjects, {})}
    seen = set()
    monkeypatch.setattr(tuner, "runner", lambda subject, plan: seen.add((subject, json.dumps(tuner.plan_to(plan)))))
    monkeypatch.setattr(tuner, "quick_us", lambda *_: 1.0)
    problem = build(replace(SMALL[shape], M=64))
    for subject in subjects:
        (own,) = tuner.read_weights(subject, [problem])
        tuner.find_plan(subject, [own], tuner.Budget(seconds=1e9, plans=6))

    assert len(seen) == 6 * len(subjects)
    assert seen <= tasks


def test_compile_one__keeps_one_layer_for_all_that_read_the_same_weights(layer, monkeypatch):
    monkeypatch.setattr(layer, "blank", lambda case: build(replace(case, M=1)))
    for subject, shape in [("ours-slots", "plain"), ("sglang", "plain"), ("sglang", "mxfp4"), ("ours-slots", "mxfp4")] * 2:
        layer.compile_one((subject, shape, 1, {}))

    assert [(case.quant, isinstance(held, LaidOut)) for case, held in layer._WORKER.items()] == [
        ("none", False),
        ("mxfp4", True),
    ]


def test_floor_us__counts_bytes_of_the_format_and_holds_products_against_its_matrix_units():
    wide, packed, coded = (build(replace(SMALL[name], M=4, H=128, I=128)) for name in ("plain", "mxfp4", "fp8"))

    assert expert_bytes(wide) == 2 * 3 * 128 * 128
    assert expert_bytes(packed) == 3 * 128 * 128 * (1 / 2 + 1 / 32)
    assert expert_bytes(coded) == 3 * 128 * 128 + 3 * 4
    bound = replace(LIMITS, bytes_per_s=1e30)
    assert floor_us([packed], bound) == pytest.approx(floor_us([wide], bound))
    assert floor_us([coded], bound) == pytest.approx(floor_us([wide], bound) / 2)
    assert floor_us([coded], replace(bound, fp8_flop_per_s=None)) == pytest.approx(floor_us([wide], bound))


def test_sixteen_bit_shapes__leave_out_quantised_ones():
    assert set(SHAPES) - set(SIXTEEN_BIT_SHAPES) == {"deepseek-v3-tp8-fp8", "gpt-oss-20b-mxfp4", "gpt-oss-120b-mxfp4"}


def test_drawing__of_layers_is_of_todays_results(tmp_path):
    root = FOLDER.parents[1]
    script = FOLDER / "picture.py"
    results = sorted(path for end in ("", ".xz") for path in (root / "benchmarks/h200/kernels").glob(f"*.json{end}"))
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, script, tmp_path / "picture.svg", *results], check=True, cwd=root, env=environment)

    committed = root / "docs" / "evidence" / "kernels-layers.svg"
    assert (tmp_path / "picture.svg").read_bytes() == committed.read_bytes(), f"draw it anew by {script}"


@pytest.mark.parametrize(("name", "cells"), [("all-reduce", 5), ("all-reduce-quarter", 4), ("all-reduce-eighth", 4)])
def test_sum_rows__documentation_states_those_of_the_committed_file(table, name, cells):
    rows = table.sum_rows(table.read_survey(FOLDER.parent / "h200" / "kernels" / "two-gpus" / f"{name}.json.xz")["cells"])
    page = (FOLDER.parents[1] / "docs" / "evidence" / "kernels.md").read_text(encoding="utf-8")

    assert len(rows) == len(table.TOLD) * cells
    assert "\n".join([table.SUMS_HEAD, "|---" * (len(table.SUMS) + 2) + "|", *rows, ""]) in page


def test_shape_rows__documentation_states_those_of_the_committed_files(table):
    folder = FOLDER.parent / "h200" / "kernels"
    results = [*folder.glob("*.json"), *folder.glob("*.json.xz")]
    cells = [cell for path in results for cell in table.read_survey(path).get("cells", ())]
    page = (FOLDER.parents[1] / "docs" / "evidence" / "kernels.md").read_text(encoding="utf-8")

    found = table.shape_rows(cells)
    assert {shape for shape, lines in found.items() if "\n".join(lines) not in page} == set()
    assert len(found) == 8
    beside = [path for peer in ("vllm", "flashinfer") for path in (folder / peer).iterdir()]
    cells += [cell for path in beside for cell in table.read_survey(path)["cells"]]
    assert "\n".join([*table.short_rows(cells), ""]) in page


@pytest.mark.parametrize(
    ("peer", "tokens"),
    [
        ("vllm", {
            "gpt-oss-20b.json.xz": ALL_TOKENS, "gpt-oss-20b-few.json.xz": [4, 16], "qwen3-30b.json.xz": ALL_TOKENS,
            "qwen3-235b-tp8.json.xz": ALL_TOKENS, "narrow.json.xz": ALL_TOKENS, "deepseek-v3-tp8.json.xz": ALL_TOKENS,
            "deepseek-v3-tp8-fp8.json.xz": [1, 16, 64, 256, 1024, 4096],
        }),
        ("flashinfer", {"gpt-oss-20b-mxfp4.json.xz": ALL_TOKENS}),
        ("routing", dict.fromkeys(("gpt-oss-20b.json.xz", "gpt-oss-20b-mxfp4.json.xz"), sorted(3 * ALL_TOKENS))),
    ],
)  # fmt: skip
def test_shape_rows__documentation_states_those_beside_a_peer(table, peer, tokens):
    folder = FOLDER.parent / "h200" / "kernels" / peer
    surveys = {path.name: table.read_survey(path)["cells"] for path in folder.glob("*.json.xz")}
    page = (FOLDER.parents[1] / "docs" / "evidence" / "kernels.md").read_text(encoding="utf-8")

    for cells in surveys.values():
        assert {shape for shape, lines in table.shape_rows(cells).items() if "\n".join(lines) not in page} == set()
    assert {name: sorted(cell["tokens"] for cell in cells) for name, cells in surveys.items()} == tokens
