"""`perfgate compare` as typed."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.cli.reading.compare import spread_lists
from perfgate.gate.baselines import save_baseline
from tests.fakes.sessions import make_baseline, make_scenario

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"
OFF = [str(RUNS / f"fusion_off_{number}.txt") for number in (1, 2, 3)]
ON = [str(RUNS / f"fusion_on_{number}.txt") for number in (1, 2, 3)]
DENSE = [str(RUNS / f"dense_{name}.txt") for name in ("rate20", "inf_1", "inf_2")]


def write_runs(folder, name, factors):
    """One JSONL file with a run for each factor of slowness."""
    path = folder / f"{name}.jsonl"
    lines = (
        {
            "backend": "sglang",
            "request_rate": float("inf"),
            "duration": 40 * factor,
            "completed": 400,
            "total_input_tokens": 400,
            "total_output_tokens": 4000,
            "output_throughput": 100 / factor,
            "mean_e2e_latency_ms": 900 * factor,
            "mean_itl_ms": 10 * factor,
            "p99_itl_ms": 15 * factor,
        }
        for factor in factors
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture
def base(tmp_path):
    return write_runs(tmp_path, "base", (1.0, 1.002, 0.998, 1.001))


@pytest.fixture
def slower(tmp_path):
    return write_runs(tmp_path, "slower", (1.10, 1.104, 1.098, 1.103))


@pytest.fixture
def same(tmp_path):
    return write_runs(tmp_path, "same", (1.0005, 1.0015, 0.9985, 1.0007))


def run(capsys, *args):
    code = main(["compare", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def refused(capsys, *args):
    """Bad input: exit code 2, one line on standard error, nothing on standard output."""
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert err.startswith("perfgate: ")
    assert err.count("\n") == 1
    return err


def test_command__founding_runs(capsys):
    code, out, _ = run(capsys, "--base", *OFF, "--candidate", *ON)

    assert code == 3
    assert out.startswith("INCONCLUSIVE: not enough data: 2 warm runs per arm, at least 3 are needed\n")
    assert f"cold: {OFF[0]} (base): 1.48 requests/s against 3.22" in out
    assert f"cold: {ON[0]} (candidate): 2.29 requests/s against 3.23" in out
    assert "more runs of each arm would settle it nine times in ten" in out
    assert "(Mean ITL needs the most)" in out
    assert "no stored noise was given" in out
    assert out.endswith(
        "  what to do: https://github.com/perfgate/sglang-perfgate/blob/main/docs/troubleshooting.md#inconclusive\n"
    )


def test_command__one_run_each_has_no_spread_to_plan_by(capsys):
    code, out, _ = run(capsys, OFF[0], ON[0])

    assert code == 3
    assert "base: 1 run compared" in out
    assert {line.split()[-1] for line in out.splitlines() if "INCONCLUSIVE" in line and line[0] in "OMP"} == {"n/a"}
    assert "more runs of each arm" not in out
    assert "spread of these runs" not in out


def test_command__one_result_folder_is_judged_by_another_command(capsys, tmp_path):
    (tmp_path / "session.json").write_text("{}")

    assert f"`perfgate check {tmp_path}` judges it" in refused(capsys, str(tmp_path))


def test_command__founding_dense_runs_are_different_work(capsys):
    err = refused(capsys, "--base", DENSE[0], "--candidate", DENSE[1], DENSE[2])

    assert "request_rate 20 in base, inf in candidate" in err


def test_command__founding_dense_model(capsys):
    code, out, err = run(capsys, "--base", DENSE[1], "--candidate", DENSE[2], "--model-config", str(RUNS / "dense_config.json"))

    assert (code, out) == (3, "")
    assert "dense model" in err
    for key in ("num_experts_per_tok", "router_top_k", "moe_top_k", "num_local_experts", "num_experts"):
        assert key in err


def test_command__mixture_of_experts_is_let_through(capsys):
    code, out, _ = run(capsys, "--base", *OFF, "--candidate", *ON, "--model-config", str(RUNS / "moe_config.json"))

    assert (code, out[:12]) == (3, "INCONCLUSIVE")


def test_command__regression(capsys, base, slower):
    code, out, _ = run(capsys, "--base", base, "--candidate", slower)

    assert code == 1
    assert re.match(r"REGRESSION: Output throughput -9\.2 % \(fails from -[12]\.\d %\)", out)


def test_command__pass(capsys, base, same):
    code, out, _ = run(capsys, "--base", base, "--candidate", same)

    assert code == 0
    assert out.startswith("PASS: a loss as large as the margin is excluded")
    assert "would settle it" not in out


def test_command__improved(capsys, base, slower):
    code, out, _ = run(capsys, "--base", slower, "--candidate", base)

    assert code == 0
    assert out.startswith("IMPROVED: Output throughput +10.1 %")


def test_command__wide_margin_for_one_metric(capsys, base, slower):
    code, _, _ = run(
        capsys,
        "--base",
        base,
        "--candidate",
        slower,
        "--metric",
        "mean_itl_ms",
        "--margin",
        "mean_itl_ms=25%",
        "--margin",
        "3%",
    )

    assert code == 0


def test_command__json(capsys, base, slower):
    code, out, _ = run(capsys, "--base", base, "--candidate", slower, "--format", "json")
    content = json.loads(out)
    (group,) = content["groups"]

    assert (code, content["outcome"], content["exit_code"]) == (1, "REGRESSION", 1)
    assert group["arms"]["base"]["kept"] == [f"{base}:{line}" for line in (1, 2, 3, 4)]
    assert {"metric", "change", "low", "high", "outcome", "margin", "fails_from"} <= group["judgements"][0].keys()


def test_command__json_names_cold_runs(capsys):
    _, out, _ = run(capsys, "--base", *OFF, "--candidate", *ON, "--format", "json")

    assert json.loads(out)["groups"][0]["arms"]["base"]["cold"] == [
        {"source": OFF[0], "metric": "request_per_s", "value": 1.48, "level": 3.22}
    ]


def test_command__markdown(capsys, base, slower):
    _, out, _ = run(capsys, "--base", base, "--candidate", slower, "--format", "markdown")

    assert out.startswith("**REGRESSION: Output throughput")
    assert "| metric | base | candidate |" in out
    assert "| Mean ITL | 10.00 |" in out


def test_command__same_answer_in_any_order(capsys):
    straight = run(capsys, "--base", *OFF, "--candidate", *ON)

    assert run(capsys, "--candidate", *ON[::-1], "--base", *OFF[::-1]) == straight


def test_command__broken_run_is_no_evidence(capsys, base, same, tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text(Path(same).read_text().splitlines()[0].replace('"completed": 400', '"completed": 400, "num_prompts": 500'))

    code, out, _ = run(capsys, "--base", base, "--candidate", str(path))

    assert code == 3
    assert out.startswith(f"INVALID: candidate {path}: 400 of 500 requests completed")


def test_command__missing_file(capsys, base):
    assert "no such file" in refused(capsys, "--base", base, "--candidate", "nowhere.jsonl")


def test_command__empty_file(capsys, base, tmp_path):
    path = tmp_path / "empty.jsonl"
    path.touch()

    assert "is empty" in refused(capsys, "--base", base, "--candidate", str(path))


def test_command__truncated_json(capsys, base, tmp_path):
    path = tmp_path / "cut.jsonl"
    path.write_text(Path(base).read_text()[:-30])

    assert "cut.jsonl:4: not valid JSON" in refused(capsys, "--base", base, "--candidate", str(path))


def test_command__directory(capsys, base, tmp_path):
    (tmp_path / "empty").mkdir()

    assert "holds no file" in refused(capsys, "--base", base, "--candidate", str(tmp_path / "empty"))


def test_command__negative_number(capsys, base, tmp_path):
    path = tmp_path / "negative.jsonl"
    path.write_text(Path(base).read_text().replace('"mean_itl_ms": 10', '"mean_itl_ms": -10', 1))

    assert "negative.jsonl:1: mean_itl_ms: -10 is negative" in refused(capsys, "--base", base, "--candidate", str(path))


def test_command__same_file_twice(capsys, base):
    assert "the same run as" in refused(capsys, "--base", base, "--candidate", base)


@pytest.mark.parametrize("args", [[], ["--base", OFF[0]], ["--candidate", OFF[0]]])
def test_command__no_files(capsys, args):
    assert "no file given" in refused(capsys, *args)


def test_command__unknown_metric(capsys):
    assert "--metric speed: no such metric" in refused(capsys, "--base", *OFF, "--candidate", *ON, "--metric", "speed")


@pytest.mark.parametrize("margin", ["fast", "0", "-3%", "nan", "inf", "1000%", "speed=3%", "mean_itl_ms=", "=0.05"])
def test_command__margin_that_is_none(capsys, margin):
    assert f"--margin {margin}" in refused(capsys, "--base", *OFF, "--candidate", *ON, "--margin", margin)


@pytest.mark.parametrize(("first", "second"), [("0.02", "0.5"), ("mean_itl_ms=2%", "mean_itl_ms=0.5"), ("0.02", "0.02")])
def test_command__two_margins_of_one_metric(capsys, first, second):
    error = refused(capsys, "--base", *OFF, "--candidate", *ON, "--margin", first, "--margin", second)

    assert f"--margin {second}: stands beside --margin {first} for the same metrics" in error


def test_command__missing_baseline(capsys):
    assert "nowhere.json" in refused(capsys, "--base", *OFF, "--candidate", *ON, "--baseline", "nowhere.json")


@pytest.mark.parametrize(("sessions", "is_advice"), [(12, False), (3, True)])
def test_command__stored_noise_of_starts(capsys, base, tmp_path, sessions, is_advice):
    path = tmp_path / "baseline.json"
    save_baseline(make_baseline(make_scenario(), sessions=sessions), path)
    candidate = write_runs(tmp_path, "candidate", (1.0135, 1.0145, 1.015))

    code, out, _ = run(
        capsys,
        "--base",
        base,
        "--candidate",
        candidate,
        "--baseline",
        str(path),
        "--metric",
        "output_tok_per_s",
        "--margin",
        "1.5%",
    )

    assert code == 3
    assert "more server starts of each arm would settle it" in out
    assert ("the error rates do not hold" in out) is is_advice
    assert "no stored variance was given" not in out


def test_command__baseline_without_aa_blocks(capsys, tmp_path):
    path = tmp_path / "baseline.json"
    baseline = make_baseline(make_scenario(), sessions=2)
    metrics = {
        name: replace(noise, starts=tuple(replace(start, is_aa=False) for start in noise.starts))
        for name, noise in baseline.metrics.items()
    }
    save_baseline(replace(baseline, metrics=metrics), path)

    assert "holds no A/A blocks" in refused(capsys, "--base", *OFF, "--candidate", *ON, "--baseline", str(path))


def test_spread_lists__only_the_two_lists():
    args = ["--base", "a", "b", "--format", "json", "--candidate", "c", "--metric", "m"]

    assert spread_lists(args) == ["--base", "a", "--base", "b", "--format", "json", "--candidate", "c", "--metric", "m"]
    assert spread_lists(["--base=a", "--candidate"]) == ["--base=a"]
