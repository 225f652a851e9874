"""A server that perfgate did not start and will not stop: it is only asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import orjson

from perfgate.errors import InputError, ServerError
from perfgate.results.expert_use import RawTrace
from perfgate.serving.engine.conversation import open_http
from perfgate.serving.experts.expert_probe import Generate, record
from perfgate.serving.experts.expert_recorder import HOOKED
from perfgate.serving.model.model_guard import read_vocabulary
from perfgate.stats.expert_use import Unknown

INFO_PATH = "/get_model_info"
TIMEOUT_S = 30.0
TOKENS_A_STEP = 16
"""So many requests decode together."""


class Attached:
    """What a question needs of a running SGLang server that another process started."""

    def __init__(self, url: str) -> None:
        """Name the server by its address; nothing is asked yet."""
        self.url = url.rstrip("/")
        self.log = Path("of the server")

    def raise_if_dead(self, wait_s: float = 0.0) -> None:
        """It is no process of ours: only its answers show whether it lives."""

    def flush_cache(self) -> None:
        """Empty the prefix cache. Raise ServerError where it refuses, as while requests run."""
        self._ask("POST", "/flush_cache")

    def read_model_path(self) -> Path:
        """The model that it serves, as it was named to it."""
        found = self._ask("GET", INFO_PATH)
        path = found.get("model_path") if isinstance(found, Mapping) else None
        if not isinstance(path, str):
            raise ServerError(f"{self.url}{INFO_PATH}: names no model_path; give the model's folder as DIR")
        return Path(path)

    def _ask(self, method: str, path: str) -> Any:

        try:
            with open_http(TIMEOUT_S) as client:
                answer = client.request(method, self.url + path)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerError(f"{self.url}: gives no answer ({type(error).__name__}); is a server running there?") from None
        if answer.status_code != httpx.codes.OK:
            raise ServerError(f"{self.url}{path}: HTTP {answer.status_code}; ask an idle SGLang server")
        try:
            return orjson.loads(answer.content) if method == "GET" else None
        except orjson.JSONDecodeError:
            raise ServerError(f"{self.url}{path}: the answer is not JSON; ask an SGLang server") from None


def ask_routing(url: str, recorded: Path, model: Path | None) -> RawTrace | Unknown:
    """Which experts the server at `url` chooses, its recorder writing into the folder `recorded`.

    `model` holds config.json; left out, it is the folder that the server names. Raise ServerError where the server cannot be
    asked.
    """
    server = Attached(url)
    folder = model or server.read_model_path()
    if not folder.exists():
        raise InputError(f"{folder}: the server's model is no folder of this machine; give one with its config.json as DIR")
    if not (recorded / HOOKED).exists():
        return Unknown.NO_RECORDER
    return record(server, recorded, read_vocabulary(folder), TOKENS_A_STEP, Generate())
