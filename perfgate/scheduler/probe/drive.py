"""Answers one request: builds the engine's host parts, drives them step by step, and says what each part did a unit.

Standard input has one JSON object: the `model`'s folder, the `model_file` of the engine that serves it, a folder `stand_ins` of
packages for CPUs that an environment may lack, `arms`, `meters` (`cpu` and `events`, or `instructions`), and the `load`. An arm
has a `folder` that its engine lies in, empty where the environment has it, and further words `args` of its command line. A load
is `batch` sequences that decode together for `steps` steps a window, then `requests` in closed loop over as many clients with
`output` tokens each, prompts of `words` words, each third one with a common beginning; `windows` of each kind. At last come
`queued` requests at once, more than run at a time and of different lengths, of which only steps are counted.

The answer is a JSON list, an object for each arm. Instructions are counted by callgrind, whose `log` the request names.
Packages that engines stand on are imported once, and each arm is driven in a process forked of this one.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from inspect import signature
from typing import Any

from . import meters, seam

STEP_S = 0.01
"""What the frozen clock advances a step."""

WARM_STEPS = 24
QUEUED_OUTPUTS = tuple(4 + 13 * number % 33 for number in range(33))
"""Tokens of the answers in a queue, by turns: all differ, so that places become free one by one."""
STANDS_ON = (
    *("torch", "torch._dynamo", "torch.distributed.tensor", "transformers.models.llama.modeling_llama", "triton"),
    *("openai", "fastapi", "aiohttp", "xgrammar", "torchvision"),
)
"""What engines import of other packages, the slow part of a start; one that is not here is left to the engine."""

_SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstv" for vowel in "aeiou"]


class Finished(BaseException):
    """The load is done: the scheduler's loop is left through its poll, wherever the engine catches errors."""


class Drained(BaseException):
    """The detokenizer has read all that there was: its loop is left until the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The engine's host parts and the made-up world between them."""

    scheduler: Any
    detokenizer: Any
    manager: Any
    make_request: Any
    replies: seam.AwaitedChannel
    channels: seam.Channels
    clock: seam.StepClock


def build(request: dict[str, Any], clock: seam.StepClock, channels: seam.Channels) -> EngineParts:
    """Build the parts as the engine's launcher does, in this process. Raise LookupError where a place of the seam is gone."""
    seam.stand_in_for_vllm()
    if find_spec("sglang.srt.plugins") is not None:
        import_module("sglang.srt.plugins").load_plugins()
    arguments = import_module("sglang.srt.server_args")
    args = arguments.prepare_server_args(["--model-path", request["model"], *request["args"]])
    if hasattr(args, "resolve_once"):  # since 0.5.19
        args.resolve_once()
    ports = arguments.PortArgs.init_new(args)
    managers = "sglang.srt.managers"
    publish(args, "tokenizer")
    manager = import_module(f"{managers}.tokenizer_manager").TokenizerManager(args, ports)
    publish(args, "detokenizer")
    detokenizer = import_module(f"{managers}.detokenizer_manager").DetokenizerManager(args, ports)
    publish(args, "scheduler")
    kind = import_module(f"{managers}.scheduler").Scheduler
    ranks = [*[0] * 6, None] if "gpu_id" in signature(kind).parameters else []  # up to 0.5.20
    scheduler = kind(args, ports, *ranks)
    seam.skip_forward(scheduler.tp_worker.model_runner)
    parts = EngineParts(
        scheduler=scheduler,
        detokenizer=detokenizer,
        manager=manager,
        make_request=import_module(f"{managers}.io_struct").GenerateReqInput,
        replies=channels.awaited[ports.tokenizer_ipc_name],
        channels=channels,
        clock=clock,
    )
    channels.by_address[ports.detokenizer_ipc_name].on_empty = _drain
    return parts


def publish(args: Any, role: str) -> None:
    """Make the arguments those of a process of this role, as each process of the engine does since 0.5.20."""
    context = import_module("sglang.srt.runtime_context")
    if not hasattr(context, "publish"):
        return
    is_placed = role == "scheduler" and "ranks" in signature(context.publish).parameters
    placed = {"ranks": context.SpawnRanks(world_rank=0, gpu_id=0)} if is_placed else {}
    context.publish(args, role=role, **placed)


