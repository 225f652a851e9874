"""The verdict on MoE layers: from pytest-benchmark's files to an exit code."""

from __future__ import annotations

import random

import orjson
import pytest

from perfgate.cli import main
from perfgate.core import Outcome
from perfgate.errors import EvidenceError
from perfgate.readers.layer_timings import find_timings, read_timings
from perfgate.verdict.layers import LOOKS, judge_layers

FACTS = {"device": "NVIDIA H200", "torch": "2.11.0", "base": "sglang", "candidate": "triton"}
LAYERS = {"gpt-oss-20b M=1": 60.0, "gpt-oss-20b M=1024": 590.0, "gpt-oss-20b M=4096": 1600.0}


def draw_file(number, *, slower=0.0, only=None, control=0.0, noise=0.002, offset=0.001, facts=FACTS):
    """One process's file: `slower` for each layer, or for the one named `only`; `offset` is drawn for each process."""
    draw = random.Random(number)  # noqa: S311 - repeatable noise
    benchmarks = []
    for name, level in LAYERS.items():
        shape, _, tokens = name.partition(" M=")
        place = draw.gauss(0, offset)
        factor = 1 + (slower if only in {None, name} else 0.0)

        def sample(ratio, level=level):
            return [level * ratio * (1 + draw.gauss(0, noise)) for _ in range(30)]

        samples = {"base": sample(1.0), "again": sample(1 + control), "candidate": sample(factor * (1 + place))}
        extra = {"format": 1, "shape": shape, "tokens": int(tokens), "samples_us": samples, "floor_us": level / 2}
        benchmarks.append({"name": name, "extra_info": {"perfgate": extra}})
    return {
        "datetime": f"2026-11-21T10:0{number}:00",
        "machine_info": {"node": "x", "perfgate": facts},
        "benchmarks": benchmarks,
    }


def write_files(folder, files):
    place = folder / "Linux-CPython-3.11-64bit"
    place.mkdir(parents=True)
    for number, file in enumerate(files):
        (place / f"{number:04}_block.json").write_bytes(orjson.dumps(file))
    return folder


@pytest.fixture
def judged(tmp_path):
    """A verdict on `count` files drawn with some options."""

    def judge(count=4, **options):
        folder = write_files(tmp_path / "timings", [draw_file(number, **options) for number in range(count)])
        return judge_layers(read_timings(find_timings(folder)))

    return judge


@pytest.mark.parametrize(
    ("slower", "outcome"),
    [(0.0, Outcome.PASS), (0.05, Outcome.REGRESSION), (-0.05, Outcome.IMPROVED)],
)
def test_judge_layers__decides_at_the_first_look(judged, slower, outcome):
    verdict = judged(slower=slower)

    assert (verdict.outcome, verdict.blocks) == (outcome, LOOKS[0])
    assert all(abs(judgement.change - slower) < 0.005 for judgement in verdict.judgements)


def test_judge_layers__one_slow_layer_of_many_fails(judged):
    verdict = judged(slower=0.05, only="gpt-oss-20b M=1024")

    assert verdict.outcome is Outcome.REGRESSION
    assert [judgement.outcome for judgement in verdict.judgements] == [Outcome.PASS, Outcome.REGRESSION, Outcome.PASS]
    assert verdict.reasons[0].startswith("gpt-oss-20b M=1024 is slower by 5.")


def test_judge_layers__too_few_blocks_decide_nothing(judged):
    verdict = judged(count=3, slower=0.05)

    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reasons == (
        "undecided after 3 blocks: gpt-oss-20b M=1, gpt-oss-20b M=1024, gpt-oss-20b M=4096; 1 more to the next look",
    )


def test_judge_layers__processes_that_disagree_go_on_to_the_last_look(judged):
    verdict = judged(count=8, offset=0.05)

    assert (verdict.outcome, verdict.blocks) == (Outcome.INCONCLUSIVE, 8)
    assert verdict.reasons[0].endswith("that was the last look")


def test_judge_layers__a_control_that_moved_voids_the_evidence(judged):
    verdict = judged(control=0.015)

    assert verdict.outcome is Outcome.INVALID
    assert "gpt-oss-20b M=1: the base against itself moved by +1." in verdict.reasons[0]
    assert all(judgement.change is None for judgement in verdict.judgements)


