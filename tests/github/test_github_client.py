"""The GitHub client against a server that fails as the real one does."""

from __future__ import annotations

import re

import httpx
import pytest

from perfgate.errors import GitHubError, GitHubNotFoundError, GitHubUnavailableError, InputError
from perfgate.github.client import GitHub, connect

PULL = "/repos/o/r/pulls/7"
AT_1000_S = "Thu, 01 Jan 1970 00:16:40 GMT"
# GitHub's own date says what is now: the clock of the job may be wrong by hours.
SPENT = {"Date": AT_1000_S, "x-ratelimit-remaining": "0"}


@pytest.fixture
def server(fake_github):
    pulls = {"7": {"number": 7, "head": {"sha": "a" * 40}}}
    fake_github.set(faults=[], log=[], store_saw=[], comments=[], pulls=pulls)
    return fake_github


@pytest.fixture
def waits():
    return []


@pytest.fixture
def github(server, waits):
    return GitHub(token="t0ken", api_url=server.url, sleep=waits.append)


@pytest.mark.parametrize(
    ("fault", "waited"),
    [
        ({"status": 502}, [2.0]),
        ({"status": 500, "times": 2}, [2.0, 4.0]),
        ({"status": 403, "headers": {"Retry-After": "7"}}, [7.0]),
        ({"status": 429, "headers": {"Retry-After": "3"}}, [3.0]),
        ({"status": 429}, [60.0]),
        ({"status": 403, "body": {"message": "You have exceeded a secondary rate limit."}}, [60.0]),
        ({"status": 403, "headers": {**SPENT, "x-ratelimit-reset": "1030"}}, [30.0]),
        ({"status": 403, "headers": {**SPENT, "x-ratelimit-reset": "900"}}, [1.0]),
        ({"status": 403, "headers": {**SPENT, "x-ratelimit-reset": "soon"}}, [60.0]),
        ({"status": 403, "headers": {**SPENT, "x-ratelimit-reset": "1030", "Date": "noon"}}, [60.0]),
        ({"status": 403, "headers": {**SPENT, "Retry-After": "Thu, 01 Jan 1970 00:17:10 GMT"}}, [30.0]),
        ({"status": 403, "headers": {"Date": AT_1000_S, "Retry-After": "Thu, 01 Jan 1970 00:17:10 -0000"}}, [30.0]),
        ({"status": 429, "headers": {"Date": AT_1000_S, "Retry-After": "Thu, 01 Jan 1970 00:00:01 GMT"}}, [1.0]),
        ({"status": 429, "headers": {"Retry-After": "tomorrow"}}, [60.0]),
        ({"drop": True}, [2.0]),
    ],
)
def test_get__waits_as_github_asks_and_goes_on(server, github, waits, fault, waited):
    server.set(faults=[fault])

    assert github.get(PULL)["number"] == 7
    assert waits == waited


def test_get__a_bad_hour_ends_with_one_error(server, github, waits):
    server.set(faults=[{"status": 503, "times": 99}])

    with pytest.raises(GitHubUnavailableError, match="status 503 after 5 tries; run the job again later"):
        github.get(PULL)
    assert waits == [2.0, 4.0, 8.0, 16.0]


def test_get__waits_no_longer_than_the_limit_of_an_hour_can_last(server, github, waits):
    server.set(faults=[{"status": 429, "headers": {"Retry-After": "7200"}, "times": 99}])

    with pytest.raises(GitHubUnavailableError, match="after 1 tries"):
        github.get(PULL)
    assert waits == []


def test_get__a_limit_until_a_date_that_is_none(server, github, waits):
    headers = {"Retry-After": "Fri, 01 Jan 2027 00:00:00 +99999999999999"}
    server.set(faults=[{"status": 429, "headers": headers}])

    assert github.get(PULL)["number"] == 7
    assert waits == [60.0]


def test_get__a_refusal_nested_too_deeply(server, github):
    server.set(faults=[{"status": 422, "raw": "[" * 100_000}])

    with pytest.raises(GitHubError, match="status 422: no message"):
        github.get(PULL)


