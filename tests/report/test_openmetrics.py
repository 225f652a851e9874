"""Sessions as OpenMetrics text, read back by the library's own strict parser, and the dashboard that asks for them."""

import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from perfgate.check import Case, judge
from perfgate.cli import main
from perfgate.core import Role
from perfgate.errors import InputError
from perfgate.evidence import DriverProblem
from perfgate.metrics import METRICS
from perfgate.report.openmetrics import FAMILIES, ExportedSession, format_openmetrics
from perfgate.results.readings import READINGS
from tests.fakes.recorded import BESIDE, EQUAL
from tests.fakes.sessions import FACTS, make_baseline, make_scenario, make_session, write_folder

DASHBOARD = json.loads((Path(__file__).parents[2] / "docs" / "grafana" / "perfgate.json").read_text())
BEGUN = 1_767_225_600.0


def build_judged(*, name="unit-1", begun=BEGUN, worse=0.0, **changes):
    scenario = make_scenario()
    session = make_session(scenario, worse=worse)
    windows = [replace(window, telemetry={"sm_clock_mhz": 1980.0, "foreign_processes": 0.0}) for window in session.windows]
    session = replace(session, windows=tuple(windows), **changes)
    return ExportedSession(name=name, begun=begun, case=make_case(session, scenario, make_past()))


@cache
def make_past():
    """The noise of all these sessions: twenty more of them."""
    return make_baseline(make_scenario(), sessions=20)


def make_case(session, scenario, baseline):
    return Case(session=session, scenario=scenario, baseline=baseline, verdict=judge(session, scenario, baseline))


def read_back(*judged):
    families = list(text_string_to_metric_families(format_openmetrics(judged).decode()))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family.samples for family in families}


def test_format_openmetrics__windows_stand_where_they_ended():
    one = build_judged()
    samples = read_back(one)["perfgate_output_tok_per_s"]
    labels = {"scenario": "unit", "hardware": FACTS["hardware"], "arm": "base", "role": "measured"}
    measured = [sample for sample in samples if sample.labels == labels]
    expected = [window for window in one.case.session.windows if window.arm == "base" and window.role is Role.MEASURED]

    assert [sample.value for sample in measured] == [window.run.values["output_tok_per_s"] for window in expected]
    assert [float(sample.timestamp) for sample in measured] == [BEGUN + window.ended_s for window in expected]


def test_format_openmetrics__machine_and_verdict():
    found = read_back(build_judged(worse=0.3))
    outcomes = {sample.labels["outcome"]: sample.value for sample in found["perfgate_verdict"]}
    [change] = [sample for sample in found["perfgate_change_ratio"] if sample.labels["metric"] == "median_itl_ms"]

    assert outcomes.pop("REGRESSION") == 1
    assert set(outcomes.values()) == {0}
    assert 0.3 < change.value < 0.4
    assert {sample.value for sample in found["perfgate_machine_sm_clock_mhz"]} == {1980.0}
    assert found["perfgate_session_problems"][0].value == 0


def test_format_openmetrics__several_sessions_on_one_time_line():
    found = read_back(build_judged(begun=BEGUN + 86400), build_judged())
    times = [float(sample.timestamp) for sample in found["perfgate_blocks"]]

    assert times == [BEGUN, BEGUN + 86400]
    assert not any("session" in sample.labels for samples in found.values() for sample in samples)


@pytest.mark.parametrize("later_s", [0.0, 30.0])
def test_format_openmetrics__sessions_side_by_side_have_lines_of_their_own(later_s):
    """Two GPUs of one host; a third session, a day later, follows on the common line."""
    found = read_back(
        build_judged(name="aa"), build_judged(name="slow", worse=0.3, begun=BEGUN + later_s), build_judged(begun=BEGUN + 86400)
    )
    blocks = {sample.labels.get("session"): float(sample.timestamp) for sample in found["perfgate_blocks"]}
    verdicts = {sample.labels.get("session"): sample.labels["outcome"] for sample in found["perfgate_verdict"] if sample.value}
    counts = Counter(sample.labels.get("session") for sample in found["perfgate_output_tok_per_s"])

    assert blocks == {"aa": BEGUN, "slow": BEGUN + later_s, None: BEGUN + 86400}
    assert verdicts["slow"] == "REGRESSION" != verdicts["aa"]
    assert counts["aa"] == counts["slow"] == counts[None] > 0


def test_format_openmetrics__other_scenario_at_the_same_time_needs_no_name():
    one = build_judged(name="one")
    other = replace(one, name="other", case=replace(one.case, session=replace(one.case.session, scenario="another")))

    assert [sample.labels.keys() for sample in read_back(one, other)["perfgate_blocks"]] == [{"scenario", "hardware"}] * 2


