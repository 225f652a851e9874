"""The seam at which the world around the engine's host parts is made up; all else that runs is the engine's own code.

1. The channels between scheduler, detokenizer and tokenizer manager are queues in this process, so that nothing waits and no
   poll is in vain. The engine encodes and decodes what goes through them as it always does.
2. The clock: once frozen it advances by a fixed time a step, so that nothing depends on how fast a step was.
3. The forward pass: `forward` and `sample` of the model runner return tokens of a fixed table. Batches are built for them.
4. Kernels that a CPU without their instructions would take from vLLM at the construction of a model, and that never run.
5. The engine's other models, which it would load to see what there are: under callgrind that takes as long as a window.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

_CLOCKS = ("time", "monotonic", "perf_counter")
FIRST_TOKEN, TOKENS = 100, 64
"""The tokens that are "sampled": plain words of the tiny model's vocabulary."""


def skip_models(served: str) -> None:
    """Tell the engine, before it is imported, to load no file of a model but that of `served`."""
    spec = find_spec("sglang")
    folders = [] if spec is None else spec.submodule_search_locations or []
    names = sorted(file.stem for folder in folders for file in Path(folder, "srt", "models").glob("*.py"))
    os.environ["SGLANG_DISABLED_MODEL_ARCHS"] = ",".join(name for name in names if name != served)


class StepClock:
    """Python's clocks, replaced by ones that can be frozen."""

    def __init__(self) -> None:
        self._real = {name: getattr(time, name) for name in _CLOCKS}
        self._frozen_at: dict[str, float] = {}
        self._passed_s = 0.0

    def install(self) -> None:
        """Put the replacements in place, before the engine takes a name of the module `time`."""
        for name in _CLOCKS:
            setattr(time, name, lambda name=name: self._read(name))
            setattr(time, f"{name}_ns", lambda name=name: int(self._read(name) * 1e9))

    def _read(self, name: str) -> float:
        return self._frozen_at[name] + self._passed_s if self._frozen_at else float(self._real[name]())

    def freeze(self) -> None:
        """Stop the clocks: from here on only `advance` moves them."""
        self._frozen_at = {name: read() for name, read in self._real.items()}

    def advance(self, seconds: float) -> None:
        """Move frozen clocks on."""
        self._passed_s += seconds


class Channel:
    """One direction between two parts: a socket with a queue in place of a network.

    `on_empty` is called where a reader finds nothing; what it raises ends the reader's loop, else the reader is told to poll
    again, as by a socket. A reader that takes all there is each time it polls, `is_polled`, finds nothing once a poll.
    """

    def __init__(self) -> None:
        self.queue: deque[bytes] = deque()
        self.on_empty: Callable[[], None] | None = None
        self.is_polled = False
        self.sent_bytes = 0
        self._has_given = False

    def send(self, data: Any, *_: Any, **__: Any) -> None:
        """Queue one message."""
        content = bytes(data)
        self.sent_bytes += len(content)
        self.queue.append(content)

    def recv(self, *_: Any, **__: Any) -> bytes:
        """The next message. Raise zmq.Again where there is none."""
        if not self.queue and not self._has_given and self.on_empty is not None:
            self.on_empty()
        self._has_given = self.is_polled and bool(self.queue)
        if not self.queue:
            raise import_module("zmq").Again
        return self.queue.popleft()

    def send_pyobj(self, value: Any, flags: int = 0, protocol: int = -1, **_: Any) -> None:
        """Queue one object, pickled as a socket does it."""
        del flags
        self.send(pickle.dumps(value, protocol))

    def recv_pyobj(self, *_: Any, **__: Any) -> Any:
        """The next object."""
        return decode(self.recv())

    def configure(self, *_: Any, **__: Any) -> None:
        """Options of a socket mean nothing here."""

    setsockopt = setsockopt_string = close = configure


