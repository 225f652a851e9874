"""Plain HTTP to the servers of this machine."""

from __future__ import annotations

import ssl

import httpx


def open_http(timeout_s: float) -> httpx.Client:
    """A client that no proxy stands before.

    By default each one reads the certificates of all authorities, which takes 35 ms of a core and is nothing to plain HTTP:
    three times between two windows, while the server waits.
    """
    return httpx.Client(timeout=timeout_s, trust_env=False, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
