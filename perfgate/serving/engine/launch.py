"""What starts one arm: its services. One server is enough, unless prefill and decode are apart: then there are two of it, and
SGLang's balancer before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.engines.arguments import Layout, read_layout, read_option
from perfgate.engines.engine import Engine
from perfgate.machine.nvml import list_devices

HOST = "127.0.0.1"
SECOND_PORT, RANKS_PORT = 10_000, 10_000
"""How far above its own port a server takes a second one, and how far below it its ranks meet."""

BALANCER = "sglang_router.launch_router"


def write_url(port: int) -> str:
    """The address of what listens at a port of this machine."""
    return f"http://{HOST}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCheck:
    """How a service is asked whether it serves: 200 says yes. `content` is posted to `path`; without it, `path` is read."""

    path: str
    content: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process of an arm. `role` names it in logs and errors. `is_engine` tells a server of a model from what balances."""

    role: str
    argv: tuple[str, ...]
    port: int
    ready: ReadyCheck
    is_engine: bool = True

    @property
    def url(self) -> str:
        """The address at which it is asked."""
        return write_url(self.port)


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

    @property
    def layout(self) -> Layout:
        """How the arguments divide the model."""
        return read_layout(self.args)

    @property
    def ports(self) -> int:
        """How many services there are, each with a port of its own."""
        return 3 if self.layout.is_disaggregated else 1

    def list_services(self, ports: Sequence[int]) -> tuple[Service, ...]:
        """The processes that the arm consists of: first the one that clients connect to, last an engine that decodes."""
        if not self.layout.is_disaggregated:
            return (self._build_engine("server", ports[0]),)
        front, prefill, decode = ports
        # The balancer takes no second port, so that is free for where the two engines find each other.
        meeting = ("--disaggregation-bootstrap-port", str(front + SECOND_PORT))
        second = str(self.layout.first_gpu + self.layout.server_gpus)
        return (
            self._build_balancer(front, prefill, decode),
            self._build_engine("prefill", prefill, "--disaggregation-mode", "prefill", *meeting),
            self._build_engine("decode", decode, "--disaggregation-mode", "decode", *meeting, "--base-gpu-id", second),
        )

    def _build_engine(self, role: str, port: int, *args: str) -> Service:
        content = None
        if self.engine.dialect != "sglang":
            # Token ids need no tokenizer, and these are in any vocabulary.
            content = {"model": str(self.model), "prompt": [16, 17], "max_tokens": 1}
        ready = ReadyCheck(path=self.engine.ready_path, content=content)
        return Service(role=role, argv=(*self.argv(port), *args), port=port, ready=ready)

    def _build_balancer(self, port: int, prefill: int, decode: int) -> Service:
        to_prefill = ("--prefill", write_url(prefill), str(port + SECOND_PORT))
        own = ("--mini-lb", "--pd-disaggregation", *to_prefill, "--decode", write_url(decode))
        argv = (self.python, "-m", BALANCER, "--host", HOST, "--port", str(port), *own)
        return Service(role="balancer", argv=argv, port=port, ready=ReadyCheck(path="/health"), is_engine=False)

    def argv(self, port: int) -> tuple[str, ...]:
        """The full command line of an engine of it; where there are two, each adds what tells it from the other."""
        fixed: tuple[str, ...] = (self.engine.model_option, str(self.model), "--host", HOST, "--port", str(port))
        if self.engine.ranks_option and self.layout.is_one_group:
            fixed += (self.engine.ranks_option, str(max(0, port - RANKS_PORT)))
        return (self.python, "-m", self.engine.module, *fixed, *self.engine.args, *self.args)

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs of all its services, by index or UUID; none where the engine uses no GPU."""
        return list_devices(self.args, self.env) if self.engine.uses_gpu else ()

    @property
    def counts_neighbours(self) -> bool:
        """Whether its pool of tokens would shrink by what another server takes of the GPU while this one starts."""
        memory = self.engine.memory
        return self.engine.uses_gpu and memory.counts_neighbours and read_option(self.args, memory.pool_option) is None
