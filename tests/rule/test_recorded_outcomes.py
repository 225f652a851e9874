"""The recorded H200 sessions say today what their page says of them."""

import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.h200.serving.launches import main as launches
from benchmarks.h200.serving.outcomes import HEADLINE, PAGE, RESULTS, build_section
from perfgate.cli import main
from perfgate.scenario.schema import read_scenario_text

ROW = re.compile(r"^\| `([^`]+)` \| ([A-Z]+) \| (\d) \|", flags=re.MULTILINE)
# Page and shipped scenario: what the page's table of differences tells of, by section and key.
TOLD = {
    "closed-c16": {"server.args", "server.ready_timeout_s", "load.timeout_s", "warmup.steady_ratio"},
    "saturation": {
        "budget_minutes",
        "server.args",
        "server.ready_timeout_s",
        "load.num_prompts",
        "load.timeout_s",
        "gates.mean_ttft_ms",
    },
}
NAMES = {"name", "title", "model.path", "model.quantization", "model.weights"}


@pytest.fixture(autouse=True)
def nobodys_state(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))


def test_readme__tells_what_today_s_rule_says_of_each_folder():
    _, headline, section = PAGE.read_text().partition(HEADLINE)

    assert headline + section == build_section(RESULTS), "run `python -m benchmarks.h200.serving.outcomes`"
    assert {name for name, _, _ in ROW.findall(section)} == {path.parent.name for path in RESULTS.glob("*/session.json")}


@pytest.mark.parametrize("name", ["closed-aa", "closed-gpu-3", "closed-foreign", "closed-plug-in"])
def test_check__ends_as_the_readme_says(name, capsys):
    told = {folder: (outcome, int(code)) for folder, outcome, code in ROW.findall(PAGE.read_text())}
    code = main(["check", str(RESULTS / name)])

    assert (capsys.readouterr().out.split()[0].rstrip(":"), code) == told[name]


@pytest.mark.parametrize("name", list(TOLD))
def test_readme__tells_how_the_scenario_differs_from_the_shipped_one(name):
    here = flatten(tomllib.loads((Path(PAGE).with_name(f"{name}.toml")).read_text()))
    shipped = flatten(tomllib.loads(read_scenario_text(f"gpt-oss-20b-{name}")[0]))

    assert {key for key in here.keys() | shipped.keys() if here.get(key) != shipped.get(key)} == TOLD[name] | NAMES


def flatten(table):
    """The keys of a scenario, those of its sections with their name before them."""
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    flat = {key: value for key, value in table.items() if key not in tables}
    return flat | {f"{section}.{key}": value for section, found in tables.items() for key, value in found.items()}


def test_launches__what_the_page_on_compile_caches_says_of_two_profiles(capsys):
    launches(RESULTS / "closed-gpu-10-long", "clamp_mul_sigmoid", 24)
    launches(RESULTS / "closed-fused-sum-profiled", "clamp_mul_sigmoid", 24)

    decoding = re.findall(r"^\| start-0\d \| \d+ \| (\d+) \| 768 \| ([\d.]+) \|$", capsys.readouterr().out, flags=re.MULTILINE)
    assert decoding == [("256", "33.7"), ("128", "44.7"), ("256", "33.5"), ("256", "33.1")]
