"""A session asks in its first block which experts its tokens choose, and is void where that is no mixture of experts."""

import json
import re

import pytest

from perfgate.check import judge
from perfgate.cli import main
from perfgate.core import Arm, Outcome
from perfgate.report.expert_use import describe_use
from perfgate.results.expert_use import INDEX_FILE
from perfgate.results.records import SESSION_FILE
from perfgate.results.results import load_results
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import measure
from perfgate.stats.expert_use import Unknown
from tests.fakes.requests import KeptProgress, build_request, list_problems, use_fake_engine


@pytest.fixture(autouse=True)
def fake_engine(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)


def run(folder, base=None, candidate="mixture", looks=(1,)):
    base = candidate if base is None else base
    arms = {arm: ArmSpec(env={"FAKE_ROUTING": router}) for arm, router in zip(Arm, (base, candidate), strict=True)}
    measure(build_request(folder, looks=looks, fields={"arms": arms}), KeptProgress())
    return load_results(folder)


def test_measure__mixture_of_experts_is_told(tmp_path, capsys):
    folder = tmp_path / "out"
    _, session = run(folder, looks=(2,))
    base, candidate = session.expert_use[Arm.BASE], session.expert_use[Arm.CANDIDATE]
    main(["export", str(folder), "--expert-use", str(tmp_path / "use.jsonl"), "--openmetrics", str(tmp_path / "use.prom")])
    lines = [json.loads(line) for line in (tmp_path / "use.jsonl").read_text().splitlines()]
    main(["check", str(folder)])
    main(["report", str(folder), "--html", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()

    assert list_problems(session) == ()
    assert [layer.layer for layer in base.layers] == [0, 1, 2]
    assert {layer.differs_from_base_ratio for layer in candidate.layers} == {0.0}
    assert {layer.differs_from_base_ratio for layer in base.layers} == {None}
    # Once an arm: the second block is not asked again.
    assert len((folder / INDEX_FILE).read_text().splitlines()) == 2
    assert [line["arm"] for line in lines] == ["base", "candidate"]
    assert lines[0]["layers"][0]["distinct_a_step"] == base.layers[0].distinct_a_step
    assert 'perfgate_experts_distinct{arm="base"' in (tmp_path / "use.prom").read_text()
    assert "experts   a decode step of 16 tokens touches" in capsys.readouterr().out
    assert re.search(r"; the busiest of 2 expert ranks has 1\.\d\d to 1\.\d\d times its share$", describe_use(session, 2))
    assert "rank" not in describe_use(session)
    assert "All 3 layers that route, candidate" in page
    assert "Expert use of the base" in page


@pytest.mark.parametrize(
    ("router", "words"), [("collapsed", "touches 2.0 of 8 experts"), ("cycling", "touches 2.0 of 8 experts")]
)
def test_measure__router_in_name_only_costs_no_window_that_counts(tmp_path, router, words):
    scenario, session = run(tmp_path / "out", router, router)
    verdict = judge(session, scenario, None)

    assert verdict.outcome is Outcome.INVALID
    assert verdict.reasons[0].startswith("this model cannot measure a MoE kernel: as the base serves it, a decode step of 16")
    assert words in verdict.reasons[0]
    assert {window.role for window in session.windows} == {"warmup"}


def test_measure__collapsed_candidate_is_named(tmp_path):
    _, session = run(tmp_path / "out", "mixture", "collapsed")

    assert list_problems(session)[0].startswith("this model cannot measure a MoE kernel: as the candidate serves it")


@pytest.mark.parametrize("router", ["shifted", "wide"])
def test_measure__arms_that_route_differently_are_void(tmp_path, router):
    scenario, session = run(tmp_path / "out", "mixture", router)

    assert list_problems(session)[0].startswith("the arms route differently: ")
    assert judge(session, scenario, None).outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("router", "unknown"), [("", Unknown.NO_RECORDER), ("padded", Unknown.INCOMPLETE), ("torn", Unknown.INCOMPLETE)]
)
def test_measure__what_cannot_be_known_is_said(tmp_path, router, unknown, capsys):
    _, session = run(tmp_path / "out", router, router)
    main(["check", str(tmp_path / "out")])

    assert list_problems(session) == ()
    assert {use.unknown for use in session.expert_use.values()} == {unknown}
    assert "expert use unknown: " in capsys.readouterr().out


def test_load_results__folder_from_before_it_was_measured(tmp_path):
    run(tmp_path / "out", "", "")
    (tmp_path / "out" / INDEX_FILE).unlink()
    record = json.loads((tmp_path / "out" / SESSION_FILE).read_text())
    (tmp_path / "out" / SESSION_FILE).write_text(json.dumps({**record, "checks": ["equivalence"]}))
    _, session = load_results(tmp_path / "out")

    assert list_problems(session) == ()
    assert {use.unknown for use in session.expert_use.values()} == {Unknown.NOT_MEASURED}


def test_load_results__lost_expert_use_is_missed(tmp_path):
    """Where the engine cannot be asked, too: the index says why, and without it nothing is known."""
    run(tmp_path / "out", "", "")
    (tmp_path / "out" / INDEX_FILE).unlink()
    _, session = load_results(tmp_path / "out")

    [problem] = list_problems(session)
    assert problem.startswith("base and candidate: expert use was measured, and expert_use.jsonl does not tell it")


def test_load_results__changed_choices_void_the_session(tmp_path):
    run(tmp_path / "out")
    [first, *_] = sorted((tmp_path / "out" / "expert_use").iterdir())
    first.write_bytes(first.read_bytes() + b" ")
    _, session = load_results(tmp_path / "out")

    assert any("expert_use/start-01.json.gz does not match its digest" in problem for problem in list_problems(session))


def test_load_results__damaged_index_is_bad_input(tmp_path, capsys):
    run(tmp_path / "out", "", "")
    (tmp_path / "out" / INDEX_FILE).write_text('{"arm": "base", "block": 0, "start": 1}\n')

    assert main(["check", str(tmp_path / "out")]) == 2
    assert "expert_use.jsonl:1: block: " in capsys.readouterr().err
