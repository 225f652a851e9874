"""The one issue of nights that found the main branch slower: opened once, updated, closed, and never two."""

from __future__ import annotations

import pytest

from perfgate.errors import GitHubError, InputError
from perfgate.github.client import GitHub
from perfgate.github.comment.target import CommentTarget
from perfgate.github.night.umbrella import MARK, TITLE, Night, NightFinding, keep_issue, read_findings

SHA, NEXT = "a" * 40, "b" * 40
TARGET = CommentTarget(repository="o/r", pull_request=0, settle_s=0.0)
SLOWER = "output_tok_per_s is 5.2 % worse than the stored level"


@pytest.fixture
def server(fake_github):
    fake_github.set(faults=[], log=[], issues=[], limit=None, rights={"issues": "write"})
    yield fake_github
    fake_github.set(rights=None)


def keep(server, *findings, run=1, sha=SHA):
    night = Night(at=f"2026-11-{run:02}T02:17:00Z", head_sha=sha, run_id=run, findings=findings)
    return keep_issue(GitHub(token="t0ken", api_url=server.url, sleep=lambda _: None), TARGET, night)


def find(hardware="h20", slower=SLOWER, problem=""):
    return NightFinding(hardware=hardware, scenario="closed", slower=slower, problem=problem)


FINE, LOST = find(slower=""), find(slower="", problem="no result was handed over")


def read_open(server):
    return [issue for issue in server.get()["issues"] if issue["state"] == "open"]


def test_keep_issue__is_opened_once_and_updated(server):
    assert keep(server, find(), find("h100", slower="")) == f"1 slower: {read_open(server)[0]['html_url']}"
    keep(server, find(slower="mean_itl_ms is 9.0 % worse than the stored level"), find("h100"), run=2, sha=NEXT)

    (issue,) = server.get()["issues"]
    assert issue["title"] == TITLE
    assert (
        "| h20 | closed | mean_itl_ms is 9.0 % worse than the stored level | aaaaaaaaaaaa, 2026-11-01T02:17:00Z | 2 |"
        in (issue["body"])
    )
    assert f"| h100 | closed | {SLOWER} | bbbbbbbbbbbb, 2026-11-02T02:17:00Z | 1 |" in issue["body"]
    assert "[last night](https://github.com/o/r/actions/runs/2)" in issue["body"]


def test_keep_issue__is_closed_when_all_of_it_is_gone(server):
    keep(server, find(), find("h100"))
    keep(server, FINE, find("h100"), run=2)
    assert len(read_open(server)) == 1
    assert "| h20 |" not in read_open(server)[0]["body"]

    assert keep(server, FINE, find("h100", slower=""), run=3).startswith("closed, as nothing is slower any more")
    assert read_open(server) == []
    assert keep(server, FINE, run=4) == "nothing became slower, and no issue is open"
    keep(server, find(), run=5)
    assert [issue["state"] for issue in server.get()["issues"]] == ["closed", "open"]


def test_keep_issue__a_night_that_could_not_measure_says_nothing(server):
    keep(server, find())
    keep(server, LOST, run=2)
    assert "; not measured last night | aaaaaaaaaaaa, 2026-11-01T02:17:00Z | 1 |" in read_open(server)[0]["body"]

    keep(server, find("h100", slower=""), run=3)
    assert read_open(server) == []


def test_keep_issue__an_older_night_that_is_run_again_changes_nothing(server):
    """Without this, who may run workflows again could close what a later night found."""
    keep(server, find(), run=2)
    before = server.get()["issues"]

    assert keep(server, FINE, run=1) == "a later night, run 2, has written meanwhile; nothing was changed"
    assert server.get()["issues"] == before


def test_keep_issue__a_night_that_is_started_again_counts_once(server):
    keep(server, find())
    keep(server, find())

    assert read_open(server)[0]["body"].count("| 1 |") == 1


@pytest.mark.parametrize("after", [False, True])
def test_keep_issue__a_gateway_that_broke_opens_no_second(server, after):
    server.set(faults=[{"method": "POST", "path": "/issues$", "status": 502, "after": after}])

    keep(server, find())
    assert len(server.get()["issues"]) == 1


def test_keep_issue__two_that_were_opened_at_once_become_one(server):
    keep(server, find())
    (first,) = server.get()["issues"]
    server.set(issues=[first, {**first, "number": first["number"] + 1}])

    keep(server, find(), run=2)
    assert [issue["number"] for issue in read_open(server)] == [first["number"]]


@pytest.mark.parametrize(
    "change",
    [
        {"user": {"login": "mallory", "type": "User"}},
        {"body": "something else"},
        {"pull_request": {"url": "x"}},
    ],
)
def test_attack__a_planted_issue_of_the_night(server, change):
    """Only the bot keeps it, and a pull request is none."""
    keep(server, find())
    (first,) = server.get()["issues"]
    server.set(issues=[{**first, **change}])

    keep(server, FINE, run=2)
    assert server.get()["issues"][0]["state"] == "open"


def test_keep_issue__a_record_that_was_edited_begins_anew(server):
    keep(server, find())
    (first,) = server.get()["issues"]
    server.set(issues=[{**first, "body": MARK + "{} -->\nedited"}])

    keep(server, find(), run=2, sha=NEXT)
    assert "| bbbbbbbbbbbb, 2026-11-02T02:17:00Z | 1 |" in read_open(server)[0]["body"]


def test_keep_issue__a_token_that_may_not(server):
    server.set(rights={"issues": "read"})

    with pytest.raises(GitHubError, match="the token lacks a permission"):
        keep(server, find())


@pytest.mark.parametrize("text", ["", "[]", '{"jobs": [{"hardware": "../x", "scenario": "a"}]}', '{"jobs": [], "more": 1}'])
def test_read_findings__what_learn_did_not_write(tmp_path, text):
    path = tmp_path / "lessons.json"
    path.write_text(text)

    with pytest.raises(InputError, match="give what `perfgate github learn"):
        read_findings(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_findings(tmp_path / "absent.json")


def test_keep_issue__one_that_stands_on_two_pages(server):
    """A list that changes while it is read names an issue twice; closed as the second, the only one would be gone."""
    keep(server, find())
    (issue,) = read_open(server)
    server.set(faults=[{"method": "GET", "path": "/issues$", "status": 200, "body": [issue, issue]}])

    assert keep(server, find(), run=2) == f"1 slower: {issue['html_url']}"
    assert len(read_open(server)) == 1
