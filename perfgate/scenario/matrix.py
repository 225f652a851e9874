"""A matrix file says which servers meet which loads; this module reads and checks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from perfgate.core import Arm
from perfgate.scenario.load import Load
from perfgate.scenario.safeguards import Equivalence
from perfgate.scenario.schema import Blocks, Gate, Model, Name, Scenario, ServerOptions, Warmup
from perfgate.scenario.toml import parse_toml
from perfgate.storage.schema import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Every server under every load: levels side by side, and no verdict.

    Each round starts every server once and lets it meet all loads, `windows` that count each. With one round the offset of a
    start looks like a difference between servers; a second one shows it. Each start is asked the prompts of `equivalence`, and
    the first server's answers are those that the others are held against. `allow_retraction` is as in a scenario.
    """

    schema: Literal[1]
    name: Name
    title: str
    model: Model
    servers: Mapping[Name, ServerOptions]
    loads: Mapping[Name, Load]
    warmup: Warmup = field(default_factory=Warmup)
    equivalence: Equivalence = field(default_factory=Equivalence)
    windows: Annotated[int, Field(ge=1, strict=True)] = 3
    rounds: Annotated[int, Field(ge=1, strict=True)] = 2
    allow_retraction: StrictBool = False
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        """A matrix without a side has no cell."""
        for name in ("servers", "loads"):
            if not getattr(self, name):
                raise ValueError(f"{name}: is empty; name at least one")
        if self.equivalence.gsm8k.path is not None:
            raise ValueError("equivalence.gsm8k: a matrix asks no questions; `perfgate ab` does")

    def build_scenario(self, server: str, load: str) -> Scenario:
        """One cell as a scenario, so that it is served, checked and identified as any other measurement is."""
        return Scenario(
            schema=1,
            name=self.name,
            title=self.title,
            model=self.model,
            server=self.servers[server],
            load=self.loads[load],
            gates={"output_tok_per_s": Gate()},
            warmup=self.warmup,
            blocks=Blocks(windows=self.windows),
            equivalence=self.equivalence,
            allow_retraction=self.allow_retraction,
        )

    def choose_arm(self, server: str) -> Arm:
        """In whose place a server stands where two are compared: the first of the file is the base of each other one."""
        return Arm.BASE if server == next(iter(self.servers)) else Arm.CANDIDATE

    def list_bases(self) -> tuple[str, ...]:
        """The first server, which the others' answers and routing are held against; none where they are meant to differ."""
        return (next(iter(self.servers)),) if self.equivalence.enabled else ()

    def order(self) -> Iterator[tuple[int, str, tuple[str, ...]]]:
        """Yield (round, server, loads) in the order in which servers are started; every other round goes backwards.

        So each server is started once a round, and what drifts from the first to the last meets all of them alike.
        """
        servers, loads = tuple(self.servers), tuple(self.loads)
        for number in range(1, self.rounds + 1):
            step = 1 if number % 2 else -1
            for server in servers[::step]:
                yield number, server, loads[::step]


def parse_matrix(text: str, source: str) -> Matrix:
    """Turn TOML text into a Matrix. `source` names the text in errors. Raise ScenarioError with line and key."""
    return parse_toml(text, source, Matrix)
