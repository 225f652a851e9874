"""Which scenarios a change is measured under: by the paths that it touches and by minutes, each choice with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

from pydantic import Field

from perfgate.errors import InputError
from perfgate.scenario.catalog import PLAN, SCENARIO_DIR, list_pairs, list_scenarios, load_scenario
from perfgate.scenario.load import Seconds
from perfgate.scenario.settings import read_settings
from perfgate.scenario.toml import suggest
from perfgate.storage.schema import STRICT

CPU = "cpu"
"""What stands in place of a model where the engine runs without a GPU: its scenarios are named whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchRule:
    """A part of the engine: the patterns of its paths, and the loads, or whole CPU scenarios, that a change of it is seen by.

    The first of the loads is the most wanted. `also` is a command that tells more of such a change. `pins` are the files that
    may say what the engine runs on: where the first of them that a tree has changed, the arms get packages of their own.
    """

    part: str
    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    loads: tuple[str, ...] = ()
    cpu: tuple[str, ...] = ()
    also: str = ""
    pins: tuple[str, ...] = ()
    __pydantic_config__ = STRICT

    def find_touched(self, changed: Sequence[str]) -> tuple[str, ...]:
        """The changed paths that belong to this part."""
        return tuple(path for path in changed if any(fnmatchcase(path, pattern) for pattern in self.paths))

    def list_wanted(self, model: str) -> tuple[str, ...]:
        """The loads for `model`, in the order of want."""
        return self.cpu if model == CPU else self.loads


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPrice:
    """Seconds of a later block under `load` with warm caches. `measured` names the models that it was measured with."""

    load: str
    block_s: Seconds
    measured: tuple[str, ...] = ()
    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionTable:
    """The rules, in their order, the loads that every change is measured under, and what a block of each costs.

    `first_block_s` are the seconds by which the first block of a session on a GPU outlasts a later one.
    """

    always: Annotated[tuple[str, ...], Field(min_length=1)]
    always_cpu: Annotated[tuple[str, ...], Field(min_length=1)]
    rules: tuple[TouchRule, ...]
    prices: tuple[BlockPrice, ...]
    first_block_s: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] = 0.0
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        """A load without a price could not be fitted into any minutes."""
        known = {price.load for price in self.prices}
        for name in self.list_loads():
            if name not in known:
                raise ValueError(f"prices: has no block_s of {name}; add it")

    @property
    def pins(self) -> tuple[str, ...]:
        """The files of all rules that may say what the engine runs on, in the order in which they are looked for."""
        return tuple(dict.fromkeys(name for rule in self.rules for name in rule.pins))

    def list_loads(self) -> tuple[str, ...]:
        """Every load that may be chosen."""
        return tuple({**dict.fromkeys((*self.always, *self.always_cpu)), **dict.fromkeys(self._list_ruled())})

    def _list_ruled(self) -> Iterator[str]:
        for rule in self.rules:
            yield from (*rule.loads, *rule.cpu)

    def find_price(self, load: str) -> BlockPrice:
        """What a block under `load` costs. Raise InputError for one that the table does not name."""
        found = {price.load: price for price in self.prices}
        if load not in found:
            raise InputError(f"{load}: the table has no such load; {suggest(load, found)}")
        return found[load]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedScenario:
    """A scenario that is to be measured: so many blocks of it, as the minutes allow, and why.

    `minutes` are those of the clock; `gpus` are held all the while, 0 on a CPU.
    """

    scenario: str
    blocks: int
    minutes: float
    is_reckoned: bool
    reason: str
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnselectedScenario:
    """A scenario of the table that is not to be measured, and why; `is_wanted` says that a touched path asked for it."""

    scenario: str
    is_wanted: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a change is measured under within `minutes`, what is not, what else tells of it, and which paths no rule knows."""

    minutes: float
    selected: tuple[SelectedScenario, ...]
    unselected: tuple[UnselectedScenario, ...]
    also: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def total_minutes(self) -> float:
        """What all of it takes."""
        return sum(one.minutes for one in self.selected)

    @property
    def gpu_minutes(self) -> float:
        """The same of each GPU that is held; 0 on a CPU."""
        return sum(one.minutes * one.gpus for one in self.selected)


def read_table(path: Path | None = None) -> SelectionTable:
    """The table that ships, or the one at `path`. Raise InputError naming the file and the field that is wrong."""
    return read_settings(path or SCENARIO_DIR / PLAN, SelectionTable, "docs/how-to/plan.md names the one that ships")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionRequest:
    """What is asked: the changed paths, the minutes, the model or `cpu`, and loads that a person adds or leaves out."""

    changed: tuple[str, ...]
    minutes: float
    model: str
    added: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def select_scenarios(table: SelectionTable, asked: SelectionRequest) -> Selection:
    """Choose by the rules what fits into the minutes. Raise InputError for a model or load that is unknown, and for a
    load that is both added and skipped.

    Loads that a person adds come first, then those that are always measured, then of each touched part the most wanted load,
    then of each the next. Each is given the blocks of its first look; minutes that are left go to more looks, in that order.
    """
    _require_known(table, asked)
    reasons = _find_reasons(table, asked)
    blocks = _fit(table, asked, list(reasons))
    touching = [rule for rule in table.rules if rule.find_touched(asked.changed)]
    known = {path for rule in touching for path in rule.find_touched(asked.changed)}
    return Selection(
        minutes=asked.minutes,
        selected=tuple(_describe_selected(table, asked.model, load, blocks[load], reasons[load]) for load in blocks),
        unselected=tuple(_list_unselected(table, asked, reasons, blocks)),
        also=tuple(dict.fromkeys(rule.also for rule in touching if rule.also)),
        unknown=tuple(path for path in asked.changed if path not in known),
    )


def choose_listed(table: SelectionTable, listed: Sequence[str], changed: Sequence[str], minutes: float) -> tuple[str, ...]:
    """Those of the `listed` scenarios that a change is measured under, in their order.

    The first is always measured, and so is what no rule can name: a scenario of one's own. Of the others stay those that the
    touched parts ask for, the most wanted first, as long as the minutes hold their first looks.
    """
    pairs, shipped, priced = list_pairs(), list_scenarios(), {price.load for price in table.prices}
    places = {name: (pairs[name].model, pairs[name].load) if name in pairs else (CPU, name) for name in listed}
    costs = {name: _price_first_look(table, *place) for name, place in places.items() if place[1] in priced and name in shipped}
    ranks: dict[str, int] = {}
    for model in dict.fromkeys(model for model, _ in places.values()):
        reasons = _find_reasons(table, SelectionRequest(changed=tuple(changed), minutes=minutes, model=model))
        ranks |= {name_scenario(model, load): rank for rank, load in enumerate(reasons)}
    chosen = {name for name in listed if name == listed[0] or name not in costs}
    left = minutes - sum(costs.get(name, 0.0) for name in chosen)
    for name in sorted((name for name in costs if name in ranks and name not in chosen), key=lambda name: ranks[name]):
        if costs[name] <= left:
            chosen.add(name)
            left -= costs[name]
    return tuple(name for name in listed if name in chosen)


def _list_models() -> tuple[str, ...]:
    return tuple(dict.fromkeys(pair.model for pair in list_pairs().values()))


def name_scenario(model: str, load: str) -> str:
    """What the scenario of a model and a load is called."""
    return load if model == CPU else f"{model}-{load}"


def _require_known(table: SelectionTable, asked: SelectionRequest) -> None:
    models = (CPU, *_list_models())
    if asked.model not in models:
        raise InputError(f"--model {asked.model}: no such model ships; {suggest(asked.model, models)}")
    for load in (*asked.added, *asked.skipped):
        table.find_price(load)
    if both := [load for load in asked.added if load in asked.skipped]:
        raise InputError(f"--add {both[0]}: --skip leaves the same load out; give one of the two")


def _find_reasons(table: SelectionTable, asked: SelectionRequest) -> Mapping[str, str]:
    """Each wanted load, in the order of want, with the reason that named it first."""
    reasons: dict[str, str] = {}
    for load, reason in _list_reasons(table, asked):
        if load not in asked.skipped:
            reasons.setdefault(load, reason)
    return reasons


def _list_reasons(table: SelectionTable, asked: SelectionRequest) -> Iterator[tuple[str, str]]:
    yield from ((load, "asked for by --add") for load in asked.added)
    yield from ((load, "every change") for load in _list_always(table, asked.model))
    columns = [
        [(load, f"{rule.part}: {_name_paths(touched)}") for load in rule.list_wanted(asked.model)]
        for rule in table.rules
        if (touched := rule.find_touched(asked.changed))
    ]
    yield from (pair for row in zip_longest(*columns) for pair in row if pair is not None)


def _list_always(table: SelectionTable, model: str) -> tuple[str, ...]:
    """What every change is measured under: the loads of the table; where `model` meets none of them, its first with a price."""
    always = table.always_cpu if model == CPU else table.always
    met = [pair.load for pair in list_pairs().values() if pair.model == model]
    if not met or set(always) & set(met):
        return always
    priced = {price.load for price in table.prices}
    return tuple(load for load in met if load in priced)[:1]


def _name_paths(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"


def _fit(table: SelectionTable, asked: SelectionRequest, loads: Sequence[str]) -> Mapping[str, int]:
    """The blocks of each load that fits. Raise InputError where what every change is measured under does not."""
    blocks: dict[str, int] = {}
    left_s = 60 * asked.minutes
    looks = {load: _list_looks(asked.model, load) for load in loads if name_scenario(asked.model, load) in list_scenarios()}
    # Every load's first look before any load's second.
    for number in range(max(map(len, looks.values()), default=0)):
        for load in (load for load in looks if number < len(looks[load])):
            had = looks[load][number - 1] if number else 0
            cost_s = _price(table, asked.model, load, looks[load][number]) - _price(table, asked.model, load, had)
            if blocks.get(load, 0) == had and cost_s <= left_s:
                blocks[load] = looks[load][number]
                left_s -= cost_s
    if missing := [load for load in _list_always(table, asked.model) if load in looks and load not in blocks]:
        needed = _price_first_look(table, asked.model, missing[0])
        raise InputError(
            f"--minutes {asked.minutes:g}: {missing[0]} takes {needed:.1f} to its first look; give more, or --skip it"
        )
    return {load: blocks[load] for load in loads if load in blocks}


def _price_first_look(table: SelectionTable, model: str, load: str) -> float:
    return _price(table, model, load, _list_looks(model, load)[0]) / 60


def _price(table: SelectionTable, model: str, load: str, blocks: int) -> float:
    """Seconds of a session of so many blocks, none of which is no session."""
    first_s = table.first_block_s if blocks and model != CPU else 0.0
    return table.find_price(load).block_s * blocks + first_s


def _list_looks(model: str, load: str) -> tuple[int, ...]:
    return load_scenario(name_scenario(model, load)).blocks.looks


def _describe_selected(table: SelectionTable, model: str, load: str, blocks: int, reason: str) -> SelectedScenario:
    price = table.find_price(load)
    return SelectedScenario(
        scenario=name_scenario(model, load),
        blocks=blocks,
        minutes=round(_price(table, model, load, blocks) / 60, 1),
        is_reckoned=model not in price.measured,
        reason=reason,
        gpus=load_scenario(name_scenario(model, load)).server.gpus,
    )


def _list_unselected(
    table: SelectionTable, asked: SelectionRequest, reasons: Mapping[str, str], blocks: Mapping[str, int]
) -> Iterator[UnselectedScenario]:
    """The scenarios of the model that the table names and the choice leaves out: those that were wanted first."""
    for load in dict.fromkeys((*reasons, *_list_always(table, asked.model), *table.list_loads())):
        scenario = name_scenario(asked.model, load)
        if load in blocks or scenario not in list_scenarios():
            continue
        why = _explain(table, asked, load, reasons)
        yield UnselectedScenario(scenario=scenario, is_wanted=load in reasons or load in asked.skipped, reason=why)


def _explain(table: SelectionTable, asked: SelectionRequest, load: str, reasons: Mapping[str, str]) -> str:
    if load in asked.skipped:
        return "left out by --skip"
    if load not in reasons:
        return "no touched path asks for it"
    needed = _price_first_look(table, asked.model, load)
    return f"its first look takes {needed:.1f} minutes, which are not left ({reasons[load]})"