@cache
def read_plain():
    """Two sessions, and what the parser reads back of them."""
    plain = [build_judged(name=one, worse=0.3) for one in ("aa", "bb")]
    return plain, read_back(*plain)


@pytest.mark.parametrize("name", ['a"b', "a\\b", 'a"} 1\nperfgate_verdict{outcome="PASS', "a\nb", "# EOF\n", "a\r\nb", "a{b}"])
def test_attack__a_name_that_writes_a_line_of_its_own(name):
    """A folder's name becomes a label: what the parser reads back is that name, and not one sample more."""
    plain, expected = read_plain()
    found = read_back(plain[0], replace(plain[1], name=name))

    assert {family: len(samples) for family, samples in found.items()} == {
        family: len(samples) for family, samples in expected.items()
    }
    assert {sample.labels.get("session") for samples in found.values() for sample in samples} == {"aa", name}


def test_format_openmetrics__one_session_given_twice():
    with pytest.raises(InputError, match="two sessions called unit-1 tell of the same moment; give each session once"):
        format_openmetrics([build_judged(), build_judged()])


def test_format_openmetrics__session_without_windows():
    scenario = make_scenario()
    session = replace(make_session(scenario), windows=(), fingerprints={}, problems=(DriverProblem(message="the server died"),))
    found = read_back(ExportedSession(name="unit-1", begun=BEGUN, case=make_case(session, scenario, None)))

    assert found["perfgate_session_problems"][0].value == 2
    assert found["perfgate_session_problems"][0].labels == {"scenario": "unit", "hardware": "unknown"}
    assert "perfgate_output_tok_per_s" not in found


def test_families__every_metric_and_reading_has_one():
    assert {f"perfgate_{name}" for name in METRICS} <= FAMILIES.keys()
    assert {f"perfgate_machine_{name}" for name in READINGS} <= FAMILIES.keys()


def list_queries():
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return panels + [variable["query"]["query"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]


@pytest.mark.parametrize("query", list_queries())
def test_dashboard__asks_for_what_is_exported(query):
    [(name, where)] = re.findall(r"(perfgate_\w+)(?:\{(.*?)\})?", query)
    labels = re.findall(r"(\w+)=", where)

    assert set(labels) <= set(FAMILIES[name].labels)


def test_dashboard__legends_name_labels_that_are_there():
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            name = re.search(r"perfgate_\w+", target["expr"])[0]
            labels = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])

            assert set(labels) <= set(FAMILIES[name].labels)
            # Where sessions ran side by side, two lines of one name would not be told apart.
            assert "session" in labels


def test_dashboard__panels_are_distinct_and_do_not_overlap():
    cells = [
        (place["x"] + dx, place["y"] + dy)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for dx in range(place["w"])
        for dy in range(place["h"])
    ]

    assert len(set(cells)) == len(cells)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_docs__name_only_what_is_exported():
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "export.md").read_text()

    assert set(re.findall(r"`(perfgate_\w+)`", text)) <= FAMILIES.keys()


def test_command__writes_openmetrics(tmp_path, capsys):
    session = make_session(make_scenario())
    first = write_folder(tmp_path / "one", session, at="2026-01-01T00:00:00Z")
    second = write_folder(tmp_path / "two", session, at="2026-01-02T00:00:00Z")
    target = tmp_path / "perfgate.om"

    code = main(["export", str(first), str(second), "--openmetrics", str(target)])

    assert code == 0
    assert capsys.readouterr().err == f"{target}: 2 sessions\n"
    assert target.read_text().endswith("# EOF\n")


def test_command__the_measured_sessions_of_one_host(tmp_path, capsys):
    """They began in the same second, each on a GPU of its own."""
    folders = [BESIDE, EQUAL]
    target = tmp_path / "perfgate.om"

    code = main(["export", *map(str, folders), "--openmetrics", str(target)])
    families = {family.name: family for family in text_string_to_metric_families(target.read_text())}

    assert code == 0, capsys.readouterr().err
    assert {sample.labels["session"] for sample in families["perfgate_blocks"].samples} == {path.name for path in folders}


def test_command__a_file_has_no_time(tmp_path, capsys):
    runs = Path(__file__).parents[1] / "fixtures" / "runs" / "fusion_off_1.txt"

    code = main(["export", str(runs), "--openmetrics", str(tmp_path / "perfgate.om")])

    assert code == 2
    assert "does not say when it ran" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