def test_get__a_missing_permission_is_no_rate_limit(server, github, waits):
    answer = {"message": "Resource not accessible by integration"}
    server.set(faults=[{"status": 403, "body": answer, "headers": {"x-accepted-github-permissions": "pull_requests=write"}}])

    with pytest.raises(
        GitHubError, match=r"not accessible by integration; the token lacks a permission \(pull_requests=write\)"
    ):
        github.get(PULL)
    assert waits == []


def test_get__what_is_not_there(github):
    with pytest.raises(GitHubNotFoundError, match="GET /repos/o/r/pulls/8: status 404"):
        github.get("/repos/o/r/pulls/8")


def test_get__a_wrong_token_is_not_repeated_in_the_message(server, waits):
    github = GitHub(token="s3cret-of-a-user", api_url=server.url, sleep=waits.append)

    with pytest.raises(GitHubError, match="status 401: Bad credentials") as caught:
        github.get(PULL)
    assert "s3cret" not in str(caught.value) + repr(github)


def test_get__a_gateways_page_instead_of_json(server, github):
    server.set(faults=[{"status": 400, "body": "<html>"}])

    with pytest.raises(GitHubError, match="status 400"):
        github.get(PULL)


@pytest.mark.parametrize(
    "raw",
    ["<html>welcome to the hotel</html>", "[" * 100_000, '{"a": NaN}', '{"a": "\\ud800"}'],
    ids=["page", "deep", "nan", "half"],
)
def test_get__an_answer_that_is_no_json(server, github, raw):
    server.set(faults=[{"status": 200, "raw": raw}])

    with pytest.raises(GitHubError, match="the answer is no JSON"):
        github.get(PULL)


@pytest.mark.parametrize("found", [None, [], "text", 3])
def test_get__an_answer_that_is_no_object(server, github, found):
    server.set(faults=[{"status": 200, "body": found}])

    with pytest.raises(GitHubUnavailableError, match="pulls/7: the answer is no object; run the job again"):
        github.get(PULL)


def test_get__an_answer_that_cannot_be_unpacked(server, github, waits):
    server.set(faults=[{"status": 200, "raw": "no gzip", "headers": {"Content-Encoding": "gzip"}}])

    assert github.get(PULL)["number"] == 7
    assert waits == [2.0]


@pytest.mark.parametrize("errors", [None, 3, "text", [None, {"message": None, "code": "odd"}]])
def test_get__a_refusal_whose_errors_are_no_list(server, github, errors):
    server.set(faults=[{"status": 422, "body": {"message": "Validation Failed", "errors": errors}}])

    with pytest.raises(GitHubError, match="status 422: Validation Failed"):
        github.get(PULL)


@pytest.mark.parametrize("page", ["text", {"message": "odd"}, None, 3, [None], [{"id": 1}, "text"]])
def test_list_all__an_answer_that_is_no_list(server, github, page):
    server.set(faults=[{"status": 200, "body": page}])

    with pytest.raises(GitHubError, match="the answer is no list"):
        list(github.list_all("/repos/o/r/issues/7/comments"))


def test_download__follows_to_the_store_without_the_token(server, github):
    server.set(files={"/store/5": "a stream"}, artifacts={"5": "/store/5"})

    assert github.download("/repos/o/r/actions/artifacts/5/zip", 100) == b"a stream"
    assert server.get()["store_saw"] == [None]


def test_download__stops_at_its_limit(server, github):
    server.set(files={"/store/5": "x" * 5000}, artifacts={"5": "/store/5"})

    with pytest.raises(GitHubError, match="more than 100 bytes; refused"):
        github.download("/repos/o/r/actions/artifacts/5/zip", 100)


@pytest.mark.parametrize("address", ["https://[::1", "https://xn--zz_zz..$$/", "file:///etc/hostname", "/store/5"])
def test_download__a_store_at_no_address(server, github, address):
    server.set(faults=[{"status": 302, "headers": {"Location": address}, "times": 9}])

    with pytest.raises(GitHubUnavailableError, match=r"the store broke off|no answer after 5 tries"):
        github.download("/repos/o/r/actions/artifacts/5/zip", 100)


def test_download__a_file_that_expired(server, github):
    server.set(files={}, artifacts={"5": "/store/5"})

    with pytest.raises(GitHubUnavailableError, match="the store answered with status 404"):
        github.download("/repos/o/r/actions/artifacts/5/zip", 100)


