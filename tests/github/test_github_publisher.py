"""One comment a pull request, whatever GitHub and other writers do meanwhile."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfgate.errors import GitHubError, StaleError
from perfgate.github.client import GitHub
from perfgate.github.comment.publisher import upsert
from perfgate.github.comment.sections import MARK, build_section, parse, render
from perfgate.github.comment.states import State
from perfgate.github.comment.target import CommentTarget
from perfgate.github.handoff.subject import HandoffSubject

HEAD = "a" * 40
BOT = {"login": "github-actions[bot]", "type": "Bot"}
TARGET = CommentTarget(repository="o/r", pull_request=7, settle_s=0.0)


@pytest.fixture
def server(fake_github):
    fake_github.set(faults=[], log=[], comments=[], statuses=[], delay_s=0.0, pulls={"7": {"number": 7, "head": {"sha": HEAD}}})
    return fake_github


@pytest.fixture
def github(server):
    return GitHub(token="t0ken", api_url=server.url, sleep=lambda _: None)


def make_section(hardware="h200", *, state=State.PASS, run=1, head=HEAD, body="All well."):
    subject = HandoffSubject(repository="o/r", pull_request=7, head_sha=head, run_id=run, run_attempt=1, hardware=hardware)
    return build_section(subject, state, "2026-11-21T10:00:00Z", body=body)


def make_comment(number, body, user=BOT):
    return {"id": number, "issue": "7", "body": body, "user": user, "html_url": f"https://github.example/{number}"}


def read_sections(server):
    (comment,) = server.get()["comments"]
    return {name: section.entry.state.value for name, section in parse(comment["body"]).items()}


def test_upsert__each_hardware_has_its_section(server, github):
    upsert(github, TARGET, [make_section("h20", run=1), make_section("h100", run=2, state=State.REGRESSION)])
    upsert(github, TARGET, [make_section("h20", run=3, state=State.IMPROVED)])

    assert read_sections(server) == {"h20": "improvement", "h100": "regression"}


def test_upsert__a_later_run_that_writes_meanwhile(server, github, monkeypatch):
    """What stood at the first look gives way, what another writer put there since does not."""
    later = render({"h200": make_section(run=9)}, "x")
    monkeypatch.setattr("perfgate.github.comment.publisher.render", lambda *_: later)

    with pytest.raises(StaleError):
        upsert(github, TARGET, [make_section(run=4)])
    assert read_sections(server) == {"h200": "pass"}


def test_upsert__finds_its_comment_behind_250_others(server, github):
    own = make_comment(600, render({"h20": make_section("h20")}, TARGET.runs_url))
    server.set(comments=[make_comment(number, "hello", {"login": "x", "type": "User"}) for number in range(250)] + [own])

    upsert(github, TARGET, [make_section()])

    assert len(server.get()["comments"]) == 251
    assert server.paths("PATCH") == ["/repos/o/r/issues/comments/600"]


@pytest.mark.parametrize(
    "planted",
    [
        make_comment(1, MARK + "\nnot the bot", {"login": "mallory", "type": "User"}),
        make_comment(1, MARK + "\nits name only", {"login": "github-actions[bot]", "type": "User"}),
        make_comment(1, MARK + "\nanother bot", {"login": "mallory[bot]", "type": "Bot"}),
        make_comment(1, "quoted:\n" + MARK),
        make_comment(1, MARK, None),
    ],
)
def test_attack__a_planted_comment(server, github, planted):
    server.set(comments=[planted])

    upsert(github, TARGET, [make_section()])

    kept, ours = server.get()["comments"]
    assert kept == planted
    assert parse(ours["body"]).keys() == {"h200"}


def test_upsert__a_comment_that_was_deleted_comes_back(server, github):
    upsert(github, TARGET, [make_section("h20")])
    server.set(faults=[{"method": "PATCH", "status": 404, "times": 1}])

    upsert(github, TARGET, [make_section()])

    assert read_sections(server) == {"h20": "pass", "h200": "pass"}


def test_upsert__a_conflict_is_another_writer(server, github):
    upsert(github, TARGET, [make_section("h20")])
    server.set(faults=[{"method": "PATCH", "status": 409, "body": {"message": "Conflict"}, "times": 2}])

    upsert(github, TARGET, [make_section()])

    assert read_sections(server) == {"h20": "pass", "h200": "pass"}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"status": 422, "body": {"message": "Validation Failed", "errors": [{"message": "too odd"}]}}, "too odd"),
        ({"status": 403, "body": {"message": "Unable to create comment because issue is locked."}}, "issue is locked"),
        ({"status": 500, "times": 99}, "after 5 tries"),
    ],
)
def test_upsert__a_no_that_is_final(server, github, fault, told):
    """What no look again can change is told at once, in GitHub's words, and only once."""
    upsert(github, TARGET, [make_section("h20")])
    server.set(faults=[{"method": "GET" if "times" in fault else "PATCH", "path": "comments", **fault}], log=[])

    with pytest.raises(GitHubError, match=told):
        upsert(github, TARGET, [make_section()])
    assert len(server.paths("PATCH")) <= 1