def _drain() -> None:
    raise Drained


class PartsDriver:
    """Drives the parts in turns: one step of the scheduler's own loop, then the detokenizer, then the tokenizer manager."""

    def __init__(self, parts: EngineParts, load: dict[str, Any], using: list[meters.Meter], poll: seam.Channel) -> None:
        self.parts, self.load, self.using = parts, load, using
        self.loop: Any = asyncio.SelectorEventLoop()
        asyncio.set_event_loop(self.loop)
        self.found: list[dict[str, Any]] = []
        self.steps = self.sent = 0
        self.running: list[asyncio.Task[None]] = []
        self.meter: meters.Meter | None = None
        self.script = self._write_script()
        self.sent_bytes = 0
        poll.on_empty, poll.is_polled = self.turn, True

    def run(self) -> None:
        """Drive the whole load. Raise RuntimeError where a request ended in another way than it should."""
        self._settle()
        try:
            self.parts.scheduler.run_event_loop()
        except Finished:
            return
        raise RuntimeError("the scheduler's loop ended by itself")

    def turn(self) -> None:
        """Between two steps of the scheduler: let the other parts run until they are idle, then go on in the script."""
        self._leave("scheduler")
        self.steps += 1
        self.parts.clock.advance(STEP_S)
        self._enter("detokenizer")
        with suppress(Drained):
            self.parts.detokenizer.event_loop()
        self._leave("detokenizer")
        self._enter("tokenizer_manager")
        self.parts.replies.wake()
        self._settle()
        self._leave("tokenizer_manager")
        if next(self.script, None) is None:
            raise Finished
        self._enter("scheduler")

    def _settle(self) -> None:
        """Run what is ready under asyncio, and nothing that waits."""
        while self.loop._ready:  # noqa: SLF001 - asyncio has no other word for it, and a fixed number of rounds would be metered
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def _enter(self, part: str) -> None:
        if self.meter is not None:
            self.meter.enter(part)

    def _leave(self, part: str) -> None:
        if self.meter is not None:
            self.meter.leave(part)

    def _write_script(self) -> Iterator[bool]:
        """What happens between steps; each yield lets the scheduler make one."""
        load = self.load
        window, count = load["steps"], load["windows"] * len(self.using)
        self._start(load["batch"], load["batch"], (WARM_STEPS + (window + 1) * count,))
        yield from self._go_on(WARM_STEPS)
        for _ in range(load["windows"]):
            for meter in self.using:
                self._open(meter, window)
                yield from self._go_on(window)
                self._close(meter, "decode_step", window)
        yield from self._finish()
        for _ in range(load["windows"]):
            for meter in self.using:
                self._start(load["requests"], load["batch"], (load["output"],))
                self._open(meter, load["requests"])
                begun = self.steps
                yield from self._finish()
                self._close(meter, "request", load["requests"])
                self._tell_steps("round", begun)
        for _ in range(load["windows"] if load["queued"] else 0):
            begun = self.steps
            self._start(load["queued"], load["queued"], QUEUED_OUTPUTS)
            yield from self._finish()
            self._tell_steps("queue", begun)

    def _go_on(self, steps: int) -> Iterator[bool]:
        for _ in range(steps):
            yield True

    def _finish(self) -> Iterator[bool]:
        """Go on until all clients are done, and a step more, in which the engine is idle. Raise what a client raised."""
        while not all(task.done() for task in self.running):
            yield True
        for task in self.running:
            task.result()
        yield True

    def _open(self, meter: meters.Meter, units: int) -> None:
        meter.open(units)
        self.meter, self.sent_bytes = meter, self.parts.channels.count_bytes()

    def _close(self, meter: meters.Meter, unit: str, units: int) -> None:
        self.meter = None
        for part, values in meter.close().items():
            self.found.append({"part": part, "unit": unit, "values": values})
        sent_bytes = (self.parts.channels.count_bytes() - self.sent_bytes) / units
        self.found.append({"part": "channels", "unit": unit, "values": {"bytes": sent_bytes}})

    def _tell_steps(self, unit: str, begun: int) -> None:
        self.found.append({"part": "scheduler", "unit": unit, "values": {"steps": self.steps - begun}})

    def _start(self, requests: int, clients: int, outputs: Sequence[int]) -> None:
        """Let clients take requests one after the other, each the next one where one is done; `outputs` are taken by turns."""
        waiting = iter(range(self.sent, self.sent + requests))
        self.sent += requests

        async def serve() -> None:
            for number in waiting:
                await self._ask(number, outputs[number % len(outputs)])

        self.running = [self.loop.create_task(serve()) for _ in range(clients)]
        self._settle()

    async def _ask(self, number: int, output: int) -> None:
        given = self.parts.make_request(
            text=write_prompt(number, self.load["words"]),
            sampling_params={"max_new_tokens": output, "ignore_eos": True, "temperature": 0.0},
            stream=True,
            rid=f"{number:08d}",
        )
        made = 0
        async for reply in self.parts.manager.generate_request(given):
            made = reply["meta_info"]["completion_tokens"]
        if made != output:
            raise RuntimeError(f"request {number} ended with {made} of {output} tokens")


