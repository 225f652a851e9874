"""What each shipped scenario of a GPU costs, in GPU-minutes, by the sessions that were recorded of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from perfgate.scenario.catalog import list_pairs, load_scenario
from perfgate.scenario.schema import Scenario
from perfgate.serving.model.location import GENERATED

HEAD = (
    "scenario",
    "GPUs",
    "sessions",
    "blocks",
    "first block",
    "first block, cold",
    "later block",
    "first look",
    "first look, cold",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """What one whole block took. `is_cold` says that one of its servers found an empty cache of compiled kernels."""

    number: int
    gpu_minutes: float
    is_cold: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBlocks:
    """The whole blocks of one session, in the order of time."""

    scenario: str
    hardware: str
    gpus: int
    blocks: tuple[BlockCost, ...]

    def find_look(self, blocks: int) -> BlockCost | None:
        """All blocks up to the look after `blocks` of them as one; None for a session that did not come so far."""
        seen = self.blocks[:blocks]
        if len(seen) < blocks:
            return None
        return BlockCost(
            number=1,
            gpu_minutes=sum(block.gpu_minutes for block in seen),
            is_cold=any(block.is_cold for block in seen),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a scenario costs on one kind of GPU, with the sessions and blocks behind it; without any, `hardware` is empty.

    The others are medians in GPU-minutes, None where there was no such block: of first blocks, of later ones, and up to the
    first look.
    """

    scenario: str
    gpus: int
    hardware: str
    sessions: int
    blocks: int
    first: float | None
    first_cold: float | None
    later: float | None
    look: float | None
    look_cold: float | None


def list_shapes() -> tuple[Scenario, ...]:
    """The shipped scenarios of a GPU whose model perfgate makes itself; those of published checkpoints never ran."""
    scenarios = [load_scenario(name) for name in list_pairs()]
    return tuple(one for one in scenarios if one.model.path.startswith(GENERATED))


def price_scenarios(scenarios: Iterable[Scenario], sessions: Sequence[SessionBlocks]) -> Iterator[Price]:
    """The price of each scenario, one for each kind of GPU that a whole block of it ran on."""
    for scenario in scenarios:
        mine = [one for one in sessions if one.scenario == scenario.name and one.blocks]
        for hardware in sorted({one.hardware for one in mine}) or [""]:
            yield _price(scenario, hardware, [one for one in mine if one.hardware == hardware])


def _price(scenario: Scenario, hardware: str, sessions: Sequence[SessionBlocks]) -> Price:
    blocks = [block for one in sessions for block in one.blocks]
    first = [block for block in blocks if block.number == 1]
    looks = [look for one in sessions if (look := one.find_look(scenario.blocks.looks[0])) is not None]
    return Price(
        scenario=scenario.name,
        gpus=scenario.server.gpus,
        hardware=hardware,
        sessions=len(sessions),
        blocks=len(blocks),
        first=_find_median(first, is_cold=False),
        first_cold=_find_median(first, is_cold=True),
        later=median(later) if (later := [block.gpu_minutes for block in blocks if block.number > 1]) else None,
        look=_find_median(looks, is_cold=False),
        look_cold=_find_median(looks, is_cold=True),
    )


def _find_median(blocks: Iterable[BlockCost], *, is_cold: bool) -> float | None:
    kept = [block.gpu_minutes for block in blocks if block.is_cold is is_cold]
    return median(kept) if kept else None


def list_price(price: Price) -> list[str]:
    """A row of the table below HEAD."""
    if not price.blocks:
        return [price.scenario, str(price.gpus), "not measured", *("-" for _ in HEAD[3:])]
    minutes = (price.first, price.first_cold, price.later, price.look, price.look_cold)
    return [
        price.scenario,
        f"{price.gpus} {price.hardware}",
        str(price.sessions),
        str(price.blocks),
        *("-" if value is None else f"{value:.1f}" for value in minutes),
    ]
