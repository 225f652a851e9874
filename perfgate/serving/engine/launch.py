"""What starts one arm: its services, of which today's engines need one each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.engines.arguments import read_layout
from perfgate.engines.engine import Engine
from perfgate.machine.nvml import list_devices

HOST = "127.0.0.1"
RANKS_PORT = 10_000
"""How far below its own port the ranks of a server meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCheck:
    """How a service is asked whether it serves: 200 says yes. `content` is posted to `path`; without it, `path` is read."""

    path: str
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process of an arm. `role` names it in logs and errors; `devices` are its GPUs, by index or UUID."""

    role: str
    argv: tuple[str, ...]
    port: int
    ready: ReadyCheck
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that starts one server: the same value starts the same server again."""

    engine: Engine
    python: str
    model: Path
    args: tuple[str, ...]
    env: Mapping[str, str]
    ready_timeout_s: float
    stop_timeout_s: float

    def list_services(self, port: int) -> tuple[Service, ...]:
        """The processes that the arm consists of, first the one that clients connect to on `port`."""
        content = None
        if self.engine.dialect != "sglang":
            # Token ids need no tokenizer, and these are in any vocabulary.
            content = {"model": str(self.model), "prompt": [16, 17], "max_tokens": 1}
        ready = ReadyCheck(path=self.engine.ready_path, content=content)
        return (Service(role="server", argv=self.argv(port), port=port, ready=ready, devices=self.devices),)

    def argv(self, port: int) -> tuple[str, ...]:
        """The full command line of the service that clients connect to."""
        fixed: tuple[str, ...] = (self.engine.model_option, str(self.model), "--host", HOST, "--port", str(port))
        if self.engine.ranks_option and read_layout(self.args).is_one_group:
            fixed += (self.engine.ranks_option, str(max(0, port - RANKS_PORT)))
        return (self.python, "-m", self.engine.module, *fixed, *self.engine.args, *self.args)

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs of all its services, by index or UUID; none where the engine uses no GPU."""
        return list_devices(self.args, self.env) if self.engine.uses_gpu else ()