@pytest.mark.parametrize("status", [403, 429])
def test_upsert__a_limit_on_the_write_itself(server, status):
    """GitHub's limit on what makes notifications: the write waits as it was told, and there is one comment."""
    waits = []
    server.set(faults=[{"method": "POST", "path": "comments", "status": status, "headers": {"Retry-After": "61"}}])

    upsert(GitHub(token="t0ken", api_url=server.url, sleep=waits.append), TARGET, [make_section()])

    assert read_sections(server) == {"h200": "pass"}
    assert waits[0] == 61.0


@pytest.mark.parametrize("length", [59_000, 60_000, 65_000, 65_535, 65_536, 65_537, 1_000_000])
def test_upsert__every_length_fits(server, github, length):
    """The fake counts as GitHub does: 65,536 characters, one more is refused."""
    upsert(github, TARGET, [make_section(body="x " * (length // 2) + "\n")])
    upsert(github, TARGET, [make_section("h20", run=2, body="\N{HOURGLASS}\n" * (length // 2))])

    assert read_sections(server) == {"h200": "pass", "h20": "pass"}


def test_upsert__a_comment_that_was_edited_by_hand_is_mended(server, github):
    server.set(comments=[make_comment(5, f"{MARK}\ntidied up by hand")])

    upsert(github, TARGET, [make_section()])

    assert read_sections(server) == {"h200": "pass"}


def test_upsert__a_gateway_that_breaks_after_the_deed(server, github):
    """The comment exists although the answer was 502: a second one must not appear."""
    server.set(faults=[{"method": "POST", "path": "comments", "status": 502, "after": True}])

    upsert(github, TARGET, [make_section()])

    assert read_sections(server) == {"h200": "pass"}
    assert len(server.paths("POST")) == 1


def test_upsert__a_gateway_that_breaks_before_the_deed(server, github):
    server.set(faults=[{"method": "POST", "path": "comments", "status": 502}])

    upsert(github, TARGET, [make_section()])

    assert read_sections(server) == {"h200": "pass"}


def test_upsert__two_comments_of_our_own_become_one(server, github):
    both = [
        make_comment(9, render({"h20": make_section("h20")}, "x")),
        make_comment(4, render({"h100": make_section("h100")}, "x")),
    ]
    server.set(comments=both)

    upsert(github, TARGET, [make_section()])

    assert read_sections(server) == {"h20": "pass", "h100": "pass", "h200": "pass"}
    assert server.get()["comments"][0]["id"] == 4


def test_upsert__a_comment_that_stands_on_two_pages(server, github):
    """A list that changes while it is read names one twice; deleted as the second, the only one would be gone."""
    upsert(github, TARGET, [make_section("h20")])
    (comment,) = server.get()["comments"]

    upsert(github, TARGET, [make_section("h100")], (comment, comment))

    assert read_sections(server) == {"h20": "pass", "h100": "pass"}
    assert server.get()["comments"][0]["id"] == comment["id"]
    assert server.paths("DELETE") == []


def test_upsert__a_comment_too_long_for_github_is_cut_before(server, github):
    upsert(github, TARGET, [make_section(body="word " * 20_000)])

    assert read_sections(server) == {"h200": "pass"}


def test_upsert__a_writer_that_always_overwrites_is_told(server, github):
    """Another writer edits the comment after every write of ours: the job says so instead of claiming success."""
    server.set(faults=[{"method": "PATCH", "status": 200, "times": 99}], comments=[make_comment(5, MARK)])

    with pytest.raises(GitHubError, match="did not keep its section after 6 writes"):
        upsert(github, TARGET, [make_section()])


WRITER = """
import sys
from tests.github.test_github_publisher import make_section
from perfgate.github.client import GitHub
from perfgate.github.comment.publisher import upsert
from perfgate.github.comment.target import CommentTarget
target = CommentTarget(repository="o/r", pull_request=7, settle_s=0.3)
upsert(GitHub(token="t0ken", api_url=sys.argv[1]), target, [make_section(sys.argv[2])])
"""


def test_upsert__writers_at_once_lose_nothing(server):
    """Three processes, a server that takes a tenth of a second a request: all read before any writes."""
    server.set(delay_s=0.05)

    writers = [subprocess.Popen([sys.executable, "-c", WRITER, server.url, name]) for name in ("h20", "h100", "h200")]
    codes = [writer.wait(timeout=300) for writer in writers]

    assert codes == [0, 0, 0]
    assert read_sections(server) == {"h20": "pass", "h100": "pass", "h200": "pass"}


def test_upsert__waits_between_writes(server):
    waits = []
    github = GitHub(token="t0ken", api_url=server.url, sleep=waits.append)

    upsert(github, CommentTarget(repository="o/r", pull_request=7, settle_s=2.0), [make_section()])

    assert waits == [2.0]
