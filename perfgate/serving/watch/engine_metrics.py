"""What the engine says of itself, at its endpoint and in its log: requests that run and wait, tokens held, prefixes found.

Gauges are read while the window runs, counters before and after. A reading stops the server's HTTP loop for as long as it takes
to put all metrics together, so it is made seldom, and its length is recorded. The log's lines cost the server nothing more.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from perfgate.engines.table import ENGINES
from perfgate.results.readings import (
    ACCEPT_LENGTH,
    CACHE_HIT_RATE,
    DECODE_GRAPH_SHARE,
    KV_CAPACITY,
    KV_TRANSFER_MS,
    PREFILL_GRAPH_SHARE,
    REQUESTS_RETRACTED,
)
from perfgate.serving.engine.conversation import open_http
from perfgate.serving.engine.server import read_lines

_SHARES = frozenset({"token_usage"})
"""Gauges that are shares: of several data ranks or services the largest counts, of other gauges the sum."""

_EQUAL_RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})
"""Labels of ranks that hold parts of one model and report the same: SGLang's tensor ranks all give the size of the one pool."""

_Told = dict[str, dict[frozenset[tuple[str, str]], float]]
"""Values by the name of a metric and the labels of their source."""

_RATIOS = (
    (CACHE_HIT_RATE, "hits", "prompts"),
    ("queue_wait_s", "queue_s", "queued"),
    (ACCEPT_LENGTH, "generated", "verified"),
    (KV_TRANSFER_MS, "transfer_ms", "transfers"),
)
"""Readings that are what one counter grew by over what another did."""

_SPLITS = (
    (DECODE_GRAPH_SHARE, "decode_graphs", "decode_others"),
    (PREFILL_GRAPH_SHARE, "prefill_graphs", "prefill_others"),
)
"""Readings that are the share of the first of two counters that grow in turns."""

_GAUGES = tuple(dict.fromkeys(name for engine in ENGINES.values() for name in engine.gauges))
_COUNTERS = tuple(dict.fromkeys(name for engine in ENGINES.values() for name in engine.counters))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One reading, which took `took_s` seconds.

    `gauges` holds running_requests, queued_requests, token_usage and the pool's size in tokens (`capacity`). `counters` grow
    since the server started: prompt tokens (`prompts`) and those of them found in the cache (`hits`), requests that left the
    queue (`queued`) and the seconds that they spent there (`queue_s`), requests put back for want of tokens (`retracted`),
    steps of decode and prefill that replayed a graph and others, tokens `generated` and drafts `verified`, `transfers` of a
    prompt's keys and values to another server and the milliseconds that they took. One that was not increased yet is absent.
    """

    took_s: float
    gauges: Mapping[str, float]
    counters: Mapping[str, float]

    @property
    def is_idle(self) -> bool:
        """Whether the engine had nothing to do: the load generator was still preparing its requests, or had ended."""
        return self.gauges.get("running_requests", 1.0) + self.gauges.get("queued_requests", 0.0) == 0


def scrape(*urls: str, timeout_s: float = 5.0) -> Scrape | None:
    """Read the metrics at `urls`, one a service; None without one or when one gives none: no fault of the measurement."""
    if not urls:
        return None
    begun = time.perf_counter()
    texts = []
    try:
        with open_http(timeout_s) as client:
            for url in urls:
                answer = client.get(url)
                if answer.status_code != httpx.codes.OK:
                    return None
                texts.append(answer.text)
    except httpx.HTTPError:
        return None
    took_s = time.perf_counter() - begun
    return parse_metrics(*texts, took_s=took_s)


def parse_metrics(*texts: str, took_s: float) -> Scrape | None:
    """Pick what we know from Prometheus texts, one a service; None when one is no such text."""
    found: _Told = {}
    try:
        for number, text in enumerate(texts):
            _add(found, text, frozenset({("service", str(number))}))
    except (ValueError, KeyError, IndexError, OverflowError):
        return None
    engines = ENGINES.values()
    gauges = {name: _first(found, (engine.gauges.get(name, "") for engine in engines)) for name in _GAUGES}
    counters = {name: _first(found, (engine.counters.get(name, "") for engine in engines)) for name in _COUNTERS}
    return Scrape(
        took_s=took_s,
        gauges={name: max(values) if name in _SHARES else sum(values) for name, values in gauges.items() if values},
        counters={name: sum(values) for name, values in counters.items() if values},
    )


def _add(found: _Told, text: str, service: frozenset[tuple[str, str]]) -> None:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name, value = sample.name.rpartition(":")[2], float(sample.value)
            teller = service.union((label, given) for label, given in sample.labels.items() if label not in _EQUAL_RANKS)
            for key in (name, f"{name}[{sample.labels.get('mode', '')}]"):
                told = found.setdefault(key, {})
                told[teller] = max(value, told.get(teller, value))


def _first(found: _Told, names: Iterable[str]) -> list[float]:
    return next((list(found[name].values()) for name in names if name in found), [])


def read_batches(log: Path, known: int, pattern: str | None) -> list[Mapping[str, float]]:
    """The gauges of each batch that a server's log tells of behind its first `known` bytes; a torn line is left out."""
    found = (re.search(pattern, line) for line in read_lines(log, known)) if pattern else ()
    return [{name: float(value) for name, value in match.groupdict().items()} for match in found if match]


def summarize_engine(
    before: Scrape | None, during: Sequence[Scrape], after: Scrape | None, batches: Sequence[Mapping[str, float]] = ()
) -> dict[str, float]:
    """Reduce a window's readings; a gauge that was not read while the engine worked is absent.

    What the log has of `batches` takes precedence over the endpoint: there are more of them, and none is stale.
    """
    told: dict[str, float] = {"engine_scrapes": float(len(during))}
    gauges = batches or [one.gauges for one in during if not one.is_idle]
    for name, reduce in (("running_requests", _mean), ("queued_requests", _mean), ("token_usage", max)):
        values = [one[name] for one in gauges if name in one]
        if values:
            told[name] = reduce(values)
    everything = [one for one in (before, *during, after) if one is not None]
    if everything:
        told["engine_scrape_max_s"] = max(one.took_s for one in everything)
    if before is not None and after is not None:
        grown = {name: after.counters.get(name, 0.0) - before.counters.get(name, 0.0) for name in _COUNTERS}
        told |= {name: grown[part] / grown[whole] for name, part, whole in _RATIOS if grown[whole] > 0}
        for name, part, rest in _SPLITS:
            if grown[part] + grown[rest] > 0:
                told[name] = grown[part] / (grown[part] + grown[rest])
        told |= {KV_CAPACITY: after.gauges["capacity"]} if "capacity" in after.gauges else {}
        told[REQUESTS_RETRACTED] = max(grown["retracted"], 0.0)
    return told


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