class AwaitedChannel:
    """A channel's end in a part that runs under asyncio."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.waiting: asyncio.Future[None] | None = None

    def send(self, data: Any, *_: Any, **__: Any) -> _Done:
        """Queue one message; what is returned may be awaited."""
        self.channel.send(data)
        return _Done()

    def send_pyobj(self, value: Any, flags: int = 0, protocol: int = -1, **_: Any) -> _Done:
        """Queue one object; what is returned may be awaited."""
        self.channel.send_pyobj(value, flags, protocol)
        return _Done()

    async def recv(self, *_: Any, **__: Any) -> bytes:
        """The next message, once there is one."""
        while not self.channel.queue:
            self.waiting = asyncio.get_running_loop().create_future()
            await self.waiting
        return self.channel.queue.popleft()

    async def recv_pyobj(self, *_: Any, **__: Any) -> Any:
        """The next object, once there is one."""
        return decode(await self.recv())

    def wake(self) -> None:
        """Let a waiting reader look again."""
        if self.waiting is not None and not self.waiting.done() and self.channel.queue:
            self.waiting.set_result(None)

    setsockopt = setsockopt_string = close = Channel.configure


def decode(content: bytes) -> Any:
    """The object in a message, as a socket gives it."""
    return pickle.loads(content)  # noqa: S301 - the engine's own message, of this process


class _Done:
    """Awaited, it is over at once."""

    def __await__(self) -> Any:
        return iter(())


class Channels:
    """All channels by their addresses, and those that are read under asyncio."""

    def __init__(self) -> None:
        self.by_address: dict[str, Channel] = {}
        self.awaited: dict[str, AwaitedChannel] = {}

    def install(self) -> None:
        """Give the engine queues where it opens sockets, before the modules that do are imported."""
        network = import_module("sglang.srt.utils.network")
        if not hasattr(network, "get_zmq_socket"):
            raise LookupError("sglang.srt.utils.network has no get_zmq_socket, the place at which channels are stood in for")
        vars(network)["get_zmq_socket"] = self.open

    def open(self, context: Any, kind: Any, address: str = "", *_: Any, **__: Any) -> Any:
        """What the engine gets for a socket of a kind at an address."""
        channel = self.by_address.setdefault(address, Channel())
        if not isinstance(context, import_module("zmq.asyncio").Context):
            return channel
        awaited = AwaitedChannel(channel)
        if kind == import_module("zmq").PULL:
            self.awaited[address] = awaited
        return awaited

    def count_bytes(self) -> int:
        """What was sent so far, through all of them."""
        return sum(channel.sent_bytes for channel in self.by_address.values())


def stand_in_for_vllm() -> None:
    """A `vllm._custom_ops` whose functions do nothing, where there is no vLLM: on a CPU without AVX-512 a model wants one."""
    if find_spec("vllm") is not None:
        return
    package, operators = ModuleType("vllm"), ModuleType("vllm._custom_ops")
    package.__path__ = []

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    vars(operators)["__getattr__"] = find
    sys.modules |= {package.__name__: package, operators.__name__: operators}


def skip_forward(runner: Any) -> None:
    """Let a model runner return tokens of a fixed table instead of running the model."""
    torch = import_module("torch")
    logits = import_module("sglang.srt.layers.logits_processor").LogitsProcessorOutput(next_token_logits=None)
    output = SimpleNamespace(
        logits_output=logits,
        can_run_graph=True,
        expert_distribution_metrics=None,
        routed_experts_output=None,
        indexer_topk_output=None,
    )
    tables: dict[int, list[Any]] = {}
    turn = 0

    def sample(_: Any, batch: Any, *__: Any, **___: Any) -> Any:
        nonlocal turn
        size = len(batch.req_pool_indices)
        if size not in tables:
            tables[size] = [FIRST_TOKEN + (torch.arange(size) + first) % TOKENS for first in range(TOKENS)]
        turn += 1
        return tables[size][turn % TOKENS].clone()

    for name in ("forward", "sample"):
        if not hasattr(runner, name):
            raise LookupError(f"{type(runner).__name__} has no {name}, the place at which the forward pass is skipped")
    runner.forward = lambda *_, **__: output
    runner.sample = sample
