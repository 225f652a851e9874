"""Slower candidates: recorded windows whose requests were lengthened as each cause would, and one that really was slower."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from perfgate.scenario.schema import parse_scenario
from tests.fakes import recorded
from tests.faults.checking import Edit, check
from tests.faults.fault import Answer, Fault, Kind, Where
from tests.faults.recording import Recording, list_gaps, read_gaps

Gaps = np.ndarray
SLOWER = ("REGRESSION",)
FEWEST_GAPS = 23
"""Of a request of `mixed-c16`, which has at least 24 tokens."""


def longer(ratio: float) -> Callable[[Gaps], Gaps]:
    return lambda gaps: gaps * (1 + ratio)


def later(seconds: float) -> Callable[[Gaps], Gaps]:
    return lambda gaps: gaps + seconds


def pause(seconds: float, every: int = 0) -> Callable[[Gaps], Gaps]:
    """Hold up every running request at one step in `every`, or once in the first request of each slot."""

    def delay(gaps: Gaps) -> Gaps:
        slower = gaps.copy()
        if every:
            slower[:, every - 1 :: every] += seconds
        else:
            slower[:16, FEWEST_GAPS // 2] += seconds
        return slower

    return delay


def slow(delay: Callable[[Gaps], Gaps], wait_s: float = 0.0) -> Edit:
    return lambda recording: recording.slow(delay, wait_s=wait_s)


def halve_batch(recording: Recording) -> None:
    """Half of the requests wait until the other half is done; with eight in a batch a step takes 0.8 of the time."""
    for_turn = 99 * 0.0079 * 0.8
    recording.slow(longer(-0.2), wait_s=for_turn)


def grow_slower(recording: Recording) -> None:
    """Each window of a start is 2 % slower than the one before."""
    entries = [entry for entry in recording.index if entry["arm"] == "candidate"]
    for place in range(max(entry["index"] for entry in entries) + 1):
        some = [entry for entry in entries if entry["index"] == place]
        others = [entry for entry in entries if entry["index"] != place]
        for entry in others:
            entry["arm"] = "another"
        recording.slow(longer(0.02 * place)) if some[0]["role"] == "measured" else stretch(recording, 0.02 * place)
        for entry in others:
            entry["arm"] = "candidate"


def stretch(recording: Recording, ratio: float) -> None:
    for entry in recording.pick():
        recording.stretch(entry, recording.read(entry), 1 + ratio)


def compile_once(recording: Recording) -> None:
    """The first measured window of each of the candidate's starts stands still for two seconds."""
    for start in {entry["start"] for entry in recording.pick()}:
        entry = next(entry for entry in recording.pick(role="measured") if entry["start"] == start)
        line = recording.read(entry)
        line["itls"] = list_gaps(pause(2.0)(read_gaps(line)))
        line["mean_e2e_latency_ms"] += 1000 * 2.0 * 16 / line["completed"]
        recording.stretch(entry, line, (line["duration"] + 2.0) / line["duration"])


def keep(_: Recording) -> None:
    """The recording is slow as it is."""


def start_slowly(recording: Recording) -> None:
    """The candidate takes 1.6 times as long to get ready, and the scenario gates that."""
    starts = {entry["start"] for entry in recording.pick()}
    for event in recording.events:
        if event["event"] == "server_ready" and event["start"] in starts:
            event["ready_s"] *= 1.6
    recording.scenario = recording.scenario.replace('resident = "both"', 'resident = "one"') + "[gates.ready_s]\n"


def count(reading: str, base: float, candidate: float, scenario: str = "") -> Edit:
    """Every window tells a reading; `scenario` is a line before the others of the scenario."""

    def edit(recording: Recording) -> None:
        for entry in recording.index:
            entry.setdefault("telemetry", {})[reading] = base if entry["arm"] == "base" else candidate
        recording.scenario = scenario + recording.scenario

    return edit


def keep_fewer(recording: Recording) -> None:
    """A scenario that keeps its prefix cache, of which the candidate's prompts find less."""
    recording.scenario = recording.scenario.replace("[load]\n", "[load]\nkeep_cache = true\n", 1)
    recording.session["workload_hash"] = parse_scenario(recording.scenario, "doctored").workload_hash
    count("cache_hit_rate", 0.30, 0.24)(recording)


def leave_behind(request_bytes: int) -> Edit:
    """Each request of the candidate leaves memory behind on the host, and the scenario gates its growth."""

    def edit(recording: Recording) -> None:
        for entry in recording.pick():
            served = recording.read(entry)["completed"] * (entry["index"] + 1)
            entry["telemetry"]["server_memory_bytes"] += request_bytes * served
        recording.scenario += "[gates.server_memory_growth]\n"

    return edit


def row(
    name: str,
    made: str,
    edit: Edit,
    words: str = "Output throughput is worse",
    missed: str = "",
    **options: Any,
) -> Fault:
    return Fault(
        name=name,
        kind=Kind.SLOW,
        made=made,
        where=Where.RECORDED,
        expected=SLOWER,
        words=words,
        run=check(edit, **options),
        missed=missed,
    )


