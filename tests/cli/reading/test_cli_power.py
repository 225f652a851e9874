"""`perfgate power` from the command line: tables, JSON, pictures and every bad input."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from perfgate.cli import main
from perfgate.gate.baselines import save_baseline
from perfgate.scenario.catalog import load_scenario
from perfgate.verdict.baselines import compute_checksum
from tests.fakes.recorded import BASELINE, BESIDE, EQUAL, ROOT, SLOWER
from tests.rule.test_power import make_baseline, make_noise


@pytest.fixture
def baseline(tmp_path):
    path = tmp_path / "baselines" / "testbed" / "cpu-moe.json"
    save_baseline(make_baseline(), path)
    return path


def run(capsys, *argv):
    code = main(["power", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_command__prints_both_tables(baseline, capsys):
    code, out, _ = run(capsys, "--baseline", baseline, "--effect", "0.3")

    assert code == 0
    assert "cpu-moe on testbed" in out
    assert "Smallest loss found with 90 % power" in out
    assert "(Mean TTFT)" in out
    assert "Cheapest design that finds a loss of 30.0 %" in out
    assert "all gated metrics" in out


def test_command__says_when_no_design_is_enough(baseline, capsys):
    code, out, _ = run(capsys, "--baseline", baseline, "--effect", "0.03")

    assert code == 0
    assert "none of those tried" in out


def test_command__finds_the_baseline_of_a_scenario(baseline, capsys):
    _, by_file, _ = run(capsys, "--baseline", baseline, "--effect", "0.3")

    code, by_name, _ = run(capsys, "--scenario", "cpu-moe", "--baselines", baseline.parent.parent, "--effect", "0.3")

    assert code == 0
    assert by_name == by_file


def test_command__json_is_the_same_each_time(baseline, capsys):
    _, first, _ = run(capsys, "--baseline", baseline, "--format", "json")
    _, second, _ = run(capsys, "--baseline", baseline, "--format", "json")

    assert first == second
    assert json.loads(first)["scenario"] == "cpu-moe"


def test_command__longer_starts_cost_more(baseline, capsys):
    minutes = []
    for start_s in ("10", "100"):
        _, out, _ = run(capsys, "--baseline", baseline, "--start-s", start_s, "--format", "json")
        minutes.append(json.loads(out)["metrics"][0]["reaches"][0]["minutes"])

    assert minutes[1] - minutes[0] == pytest.approx(2 * 2 * 90 / 60)


def test_command__draws_the_same_picture_each_time(baseline, tmp_path, capsys):
    pictures = [tmp_path / f"{name}.svg" for name in "ab"]
    for picture in pictures:
        assert run(capsys, "--baseline", baseline, "--picture", picture)[0] == 0

    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.svg", "baselines"]
    text = pictures[0].read_text()
    # A solid line for each gate, a dotted one for what only informs, a sign for each look.
    assert text.count('class="curve ') == 2 * 4
    assert text.count(" dotted") == 2 * 1 + 4 + 1
    assert "cpu-moe: what the gate can see (3 windows per start)" in text


def bad(capsys, *argv):
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    return err.removeprefix("perfgate: ")


def test_command__nothing_given(capsys):
    assert "give --baseline FILE" in bad(capsys)


def test_command__missing_baseline_file(tmp_path, capsys):
    assert "nowhere.json" in bad(capsys, "--baseline", tmp_path / "nowhere.json")


def test_command__no_baseline_of_the_scenario(tmp_path, capsys):
    assert "no baseline of cpu-moe" in bad(capsys, "--scenario", "cpu-moe", "--baselines", tmp_path)


def test_command__several_machines_ask_for_a_choice(baseline, capsys):
    other = baseline.parent.parent / "other" / "cpu-moe.json"
    other.parent.mkdir()
    other.write_bytes(baseline.read_bytes())

    message = bad(capsys, "--scenario", "cpu-moe", "--baselines", baseline.parent.parent)

    assert "2 baselines of cpu-moe" in message
    assert str(other) in message


def test_command__scenario_that_the_baseline_did_not_measure(baseline, tmp_path, capsys):
    from perfgate.scenario.catalog import SCENARIO_DIR

    changed = tmp_path / "mine.toml"
    text = (SCENARIO_DIR / "cpu-moe.toml").read_text()
    changed.write_text(re.sub(r"num_prompts = \d+", "num_prompts = 7", text))

    assert "is not what the baseline measured" in bad(capsys, "--baseline", baseline, "--scenario", changed)


@pytest.mark.parametrize("effect", ["0", "-0.1", "nan", "much"])
def test_command__effect_that_is_none(baseline, capsys, effect):
    assert "--effect" in bad(capsys, "--baseline", baseline, "--effect", effect)


@pytest.mark.parametrize("option", ["--start-s", "--window-s"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf"])
def test_command__seconds_that_are_none(baseline, capsys, option, value):
    assert option in bad(capsys, "--baseline", baseline, option, value)


@pytest.mark.parametrize("name", ["curve.gif", "curve.png", "curve"])
def test_command__picture_of_another_kind(baseline, tmp_path, capsys, name):
    message = bad(capsys, "--baseline", baseline, "--picture", tmp_path / name)

    assert "must end in .svg" in message
    assert message.count("\n") == 1
    assert not list(tmp_path.glob("curve*"))


def test_command__picture_in_a_missing_folder(baseline, tmp_path, capsys):
    assert "cannot be written" in bad(capsys, "--baseline", baseline, "--picture", tmp_path / "none" / "curve.svg")


def test_command__a_baseline_of_a_scenario_that_does_not_ship(capsys, tmp_path):
    content = json.loads(BASELINE.read_text()) | {"scenario": "mine"}
    stored, scenario = tmp_path / "mine.json", tmp_path / "mine.toml"
    stored.write_text(json.dumps(content | {"checksum": compute_checksum(content)}))
    shipped = (EQUAL / "scenario.toml").read_text()
    scenario.write_text(shipped.replace("gpt-oss-20b-shape-mxfp4-mixed-c16", "mine"))

    code, out, err = run(capsys, "--baseline", stored)

    assert (code, out) == (2, "")
    assert "mine, which does not ship with perfgate; give its file with --scenario PATH" in err
    assert run(capsys, "--baseline", stored, "--scenario", scenario)[0] == 0


STORED = [str(BESIDE), str(EQUAL)]


def test_command__designs_from_stored_sessions(capsys):
    code, out, _ = run(capsys, "--design", "--effect", "0.03", *(part for folder in STORED for part in ("--from", folder)))

    assert code == 0
    assert "a block takes 116 s, as 2 sessions took: 64 s beside windows, 2 x (2 + 5) windows of 3.7 s" in out
    assert "5 windows per start leave 0.20 places of drift" in out
    assert out.count("cheapest") >= 1
    assert out.count("the scenario today") == 2
    assert "Taken for granted" in out


def test_command__a_block_over_two_gpus_takes_as_long_and_twice_the_gpu_minutes(tmp_path, capsys):
    told = []
    for name in ("gpt-oss-20b-shape-mxfp4-closed-c16", "gpt-oss-20b-shape-mxfp4-tp2-closed-c16"):
        scenario, path = load_scenario(name), tmp_path / "testbed" / f"{name}.json"
        noise = {metric: make_noise(metric, seed=seed) for seed, metric in enumerate(scenario.gates)}
        stored = replace(make_baseline(), scenario=name, workload_hash=scenario.workload_hash, metrics=noise)
        save_baseline(stored, path)
        _, design, _ = run(capsys, "--design", "--baseline", path, "--effect", "0.03")
        _, curves, _ = run(capsys, "--baseline", path)
        told.append((re.search("a block takes .*", design)[0], float(re.search(r"2 blocks, (.*?) GPU-min ", curves)[1])))

    assert told[0][0].startswith("a block takes 180 s")
    assert told[1] == (told[0][0], 2 * told[0][1])


def test_command__designs_of_a_baseline_name_metrics_that_cannot_fail(baseline, capsys):
    code, out, _ = run(capsys, "--design", "--baseline", baseline, "--effect", "0.03")

    assert code == 0
    assert "such a loss is below half its margin" in out
    assert "as --start-s, --window-s and --warmups say" in out


def test_command__designs_as_json(baseline, capsys):
    code, out, _ = run(capsys, "--design", "--baseline", baseline, "--effect", "0.3", "--format", "json")

    content = json.loads(out)
    assert code == 0
    assert content["effect"] == 0.3
    assert {choice["metric"] for choice in content["choices"]} == {"output_tok_per_s", "median_itl_ms", "mean_e2e_ms"}


def test_command__stored_sessions_take_the_place_of_a_baseline(baseline, capsys):
    code, _, err = run(capsys, "--design", "--baseline", baseline, "--from", STORED[0])

    assert code == 2
    assert "--from: takes the place of --baseline" in err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--from", str(SLOWER)),
            "its arms differ, so it holds no noise; leave it out",
        ),
        (("--from", STORED[0], "--picture", "x.svg"), "--picture: draws what each look finds"),
        (("--from", f"{ROOT}/benchmarks/h200"), "session.json"),
    ],
)
def test_command__designs_of_what_does_not_fit(options, told, capsys):
    code, out, err = run(capsys, "--design", *options)

    assert code == 2
    assert not out
    assert told in err
    assert len(err.strip().splitlines()) == 1
