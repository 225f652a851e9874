"""Time the layers of both arms by turns, each in its own environment and process: one pair of starts is a block.

Both processes of a block hold their layers ready at the same time, and one of them samples while the other waits. What runs
there is not trusted: an arm that dies, hangs or answers something else than a time leaves no times at all.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from perfgate_moe.build.checkout import HangWatch, end_group, read_last_line, start_module
from perfgate_moe.errors import TimingError
from perfgate_moe.exam.examiner import READY, read_object
from perfgate_moe.proof.proving import Side, clean
from perfgate_moe.proof.values import MAX_TIMED_LAYERS, MIN_ROUNDS, ArmName, TimedBlock, TimedLayer

TOKENS = (1, 16, 256, 4096)
"""Numbers of tokens that a layer is timed at: one request, a decode batch, a large one, a prefill."""

SHAPES = ("gpt-oss-20b",)
"""Layers that are timed where none is named: the one that the shipped scenarios of a pull request serve."""

MAX_SHAPES = MAX_TIMED_LAYERS // len(TOKENS)

BLOCKS = 4
"""Starts of each arm: as many as the first look of the rule for layers takes."""

ROUNDS = MIN_ROUNDS
PAIR_TIMEOUT_S = 300.0
"""Of one layer in one block: loading the engine, drawing weights, compiling, and all samples. Longer is a hang."""

TURNS: tuple[tuple[str, ArmName], ...] = (("base", "base"), ("again", "base"), ("candidate", "candidate"))
"""The samples of a round, and the arm that takes each: the base's second one is the control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsRequest:
    """What both arms time: one implementation on each of `shapes`, by name or sizes, at each of `tokens`."""

    implementation: str
    shapes: Sequence[str]
    device: str
    tokens: Sequence[int]
    blocks: int


def time_sides(sides: Sequence[Side], request: TurnsRequest, tell: Callable[[str], None]) -> tuple[TimedBlock, ...]:
    """Time the layers of both sides; `tell` takes a line a block. Raise TimingError naming the arm that gave no times."""
    blocks = []
    for number in range(1, request.blocks + 1):
        tell(f"layers of both arms by turns: block {number} of {request.blocks}")
        layers = (layer for shape in request.shapes for layer in _time_pair(sides, request, shape, seed=number))
        blocks.append(TimedBlock(layers=tuple(layers)))
    return tuple(blocks)


def _time_pair(sides: Sequence[Side], request: TurnsRequest, shape: str, *, seed: int) -> Iterator[TimedLayer]:
    """One layer at each number of tokens, in a new process of each side. Rounds draw the order of their samples."""
    draw = random.Random(seed)  # noqa: S311 - an order, not a secret
    with ExitStack() as stack:
        # What starts first gets the first of the memory: each arm does in every second block.
        keepers: dict[ArmName, _Timekeeper] = {
            side.arm: stack.enter_context(_open_timekeeper(side, request, shape)) for side in sides[:: 1 if seed % 2 else -1]
        }
        for keeper in keepers.values():
            keeper.wait_until_ready()
        for count in request.tokens:
            samples: dict[str, list[float]] = {name: [] for name, _ in TURNS}
            for _ in range(ROUNDS):
                for name, arm in draw.sample(TURNS, len(TURNS)):
                    samples[name].append(keepers[arm].take(count))
            yield TimedLayer(shape=shape, tokens=count, **{name: tuple(taken) for name, taken in samples.items()})


class _Timekeeper:
    """One arm's process, while its context is open."""

    def __init__(self, arm: ArmName, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._arm, self._process, self._errors = arm, process, errors

    def wait_until_ready(self) -> None:
        """Wait for its layers; TimingError where they cannot be replayed."""
        while self._read() != READY:
            pass

    def take(self, count: int) -> float:
        """One sample in microseconds; TimingError for anything else."""
        self.ask({"tokens": count})
        found = self._read().get("us")
        if not isinstance(found, float) or not 1e-6 <= found <= 1e12:
            raise TimingError(f"{self._arm}: answered something else than a time")
        return found

    def ask(self, request: Mapping[str, Any]) -> None:
        """Put a request to it."""
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._describe_end() from None

    def _read(self) -> dict[str, Any]:
        """The next line that is a JSON object; what else the arm's code writes is no answer."""
        for line in self._process.stdout or ():
            found = read_object(line)
            if found is not None:
                return found
        raise self._describe_end()

    def _describe_end(self) -> TimingError:
        # It says why it ends after its output has ended; the watch ends one that only closed that.
        self._process.wait()
        self._errors.seek(0)
        last = read_last_line(self._errors.read())
        return TimingError(clean(f"{self._arm}: its process ended, or took more than {PAIR_TIMEOUT_S:.0f} s: {last}"))


@contextmanager
def _open_timekeeper(side: Side, request: TurnsRequest, shape: str) -> Iterator[_Timekeeper]:
    """A process of one side that was told what to time; it ends with the block, and after PAIR_TIMEOUT_S at the latest."""
    with ExitStack() as stack:
        # Behind the process: what could not be written to a dead one is lost.
        stack.enter_context(suppress(BrokenPipeError))
        errors = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
        process = stack.enter_context(
            start_module(
                side.checkout.python, "perfgate_moe.timing.timekeeper", side.checkout.build_environment(side.env), errors
            )
        )
        stack.callback(end_group, process)
        stack.enter_context(HangWatch(process, PAIR_TIMEOUT_S))
        keeper = _Timekeeper(side.arm, process, errors)
        keeper.ask(
            {"implementation": request.implementation, "shape": shape, "tokens": list(request.tokens), "device": request.device}
        )
        yield keeper