def write_prompt(number: int, words: int) -> str:
    """A prompt of so many words of the tiny model's vocabulary; each third one begins as all third ones do."""
    common = words // 2 if number % 3 == 0 else 0
    made = [_write_word(index) for index in range(common)]
    return " ".join(made + [_write_word(7919 * (number + 1) + 31 * index) for index in range(words - common)])


def _write_word(index: int) -> str:
    first, second = divmod(index % len(_SYLLABLES) ** 2, len(_SYLLABLES))
    return _SYLLABLES[first] + _SYLLABLES[second]


def read_version() -> str:
    """The version of the engine that answers, from the distribution beside it; `a tree` where there is none."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "a tree"


def answer(request: dict[str, Any], number: int, clock: seam.StepClock) -> dict[str, Any]:
    """Drive one of the arms."""
    arm, channels = request["arms"][number], seam.Channels()
    if arm["folder"]:
        sys.path.insert(1, arm["folder"])  # where PYTHONPATH would put it
    seam.skip_models(request["model_file"])
    channels.install()
    events = meters.EventMeter()
    parts = build({**request, **arm}, clock, channels)
    using: dict[str, Any] = {
        "cpu": meters.TimeMeter,
        "events": lambda: events,
        "instructions": lambda: meters.InstructionMeter(request["log"]),
    }
    clock.freeze()
    # What imports leave is no garbage of a step, so that all of it is set aside, unlooked at.
    gc.freeze()
    gc.enable()
    poll = parts.scheduler.ipc_channels.recv_from_tokenizer
    driver = PartsDriver(parts, request["load"], [using[name]() for name in request["meters"]], poll)
    driver.run()
    return {"sglang": read_version(), "readings": driver.found}


def answer_apart(request: dict[str, Any], number: int, clock: seam.StepClock) -> tuple[int, int]:
    """Drive one of the arms in a process of its own, forked of this one: its id, and where its answer can be read."""
    reader, writer = os.pipe()
    process = os.fork()
    if process != 0:
        os.close(writer)
        return process, reader
    try:
        told = answer(request, number, clock)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code: said in one line
        traceback.print_exc()
        told = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(writer, "w", encoding="utf-8") as output:
        print(json.dumps(told), file=output)
    # Threads of the engine would keep the process, and its exit hooks wait for them.
    os._exit(0)


def main() -> int:
    """Answer on standard output; what the engine prints goes to standard error."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request, clock = json.load(sys.stdin), seam.StepClock()
    sys.path.append(request["stand_ins"])
    clock.install()
    gc.disable()  # until an arm is built: there is no garbage, and looking for it took a tenth of the time
    for name in STANDS_ON:
        with suppress(ImportError):
            import_module(name)
    told = []
    for process, reader in [answer_apart(request, number, clock) for number in range(len(request["arms"]))]:
        with os.fdopen(reader, encoding="utf-8") as given:
            told.append(json.loads(given.readline() or '{"error": "its process died"}'))
        os.waitpid(process, 0)
    print(json.dumps(told), file=output, flush=True)
    os._exit(0)