def test_judge_layers__slower_is_never_better(tmp_path):
    order = (Outcome.IMPROVED, Outcome.PASS, Outcome.INCONCLUSIVE, Outcome.REGRESSION)
    outcomes = []
    for step in range(-3, 6):
        folder = write_files(tmp_path / str(step), [draw_file(number, slower=step / 100, noise=0.004) for number in range(8)])
        outcomes.append(order.index(judge_layers(read_timings(find_timings(folder))).outcome))

    assert outcomes == sorted(outcomes)
    assert {order[0], order[-1]} <= {order[index] for index in outcomes}


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (draw_file(3, facts=FACTS | {"torch": "2.12.0"}), "0003_block.json differs from 0000_block.json in torch"),
        (draw_file(0), "is a copy of another block"),
        (draw_file(3) | {"benchmarks": draw_file(3)["benchmarks"][:2]}, "do not hold the same layers (gpt-oss-20b M=4096)"),
    ],
)
def test_judge_layers__refuses_blocks_that_do_not_belong_together(tmp_path, last, problem):
    folder = write_files(tmp_path / "t", [*(draw_file(number) for number in range(3)), last])

    verdict = judge_layers(read_timings(find_timings(folder)))

    assert verdict.outcome is Outcome.INVALID
    assert problem in " ".join(verdict.reasons)


def test_read_timings__orders_blocks_by_the_clock_not_by_name(tmp_path):
    folder = write_files(tmp_path / "t", [draw_file(number) for number in (2, 0, 1)])

    assert [block.source for block in read_timings(find_timings(folder))] == [f"000{index}_block.json" for index in (1, 2, 0)]


def break_file(**changes):
    file = draw_file(0)
    file["benchmarks"][0]["extra_info"]["perfgate"] |= changes
    return orjson.dumps(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "no pytest-benchmark file"),
        (b'{"benchmarks": [], "machine_info": {}}', "machine_info.perfgate"),
        (orjson.dumps(draw_file(0) | {"benchmarks": [{"name": "other"}]}), "make it with"),
        (break_file(tokens=0), "tokens: "),
        (break_file(format=2), "format: "),
        (break_file(samples_us={"base": [1.0] * 9, "again": [1.0] * 9, "candidate": [1.0] * 9}), "samples_us.base"),
        (break_file(samples_us={"base": [1.0] * 10, "again": [0.0] * 10, "candidate": [1.0] * 10}), "samples_us.again.0"),
        (break_file(samples_us={"base": [1.0] * 10, "again": [1.0] * 10, "candidate": [1.0] * 11}), "different lengths"),
    ],
)
def test_read_timings__names_what_cannot_be_used(tmp_path, content, message):
    (tmp_path / "block.json").write_bytes(content)

    with pytest.raises(EvidenceError, match=r"block\.json: .*" + message.replace(".", r"\.")):
        read_timings(find_timings(tmp_path))


@pytest.mark.parametrize(("slower", "code", "style"), [(0.0, 0, "text"), (0.05, 1, "markdown"), (0.0, 0, "json")])
def test_check__judges_layers_with_the_exit_codes_of_serving(tmp_path, capsys, slower, code, style):
    folder = write_files(tmp_path / "t", [draw_file(number, slower=slower) for number in range(4)])

    assert main(["check", str(folder), "--format", style]) == code

    shown = capsys.readouterr().out
    assert {"text": "PASS: MoE layers", "markdown": "### REGRESSION: MoE", "json": '"outcome": "PASS"'}[style] in shown
    assert "triton against sglang" in shown


def test_check__invalid_layers_exit_with_three(tmp_path, capsys):
    folder = write_files(tmp_path / "t", [draw_file(number, control=0.05) for number in range(4)])

    assert main(["check", str(folder)]) == 3
    assert capsys.readouterr().out.startswith("INVALID: ")


def test_check__layers_take_no_baseline(tmp_path, capsys):
    folder = write_files(tmp_path / "t", [draw_file(0)])

    assert main(["check", str(folder), "--baselines", str(tmp_path)]) == 2
    assert "--baselines, --no-base: layers are judged by the control" in capsys.readouterr().err
