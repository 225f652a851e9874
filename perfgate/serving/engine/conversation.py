"""Plain HTTP to the servers of this machine: a client, and one question outside of any window."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urljoin

import httpx

from perfgate.errors import ServerError


def open_http(timeout_s: float) -> httpx.Client:
    """A client that no proxy stands before.

    By default each one reads the certificates of all authorities, which takes 35 ms of a core and is nothing to plain HTTP:
    three times between two windows, while the server waits.
    """
    return httpx.Client(timeout=timeout_s, trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


SHOWN = 200


class Asked(Protocol):
    """What a question needs of a server, be it one of the session or one that was running before."""

    log: Path

    @property
    def url(self) -> str:
        """The address that clients use."""
        ...

    def raise_if_dead(self, wait_s: float = 0.0) -> None:
        """Raise ServerError if the server has ended, or ends within `wait_s`."""

    def flush_cache(self) -> None:
        """Empty the prefix cache."""


def post(server: Asked, path: str, content: Mapping[str, Any], *, what: str, timeout_s: float) -> bytes:
    """Return the body of the server's answer, asked where its clients ask, unless `path` is a whole address.

    Raise ServerError that names `what` was asked when it dies, refuses or hangs.
    """
    try:
        with open_http(timeout_s) as client:
            answer = client.post(urljoin(server.url, path), json=content)
    except httpx.HTTPError as error:
        server.raise_if_dead()
        cause = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ServerError(f"server gave no answer to {what} ({cause}; log {server.log})") from None
    if answer.status_code != httpx.codes.OK:
        said = " ".join(answer.text.split())[:SHOWN]
        raise ServerError(f"server refused {what} with HTTP {answer.status_code}: {said} (log {server.log})")
    return answer.content