def test_send__a_deed_that_may_have_been_done_is_not_done_twice(server, github):
    server.set(faults=[{"method": "POST", "status": 502, "after": True}])

    with pytest.raises(GitHubUnavailableError, match="may have been carried out"):
        github.send("POST", "/repos/o/r/issues/7/comments", {"body": "once"}, is_repeatable=False)
    assert [comment["body"] for comment in server.get()["comments"]] == ["once"]


def test_send__a_rate_limit_did_nothing_so_the_deed_is_sent_again(server, github, waits):
    server.set(faults=[{"method": "POST", "status": 403, "headers": {"Retry-After": "1"}}])

    github.send("POST", "/repos/o/r/issues/7/comments", {"body": "once"}, is_repeatable=False)

    assert waits == [1.0]
    assert [comment["body"] for comment in server.get()["comments"]] == ["once"]


def test_send__what_github_says_is_wrong(github):
    with pytest.raises(GitHubError, match="status 422: Validation Failed body is too long"):
        github.send("POST", "/repos/o/r/issues/7/comments", {"body": "x" * 65537})


def test_list_all__reads_every_page(server, github):
    server.set(comments=[{"id": number, "issue": "7", "body": ""} for number in range(250)])

    assert [comment["id"] for comment in github.list_all("/repos/o/r/issues/7/comments")] == list(range(250))
    assert len(server.get()["log"]) == 3


def test_list_all__takes_the_token_nowhere_else(server, github):
    headers = {"Link": '<http://evil.example/x>; rel="next"'}
    server.set(faults=[{"status": 200, "body": [], "headers": headers}])

    with pytest.raises(GitHubError, match="next page of a list lies outside"):
        list(github.list_all("/repos/o/r/issues/7/comments"))


def test_list_all__a_list_without_end(server, github):
    headers = {"Link": f'<{server.url}/again>; rel="next"'}
    server.set(faults=[{"status": 200, "body": [], "headers": headers, "times": 999}])

    with pytest.raises(GitHubError, match="more than 100 pages"):
        list(github.list_all("/repos/o/r/issues/7/comments"))


def test_client__follows_no_redirect(server, github):
    server.set(faults=[{"status": 302, "headers": {"Location": "http://evil.example/"}}])

    with pytest.raises(GitHubError, match="status 302"):
        github.get(PULL)


def test_client__a_server_that_is_not_there(waits):
    github = GitHub(token="t", api_url="http://127.0.0.1:9", sleep=waits.append)

    with pytest.raises(GitHubUnavailableError, match="no answer after 5 tries"):
        github.get(PULL)


def test_connect__needs_a_token():
    with pytest.raises(InputError, match="GITHUB_TOKEN is not set"):
        connect({})

    assert (
        connect({"GITHUB_TOKEN": "t", "GITHUB_API_URL": "https://ghe.example/api/v3/"}).api_url == "https://ghe.example/api/v3"
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"GITHUB_TOKEN": " \n"}, "GITHUB_TOKEN is not set"),
        ({"GITHUB_TOKEN": "t\u00f6ken"}, "GITHUB_TOKEN holds a character"),
        ({"GITHUB_TOKEN": "a\r\nX-Other: 1"}, "GITHUB_TOKEN holds a character"),
        ({"GITHUB_API_URL": ""}, "GITHUB_API_URL: '' is no address"),
        ({"GITHUB_API_URL": "api.github.com"}, "GITHUB_API_URL: 'api.github.com' is no address"),
        ({"GITHUB_API_URL": "http://[bad"}, "is no address; give one such as https://api.github.com"),
    ],
)
def test_connect__what_can_be_no_token_or_address(changes, told):
    with pytest.raises(InputError, match=re.escape(told)):
        connect({"GITHUB_TOKEN": "t", **changes})


def test_connect__a_token_of_a_file_with_a_line_end():
    assert connect({"GITHUB_TOKEN": "t0ken\n"}).token == "t0ken"


def test_fake__refuses_without_the_token(server):
    assert httpx.get(f"{server.url}{PULL}").status_code == 401
