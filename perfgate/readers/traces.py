"""Where the time of a profiled window went: kernels on a GPU, operators on a CPU, summed by name from PyTorch's traces.

A trace is the JSON of Chrome's trace viewer, packed or not. Kernels of one stream never nest; operators do, so an operator's
time is its own without that of the operators it called, and the sum over all of them is the time that was spent.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from perfgate.errors import EvidenceError
from perfgate.evidence import KernelTime, KernelTrace, TracedLayer, TraceKind
from perfgate.readers.traced_layers import sum_layers

_KERNELS = {"kernel", "gpu_memcpy", "gpu_memset"}
_OPERATORS = {"cpu_op"}


def read_traces(paths: Iterable[Path]) -> KernelTrace:
    """Read the traces of one window, one file a rank, and sum them. Raise EvidenceError naming the file that is none."""
    traces = [read_trace(path) for path in paths]
    if not traces:
        raise EvidenceError("the profiler wrote no trace")
    # A rank without a kernel among ranks with some launched nothing; its operators are another kind of time.
    kind: TraceKind = "kernel" if any(trace.kind == "kernel" for trace in traces) else "operator"
    times: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    layers: Counter[TracedLayer] = Counter()
    for trace in traces:
        for name, spent in trace.spent.items() if trace.kind == kind else ():
            times[name] += spent.time_us
            counts[name] += spent.count
        layers.update(trace.layers if trace.kind == kind else {})
    return KernelTrace(
        kind=kind,
        spent={name: KernelTime(time_us=times[name], count=counts[name]) for name in times},
        layers=layers,
    )


def read_trace(path: Path) -> KernelTrace:
    """Read one file. Raise EvidenceError when it is truncated, empty, no trace, or when nothing ran while it was recorded."""
    events = list(_list_events(path))
    kernels = [event for event in events if str(event.get("cat")) in _KERNELS]
    operators = [event for event in events if str(event.get("cat")) in _OPERATORS]
    if not kernels and not operators:
        raise EvidenceError(f"{path}: holds neither kernels nor operators: nothing ran while it was recorded")
    own = [(event, event["dur"]) for event in kernels] if kernels else _find_own_times(operators)
    times: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    for event, time_us in own:
        times[str(event.get("name"))] += time_us
        counts[str(event.get("name"))] += 1
    return KernelTrace(
        kind="kernel" if kernels else "operator",
        spent={name: KernelTime(time_us=times[name], count=counts[name]) for name in times},
        layers=sum_layers(_list_streams(own)),
    )


def _list_streams(own: Iterable[tuple[dict[str, Any], float]]) -> Iterator[list[tuple[str, float]]]:
    """Names and times of each stream or thread, in the order in which they ran."""
    streams: defaultdict[object, list[tuple[dict[str, Any], float]]] = defaultdict(list)
    for event, time_us in own:
        streams[str(event.get("pid")), str(event.get("tid"))].append((event, time_us))
    for events in streams.values():
        events.sort(key=lambda one: one[0]["ts"])
        yield [(str(event.get("name")), time_us) for event, time_us in events]


def _list_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete events: those with a beginning and a duration."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        found = orjson.loads(content)
    except (OSError, EOFError, zlib.error) as error:
        raise EvidenceError(f"{path}: truncated or no trace ({error}); profile again") from None
    except orjson.JSONDecodeError as error:
        raise EvidenceError(f"{path}: not valid JSON ({error}); profile again") from None
    events = found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(events, list):
        raise EvidenceError(f"{path}: holds no traceEvents; give a trace of torch.profiler")
    for event in events:
        if isinstance(event, dict) and event.get("ph") == "X" and _is_timed(event):
            yield event


def _is_timed(event: Mapping[str, Any]) -> bool:
    return all(isinstance(event.get(key), int | float) for key in ("ts", "dur"))


def _find_own_times(operators: Iterable[dict[str, Any]]) -> list[tuple[dict[str, Any], float]]:
    """Take from each operator the time of those that it called in its thread."""
    threads: defaultdict[object, list[dict[str, Any]]] = defaultdict(list)
    for event in operators:
        threads[str(event.get("pid")), str(event.get("tid"))].append(event)
    own: list[tuple[dict[str, Any], float]] = []
    for events in threads.values():
        # Callers begin no later than what they call, and last no shorter.
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        callers: list[int] = []
        for event in events:
            while callers and _end(own[callers[-1]][0]) <= event["ts"]:
                callers.pop()
            if callers:
                caller, left = own[callers[-1]]
                own[callers[-1]] = (caller, left - event["dur"])
            callers.append(len(own))
            own.append((event, event["dur"]))
    return own


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"] + event["dur"])
