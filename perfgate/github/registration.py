"""Register a runner for one job: from the app's key to a configuration that is good once and names its labels itself."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from perfgate.errors import GitHubError, InputError
from perfgate.github.client import GitHub
from perfgate.machine.tools import Tool
from perfgate.runner.settings import Registration
from perfgate.storage.schema import find

# GitHub accepts at most ten minutes, and clocks differ.
TOKEN_LIFE_S = 540
CLOCK_SKEW_S = 60
MAX_RUNS = 10
"""Of each state, newest first, so that a registration costs few requests of the app's 5,000 an hour."""
_OPENSSL = Tool(timeout_s=30.0, hint="install it: the app's token is signed with it")


def register(app: Registration, name: str, labels: Sequence[str]) -> str:
    """Return a just-in-time configuration for one job of a new runner: a secret, to be handed on through a file.

    Raise GitHubError with what GitHub says: 422 without a runner group, 403 or 404 for a scope that the app may not use.
    """
    github = connect_app(app)
    body = {"name": name, "runner_group_id": app.group, "labels": list(labels), "work_folder": "_work"}
    answer: Any = github.send("POST", f"/{app.scope}/actions/runners/generate-jitconfig", body, is_repeatable=False)
    config = answer.get("encoded_jit_config") if isinstance(answer, dict) else None
    if not isinstance(config, str) or not config:
        raise GitHubError("the answer to the registration holds no configuration; is this GitHub Enterprise Server too old?")
    return config


def list_waiting(app: Registration, repositories: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """What each job that waits for a runner asks for, in labels. Raise GitHubError where GitHub does not say."""
    github = connect_app(app)
    waiting = []
    for repository in repositories:
        for status in ("queued", "in_progress"):
            # A run whose first jobs have ended is in progress, though its measurement may wait.
            for run in islice(github.list_all(f"/repos/{repository}/actions/runs", status=status), MAX_RUNS):
                jobs = github.list_all(f"/repos/{repository}/actions/runs/{run.get('id')}/jobs")
                labels = [job.get("labels") for job in jobs if job.get("status") == "queued"]
                waiting += [tuple(map(str, told)) for told in labels if isinstance(told, list)]
    return tuple(waiting)


def read_runners(github: GitHub, repository: str, run_id: int, run_attempt: int) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """What GitHub says of a run, and the names of the runners that its jobs ran on."""
    place = f"/repos/{repository}/actions/runs/{run_id}"
    jobs = github.list_all(f"{place}/attempts/{run_attempt}/jobs")
    return github.get(place), tuple(str(job.get("runner_name")) for job in jobs)


def connect_app(app: Registration) -> GitHub:
    """Exchange the app's key for a token of its installation, good for an hour."""
    bearer = GitHub(token=sign_token(app, time.time()), api_url=app.api_url)
    answer: Any = bearer.send("POST", f"/app/installations/{app.installation}/access_tokens", {})
    token = find(answer, "token")
    if not isinstance(token, str) or not token:
        raise GitHubError("the answer to the app holds no token; run it again")
    return GitHub(token=token, api_url=app.api_url)


def sign_token(app: Registration, now: float) -> str:
    """Make the JSON web token (RFC 7519, RS256) that proves to be the app. OpenSSL signs; the key is in no Python object."""
    claims = {"iat": int(now) - CLOCK_SKEW_S, "exp": int(now) + TOKEN_LIFE_S, "iss": str(app.app_id)}
    content = b".".join(_encode(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, claims))
    done = _OPENSSL.run(["openssl", "dgst", "-sha256", "-sign", str(app.key)], content=content)
    if done.code:
        raise InputError(
            f"{app.key}: OpenSSL cannot sign with it ({done.last}); give the app's private key, readable by root alone"
        )
    return b".".join((content, _encode(done.output))).decode()


def _encode(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")
