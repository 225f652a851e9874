"""GitHub's REST interface, as it behaves on a bad day: rate limits, broken gateways, long lists."""

from __future__ import annotations

import functools
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import orjson

from perfgate.errors import GitHubConflictError, GitHubError, GitHubNotFoundError, GitHubUnavailableError, InputError

API_URL = "https://api.github.com"
PER_PAGE = 100
MAX_PAGES = 100
TRIES = 5
# GitHub asks to wait at least a minute where it limits without saying for how long.
SECONDARY_LIMIT_S = 60.0
# The limit of requests an hour starts anew within an hour; the jobs that report may take longer than that.
MAX_WAIT_S = 3700.0
TIMEOUT_S = 30.0
_SERVER_ERRORS = {500, 502, 503, 504}
_LIMITS = {403, 429}
# The last two for an address to go on at, which httpx reads even where it follows none.
_BROKEN_OFF = (httpx.RequestError, httpx.InvalidURL, UnicodeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ApiCall:
    """One request, as it will be sent once or several times."""

    method: str
    path: str
    params: Mapping[str, str | int] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    is_repeatable: bool = True
    ends_at_redirect: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHub:
    """A token and where to use it. `sleep` is called with seconds; all waits for one request stay below MAX_WAIT_S."""

    token: str = field(repr=False)
    api_url: str = API_URL
    sleep: Callable[[float], None] = field(default_factory=lambda: time.sleep)

    def get(self, path: str, **params: str | int) -> Any:
        """Read one object."""
        found = _read_json(self._request(_ApiCall(method="GET", path=path, params=params)), path)
        if not isinstance(found, dict):
            raise GitHubUnavailableError(f"{path}: the answer is no object; run the job again")
        return found

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, is_repeatable: bool = True) -> Any:
        """Change something; return GitHub's answer, None for an empty one.

        A request that is not repeatable is not sent again after an error, which may have come after the change: it
        raises GitHubUnavailableError, and the caller looks first.
        """
        answer = self._request(_ApiCall(method=method, path=path, body=body, is_repeatable=is_repeatable))
        return _read_json(answer, path) if answer.content else None

    def list_all(self, path: str, **params: str | int) -> Iterator[Any]:
        """Yield every element of a list, over all its pages."""
        url, query = path, {**params, "per_page": PER_PAGE}
        for _ in range(MAX_PAGES):
            answer = self._request(_ApiCall(method="GET", path=url, params=query))
            yield from _read_elements(_read_json(answer, path), path)
            following = answer.links.get("next", {}).get("url")
            if not following:
                return
            url, query = self._strip(following), {}
        raise GitHubError(f"{path}: more than {MAX_PAGES} pages; that is no list to read through")

    def download(self, path: str, most: int) -> bytes:
        """Read a file behind a redirect, at most `most` bytes. The token is not shown to the store that GitHub points to."""
        answer = self._request(_ApiCall(method="GET", path=path, ends_at_redirect=True))
        url = answer.headers.get("location")
        if not url:
            return answer.content[: most + 1]
        content = b""
        try:
            with httpx.stream("GET", url, timeout=TIMEOUT_S, verify=_trust_authorities()) as stream:
                if not stream.is_success:
                    raise GitHubUnavailableError(f"{path}: the store answered with status {stream.status_code}")
                for chunk in stream.iter_bytes():
                    content += chunk
                    if len(content) > most:
                        raise GitHubError(f"{path}: more than {most} bytes; refused")
        except _BROKEN_OFF:
            raise GitHubUnavailableError(f"{path}: the store broke off; run the job again") from None
        return content

    def _strip(self, url: str) -> str:
        """A link to the next page must lead to the same interface: the token goes nowhere else."""
        if not url.startswith(f"{self.api_url}/"):
            raise GitHubError(f"the next page of a list lies outside {self.api_url}; refused")
        return url.removeprefix(self.api_url)

    def _request(self, call: _ApiCall) -> httpx.Response:
        waited_s = 0.0
        for attempt in range(1, TRIES + 1):
            answer = self._try(call)
            pause_s = self._read_pause(answer, attempt)
            if pause_s is None and answer is not None:
                return answer if call.ends_at_redirect and answer.is_redirect else _check(answer, call)
            if (answer is None or answer.status_code in _SERVER_ERRORS) and not call.is_repeatable:
                raise GitHubUnavailableError(f"{call}: {_name(answer)}; it may have been carried out")
            waited_s += pause_s or 0.0
            if attempt == TRIES or waited_s > MAX_WAIT_S:
                break
            self.sleep(pause_s or 0.0)
        raise GitHubUnavailableError(f"{call}: {_name(answer)} after {attempt} tries; run the job again later")

    def _try(self, call: _ApiCall) -> httpx.Response | None:
        """Send once; None when no answer came."""
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "perfgate",
        }
        url, params = f"{self.api_url}{call.path}", call.params or None
        options: dict[str, Any] = {"params": params, "json": call.body, "headers": headers, "timeout": TIMEOUT_S}
        try:
            return httpx.request(call.method, url, verify=_trust_authorities(), **options)
        except _BROKEN_OFF:
            return None

    def _read_pause(self, answer: httpx.Response | None, attempt: int) -> float | None:
        """How long to wait before the request is sent again; None for an answer that is final."""
        backoff_s = float(2**attempt)
        if answer is None or answer.status_code in _SERVER_ERRORS:
            return backoff_s
        if answer.status_code not in _LIMITS:
            return None
        if (pause := _read_retry_after(answer)) is not None:
            return pause
        if answer.headers.get("x-ratelimit-remaining") == "0":
            reset, now = answer.headers.get("x-ratelimit-reset", ""), _read_date(answer.headers.get("date", ""))
            return max(float(reset) - now.timestamp(), 1.0) if reset.isdecimal() and now else SECONDARY_LIMIT_S
        is_limit = answer.status_code == httpx.codes.TOO_MANY_REQUESTS or "secondary rate limit" in answer.text.lower()
        return SECONDARY_LIMIT_S if is_limit else None


