"""The table of engines: what a row says is known to the rooms that read it."""

import re
from collections import defaultdict

import pytest

from perfgate.engines.table import CACHE_PLACES, ENGINES, PACKAGES, find_backend
from perfgate.metrics import METRICS
from perfgate.results.readings import READINGS

GAUGES = {"running_requests", "queued_requests", "token_usage"}
GRAPHS = {"decode_graphs", "decode_others", "prefill_graphs", "prefill_others"}
COUNTERS = {"hits", "prompts", "queue_s", "queued", "retracted", "generated", "verified", "transfers", "transfer_ms", *GRAPHS}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_rows__name_only_what_is_read(engine):
    assert set(engine.phases) <= METRICS.keys()
    assert set(engine.work) <= READINGS.keys()
    assert (engine.gauges.keys() - GAUGES - {"capacity"}, engine.counters.keys() - COUNTERS) == (set(), set())


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_rows__keep_a_server_from_the_network(engine):
    assert engine.env["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_rows__every_line_of_a_log_is_an_expression(engine):
    groups = [re.compile(pattern).groups for pattern in engine.phases.values()]

    assert set(groups) <= {1}, "a phase is the one number of its line"
    assert all(re.compile(pattern).groups <= 1 for pattern in engine.work.values())
    assert engine.batch is None or re.compile(engine.batch).groupindex.keys() == GAUGES


def test_cache_places__no_two_variables_share_one():
    places = defaultdict(set)
    for variable, place in CACHE_PLACES.items():
        places[place].add(variable)

    assert {place: found for place, found in places.items() if len(found) > 1} == {}
    assert "TVM_FFI_CACHE_DIR" in CACHE_PLACES


@pytest.mark.parametrize(
    ("backend", "engine"), [("sglang", "sglang"), ("sglang-oai", "sglang"), ("vllm-chat", "vllm"), ("lmdeploy", "sglang")]
)
def test_find_backend__by_how_its_name_begins(backend, engine):
    assert find_backend(backend) == engine


def test_packages__sglang_is_always_a_fact():
    assert PACKAGES == ("sglang", "vllm")
