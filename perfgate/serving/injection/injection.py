"""A slow-down of known size, put into a served model through SGLang's own plug-in hook; off unless it is asked for.

The gate can be trusted only if it finds a loss of known size that was put there. `PERFGATE_INJECT` says which:

- `step:0.25` makes the host wait, after every forward step, for a quarter of the time that launching it took;
- `tail:4.0` does so after one step in 200, for four times that time;
- `host:500` makes the scheduler sleep 500 microseconds before every batch, `host:8000/50` 8 milliseconds before one in 50;
- `prefill:10000` and `decode:500` do so before batches that prefill, or that only decode;
- `request:80000` makes each request wait 80 milliseconds before it is tokenised, while others are served;
- `gpu:10` keeps the GPU busy for 10 microseconds longer in every MoE block, under CUDA graphs too;
- `rank:15` does so on the last tensor rank alone, `allreduce:5` behind every all-reduce.

What was asked for is not assumed to have happened: the server logs what was really spent.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from perfgate.errors import ServerError
from perfgate.scenario.injections import REQUEST, SPINNING, Injection, parse_injection
from perfgate.serving.injection.injection_log import Tally, announce

if TYPE_CHECKING:
    from perfgate.serving.injection.spin import Spin

VARIABLE = "PERFGATE_INJECT"
FORWARD = "sglang.srt.model_executor.model_runner.ModelRunner.forward"
TOKENISE = "sglang.srt.managers.tokenizer_manager.TokenizerManager._tokenize_one_request"
BATCH = "sglang.srt.managers.scheduler.Scheduler.run_batch"
LOAD = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
MOE = "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE.run_moe_core"
ALL_REDUCE = "sglang.srt.distributed.parallel_state.GroupCoordinator.all_reduce"
# Those that wait before a batch, and whether they do before one that prefills: None is either way.
BATCHES: Mapping[str, bool | None] = {"host": None, "prefill": True, "decode": False}


def folder_name(text: str) -> str:
    """An injection as a part of a folder's name: `host-8000-in-50`."""
    return text.replace(":", "-").replace("/", "-in-")


def slow_down(injection: Injection) -> Callable[..., Any]:
    """Build an AROUND hook that lets the original run and then waits for the injected share of its duration."""
    tally = Tally(**asdict(injection))

    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        result = original(*args, **kwargs)
        is_slowed = tally.begin()
        tally.add(injected_us=_sleep((time.perf_counter() - begun) * injection.amount) * 1e6 if is_slowed else 0.0)
        return result

    return hook


def delay_batches(injection: Injection) -> Callable[..., Any]:
    """Build an AROUND hook that makes the scheduler sleep before each batch, or before each that the kind is about.

    What it logs is per batch of the kind: others do not count as steps.
    """
    tally = Tally(**asdict(injection))
    wanted = BATCHES[injection.kind]

    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if wanted is None or _does_prefill(*args, **kwargs) is wanted:
            tally.add(injected_us=_sleep(injection.amount / 1e6) * 1e6 if tally.begin() else 0.0)
        return original(*args, **kwargs)

    return hook


def delay_requests(injection: Injection) -> Callable[..., Any]:
    """Build an AROUND hook of a coroutine, by which each request waits before it is tokenised and the server goes on.

    What it logs is per request. As a grammar does that is compiled for each request, it costs throughput and TTFT, and no
    step: fewer requests are in flight.
    """
    tally = Tally(**asdict(injection))

    async def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        if tally.begin():
            await asyncio.sleep(injection.amount / 1e6)
        tally.add(injected_us=(time.perf_counter() - begun) * 1e6)
        return await original(*args, **kwargs)

    return hook


def _does_prefill(_scheduler: Any, batch: Any, *_args: Any, **_kwargs: Any) -> bool:
    """Whether a batch has prompts in it, alone or beside tokens of running requests."""
    return bool(batch.forward_mode.is_extend())


def _sleep(seconds: float) -> float:
    """Sleep, and return how long it really was."""
    begun = time.perf_counter()
    time.sleep(seconds)
    return time.perf_counter() - begun


@dataclass(slots=True)
class SpinHooks:
    """The three hooks that together keep the GPU busy: load the kernel with the model, enqueue it, and log what it spent.

    Of a model over several GPUs each rank is a process with hooks of its own.
    """

    kind: str
    microseconds: float
    spin: Spin | None = None
    is_announced: bool = False

    def load(self, _result: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
        """AFTER hook: the model is on its device, and no graph has been captured yet.

        Raise ServerError where there are no ranks between which the injection is to make a difference.
        """
        from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415 - exists in a server only

        from perfgate.serving.injection.spin import Spin  # noqa: PLC0415 - Triton, where there is a GPU

        ranks = get_parallel()
        if self.kind != "gpu" and ranks.tp_size < 2:
            raise ServerError(
                f"perfgate: the {self.kind} injection needs two tensor ranks, this server has one; use gpu, or a scenario "
                "that takes several GPUs"
            )
        is_slowed = self.kind != "rank" or ranks.tp_rank == ranks.tp_size - 1
        if self.spin is None and is_slowed:
            self.spin = Spin(
                kind=self.kind, device=str(runner.device), index=int(runner.gpu_id), microseconds=self.microseconds
            )

    def enqueue(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """AROUND hook of a MoE block or an all-reduce: what is enqueued while a graph is captured runs in every replay."""
        result = original(*args, **kwargs)
        if self.spin is not None:
            self.spin.enqueue()
            if not self.is_announced:
                self.is_announced = True
                announce(self.kind, self.microseconds)
        return result

    def count(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """AROUND hook of a batch."""
        result = original(*args, **kwargs)
        if self.spin is not None:
            self.spin.count_step()
        return result


def register() -> None:
    """Entry point `sglang.srt.plugins`: hook the server if, and only if, the environment asks for it."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - exists in a server only

    injection = parse_injection(text)
    if injection.kind in SPINNING:
        hooks = SpinHooks(kind=injection.kind, microseconds=injection.amount)
        HookRegistry.register(LOAD, hooks.load, HookType.AFTER)
        HookRegistry.register(ALL_REDUCE if injection.kind == "allreduce" else MOE, hooks.enqueue, HookType.AROUND)
        HookRegistry.register(BATCH, hooks.count, HookType.AROUND)
    elif injection.kind in BATCHES:
        HookRegistry.register(BATCH, delay_batches(injection), HookType.AROUND)
    elif injection.kind == REQUEST:
        HookRegistry.register(TOKENISE, delay_requests(injection), HookType.AROUND)
    else:
        HookRegistry.register(FORWARD, slow_down(injection), HookType.AROUND)
