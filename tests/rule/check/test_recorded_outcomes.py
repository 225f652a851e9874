"""The recorded H200 sessions say today what their page says of them."""

import re

import pytest

from benchmarks.h200.serving.launches import main as launches
from benchmarks.h200.serving.outcomes import HEADLINE, PAGE, RESULTS, build_section
from perfgate.cli import main
from tests.fakes.recorded import OTHERS, bring_back

ROW = re.compile(r"^\| `([^`]+)` \| ([A-Z]+) \| (\d) \|", flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def empty_state(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))


def test_readme__tells_what_today_s_rule_says_of_each_folder():
    _, headline, section = PAGE.read_text().partition(HEADLINE)

    assert headline + section == build_section(RESULTS), "run `python -m benchmarks.h200.serving.outcomes`"
    assert {name for name, _, _ in ROW.findall(section)} == {path.parent.name for path in RESULTS.glob("*/session.json")}


@pytest.mark.parametrize("name", ["closed-foreign", "closed-hostload"])
def test_check__ends_as_the_readme_says(name, capsys):
    told = {folder: (outcome, int(code)) for folder, outcome, code in ROW.findall(PAGE.read_text())}
    code = main(["check", str(RESULTS / name)])

    assert (capsys.readouterr().out.split()[0].rstrip(":"), code) == told[name]


def test_launches__what_the_page_on_compile_caches_says_of_two_profiles(capsys):
    for name in ("closed-gpu-10-long", "closed-fused-sum-profiled"):
        launches(bring_back(OTHERS) / name, "clamp_mul_sigmoid", 24)

    decoding = re.findall(r"^\| start-0\d \| \d+ \| (\d+) \| 768 \| ([\d.]+) \|$", capsys.readouterr().out, flags=re.MULTILINE)
    assert decoding == [("256", "33.7"), ("128", "44.7"), ("256", "33.5"), ("256", "33.1")]