@functools.cache
def _trust_authorities() -> ssl.SSLContext:
    """The authorities whose certificates are trusted, read once: it takes 20 ms of a core, more than a request does."""
    return httpx.create_ssl_context()


def _read_retry_after(answer: httpx.Response) -> float | None:
    """The pause that an answer asks for, in seconds or until a date; None where it asks for none."""
    told = answer.headers.get("retry-after", "")
    if told.isdecimal():
        return float(told)
    until, now = _read_date(told), _read_date(answer.headers.get("date", ""))
    return max((until - now).total_seconds(), 1.0) if until and now else None


def _read_date(text: str) -> datetime | None:
    """A date of an answer's headers. The server's own date says what is now, for this machine's clock may be hours off."""
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _name(answer: httpx.Response | None) -> str:
    return "no answer" if answer is None else f"status {answer.status_code}"


def _check(answer: httpx.Response, call: _ApiCall) -> httpx.Response:
    """Return a successful answer; raise for any other, with GitHub's message."""
    if answer.is_success:
        return answer
    message = f"{call}: status {answer.status_code}: {_read_message(answer)}"
    if answer.status_code in {404, 410}:
        raise GitHubNotFoundError(message)
    if answer.status_code == httpx.codes.CONFLICT:
        raise GitHubConflictError(message)
    if answer.status_code in {401, 403}:
        needed = answer.headers.get("x-accepted-github-permissions", "")
        raise GitHubError(f"{message}; the token lacks a permission{f' ({needed})' if needed else ''}")
    raise GitHubError(message)


def _read_json(answer: httpx.Response, path: str) -> Any:
    """Python's own reader recurses without an end, and takes half a character, which no output takes."""
    try:
        return orjson.loads(answer.content)
    except ValueError:
        # A request that changes something may have been carried out.
        message = f"{path}: the answer is no JSON; something between this job and GitHub answers for it"
        raise GitHubUnavailableError(message) from None


def _read_elements(page: Any, path: str) -> list[Any]:
    """A page is a list, or an object whose only list is the page."""
    if isinstance(page, dict):
        page = next((value for value in page.values() if isinstance(value, list)), None)
    if not isinstance(page, list) or not all(isinstance(element, dict) for element in page):
        raise GitHubError(f"{path}: the answer is no list of objects; run the job again")
    return page


def _read_message(answer: httpx.Response) -> str:
    """GitHub's own words as one short line."""
    try:
        data = orjson.loads(answer.content)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        return "no message"
    listed = data.get("errors")
    errors = [error for error in listed if isinstance(error, dict)] if isinstance(listed, list) else []
    parts = [data.get("message"), *(error.get("message") or error.get("code") for error in errors)]
    return " ".join(" ".join(str(part) for part in parts if part).split())[:300] or "no message"


def find_server(environment: Mapping[str, str] = os.environ) -> str:
    """The address of GitHub's pages, or of those of the Enterprise server that this job runs for."""
    return environment.get("GITHUB_SERVER_URL", "https://github.com")


def connect(environment: Mapping[str, str] = os.environ) -> GitHub:
    """Take the token and the address from the job's environment; a token on a command line could be read by any process."""
    token, api_url = environment.get("GITHUB_TOKEN", "").strip(), environment.get("GITHUB_API_URL", API_URL)
    if not token:
        raise InputError("GITHUB_TOKEN is not set; give the job's token in the environment of this step")
    if not re.fullmatch(r"[!-~]+", token):
        raise InputError("GITHUB_TOKEN holds a character that no token has; copy it again")
    if not re.fullmatch(r"https?://[A-Za-z0-9._:-]+(/[!-~]*)?", api_url):
        raise InputError(f"GITHUB_API_URL: {api_url[:80]!r} is no address; give one such as {API_URL}")
    return GitHub(token=token, api_url=api_url.rstrip("/"))