def judge_both_loads(folder: Path) -> Answer:
    """Judge mixed lengths as they were measured, and equal ones with a slower candidate."""
    names = {
        "mixed": check(keep, source=recorded.EQUAL.name, blocks=(1, 2, 3, 4)),
        "closed": check(slow(longer(0.06)), source="mxfp4-closed-c16-aa-1"),
    }
    for name in names:
        (folder / name).mkdir()
    answers = [run(folder / name) for name, run in names.items()]
    return Answer(
        got=" and ".join(answer.got for answer in answers),
        told=answers[1].told,
        lost=tuple(lost for answer in answers for lost in answer.lost),
    )


SLOW = (
    row(
        "GPU 6 % slower",
        "measured: a spin kernel of 15 us in every MoE block",
        keep,
        "Median ITL is worse",
        source=recorded.SLOWER.name,
    ),
    row("gaps 10 % longer", "like a slower GPU: every ITL 10 % longer", slow(longer(0.10))),
    row(
        "gaps 3 % longer",
        "like a lost fusion: every ITL 3 % longer",
        slow(longer(0.03)),
        "Median ITL is worse",
        blocks=(1, 2, 3, 4),
    ),
    row("gaps 6 % longer", "like a wrong tile config: every ITL 6 % longer", slow(longer(0.06)), "Median ITL is worse"),
    row(
        "gaps 0.4 ms longer",
        "like a sleep in the scheduler: every ITL 0.4 ms longer",
        slow(later(0.0004)),
        "Median ITL is worse",
    ),
    row("gaps 4 ms longer", "like missing CUDA graphs: every ITL 4 ms longer", slow(later(0.004)), "Median ITL is worse"),
    row(
        "one pause in every window",
        "like a JIT cache that stores nothing: one pause of 0.4 s in every window",
        slow(pause(0.4)),
    ),
    row(
        "one pause in each start",
        "like a JIT cache miss in a measured window: one pause of 2 s in the first window of each start, four blocks",
        compile_once,
        missed="with one slow window of three, four blocks cannot tell a loss from scatter",
        blocks=(1, 2, 3, 4),
    ),
    row(
        "one stall in 40 steps",
        "every 40th ITL 16 ms longer",
        slow(pause(0.016, 40)),
        missed="3.5 % of throughput, which fails from 4.0 % after these four blocks",
        blocks=(1, 2, 3, 4),
    ),
    row("half of the requests wait", "like a smaller batch limit: half of the requests wait for the others", halve_batch),
    row(
        "TTFT 0.1 s longer",
        "like a slower prefill: every TTFT 0.1 s longer",
        slow(longer(0.0), wait_s=0.1),
    ),
    row(
        "slow start, recorded",
        "the time to ready is 1.6 times as long; ready_s gates",
        start_slowly,
        "Time to ready is worse",
        source="mxfp4-mixed-c16-graphs-aa-3",
        blocks=(1, 2, 3, 4),
    ),
    row("slower from window to window", "each window of a start is 2 % slower than the one before", grow_slower),
    row(
        "40 KiB of each request kept",
        "the candidate's host memory grows by 40 KiB a request, 0.3 % in a start; server_memory_growth gates",
        leave_behind(40 * 1024),
        "Growth of server memory is worse",
        blocks=(1, 2, 3, 4),
    ),
    row(
        "KV pool 3 % smaller",
        "the candidate's pool holds 63,570 tokens, the base's 65,536; nothing is slower",
        count("kv_capacity_tokens", 65536.0, 63570.0),
        "KV capacity 65,536 tokens to 63,570 tokens",
    ),
    row(
        "decode graphs that miss",
        "one decode step in 20 of the candidate replays no graph; nothing is slower",
        count("decode_graph_share", 1.0, 0.95),
        "Decode steps in a CUDA graph 100.0 % to 95.0 %",
    ),
    row(
        "prefill graphs that miss",
        "no prefill step of the candidate replays a graph; nothing is slower",
        count("prefill_graph_share", 0.9, 0.0),
        "Prefill steps in a CUDA graph 90.0 % to 0.0 %",
    ),
    row(
        "accept length 5 % shorter",
        "a verified draft yields 2.85 tokens instead of 3; nothing is slower",
        count("accept_length", 3.0, 2.85),
        "Accept length 3.000 tokens a step to 2.850 tokens a step",
    ),
    row(
        "prefix hits 20 % fewer",
        "the cache is kept; 24 % of the candidate's prompt tokens come from it instead of 30 %; nothing is slower",
        keep_fewer,
        "Prefix cache hits 30.00 % to 24.00 %",
    ),
    row(
        "transfer throttled",
        "measured: prefill and decode apart, keys and values over TCP (UCX_TLS=tcp,cuda_copy)",
        keep,
        "KV transfer time 26.3 ms to 144.6 ms",
        source="mxfp4-pd-closed-c16-throttled-2",
        blocks=(1,),
    ),
    row(
        "requests retracted where it is allowed",
        "the candidate retracts two requests in each window of a scenario that allows it; nothing is slower",
        count("requests_retracted", 0.0, 2.0, "allow_retraction = true\n"),
        "Requests retracted 0 to 2",
    ),
    Fault(
        name="slower in one load only",
        kind=Kind.SLOW,
        made="two folders: mixed lengths, unchanged; equal lengths, every ITL 6 % longer",
        where=Where.RECORDED,
        expected=("PASS and REGRESSION",),
        words="Median ITL is worse",
        run=judge_both_loads,
    ),
)
