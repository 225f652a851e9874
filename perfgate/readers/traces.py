"""Where the time of a profiled window went: kernels on a GPU, operators on a CPU, summed by name from PyTorch's traces.

A trace is the JSON of Chrome's trace viewer, packed or not. Kernels of one stream never nest; operators do, so an operator's
time is its own without that of the operators it called, and the sum over all of them is the time that was spent. Which layer of
the model a kernel belongs to is told by its name, and by what runs around it.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from perfgate.errors import EvidenceError
from perfgate.evidence import KernelTime, KernelTrace, LaunchShape, TracedLayer, TraceKind
from perfgate.storage.bounded import read_bounded, unpack_gzip

_KERNELS = {"kernel", "gpu_memcpy", "gpu_memset"}
_OPERATORS = {"cpu_op"}
_NAMED: Mapping[TracedLayer, re.Pattern[str]] = {
    "MoE": re.compile(r"moe|expert|router|top_?k|_matmul_ogs", re.IGNORECASE),
    "attention": re.compile(
        r"attention|attn|fmha|flash_?(fwd|mla)|mla|rope|rotary|kv_?cache|_fwd_(grouped_)?kernel|BatchDecode|BatchPrefill"
        r"|PagedKV|MergeState|flash::",
        re.IGNORECASE,
    ),
    "norms": re.compile(r"(rms|layer)_?norm", re.IGNORECASE),
    "communication": re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE),
}
"""Names of kernels and operators of SGLang, FlashInfer, FlashAttention, NCCL; the first row that fits decides."""

_LAYERS: tuple[TracedLayer, ...] = ("MoE", "attention")
_ENDS: tuple[TracedLayer, ...] = ("norms", "communication")
_DENSE = re.compile(r"gemm|nvjet|cutlass|splitK|aten::(mm|addmm|bmm|linear|matmul)$|packed_linear", re.IGNORECASE)


def read_traces(paths: Iterable[Path]) -> KernelTrace:
    """Read the traces of one window, one file a rank, and sum them. Raise EvidenceError naming the file that is none."""
    traces = [read_trace(path) for path in paths]
    if not traces:
        raise EvidenceError("the profiler wrote no trace")
    # A rank without a kernel among ranks with some launched nothing; its operators are another kind of time.
    kind: TraceKind = "kernel" if any(trace.kind == "kernel" for trace in traces) else "operator"
    tally, layers = _Tally(), Counter[TracedLayer]()
    for trace in (trace for trace in traces if trace.kind == kind):
        for name, spent in trace.spent.items():
            tally.add(name, spent)
        layers.update(trace.layers)
    return KernelTrace(kind=kind, spent=tally.sum_up(), layers=layers)


class _Tally:
    """Sums by name."""

    def __init__(self) -> None:
        self._times: defaultdict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()
        self._launches: defaultdict[str, Counter[LaunchShape]] = defaultdict(Counter)

    def add(self, name: str, spent: KernelTime) -> None:
        """Add calls under one name."""
        self._times[name] += spent.time_us
        self._counts[name] += spent.count
        self._launches[name].update(spent.launches)

    def add_call(self, name: str, time_us: float, shape: LaunchShape | None) -> None:
        """Add one call."""
        self._times[name] += time_us
        self._counts[name] += 1
        if shape:
            self._launches[name][shape] += 1

    def sum_up(self) -> dict[str, KernelTime]:
        """What was added, by name."""
        return {
            name: KernelTime(time_us=time_us, count=self._counts[name], launches=dict(self._launches[name]))
            for name, time_us in self._times.items()
        }


def read_trace(path: Path) -> KernelTrace:
    """Read one file. Raise EvidenceError when it is truncated, empty, no trace, or when nothing ran while it was recorded."""
    events = list(_list_events(path))
    kernels = [event for event in events if str(event.get("cat")) in _KERNELS]
    operators = [event for event in events if str(event.get("cat")) in _OPERATORS]
    if not kernels and not operators:
        raise EvidenceError(f"{path}: holds neither kernels nor operators: nothing ran while it was recorded")
    own = [(event, event["dur"]) for event in kernels] if kernels else _find_own_times(operators)
    tally = _Tally()
    for event, time_us in own:
        tally.add_call(str(event.get("name")), time_us, _read_shape(event))
    return KernelTrace(
        kind="kernel" if kernels else "operator",
        spent=tally.sum_up(),
        layers=sum_layers(_list_streams(own)),
    )


def _read_shape(event: Mapping[str, Any]) -> LaunchShape | None:
    """How a kernel was launched; None for a copy, for an operator, and where the profiler did not write it down whole."""
    match event.get("args"):
        case {
            "grid": [int(x), int(y), int(z)],
            "block": [int(width), int(height), int(depth)],
            "registers per thread": int(registers),
            "shared memory": int(shared),
        }:
            return LaunchShape(grid=(x, y, z), block=(width, height, depth), registers=registers, shared_bytes=shared)
    return None


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
        with path.open("rb") as file:
            content = read_bounded(file, path)
        content = unpack_gzip(content, path) if path.suffix == ".gz" else content
        found = orjson.loads(content)
    except (OSError, EOFError, zlib.error) as error:
        raise EvidenceError(f"{path}: truncated or no trace ({error}); profile again") from None
    except orjson.JSONDecodeError as error:
        raise EvidenceError(f"{path}: not valid JSON ({error}); profile again") from None
    events = found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(events, list):
        raise EvidenceError(f"{path}: holds no traceEvents; give a trace of torch.profiler")
    for event in events:
        match event:
            case {"ph": "X", "ts": int() | float(), "dur": int() | float()}:
                yield event


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


def sum_layers(runs: Iterable[Sequence[tuple[str, float]]]) -> dict[TracedLayer, float]:
    """Microseconds of each kind of layer, from the names and times of each stream in the order in which they ran.

    A norm or a message between GPUs ends a layer, so a name that tells no layer belongs to the one that runs around it. What
    stands in none, as the head, a dense block, sampling and copies between steps, is a dense product by its name, or the rest.
    """
    found: defaultdict[TracedLayer, float] = defaultdict(float)
    for run in runs:
        for layer, (_, time_us) in zip(_tell(tuple(name for name, _ in run)), run, strict=True):
            found[layer] += time_us
    return dict(found)


def _tell(names: Sequence[str]) -> Iterator[TracedLayer]:
    layers = {name: _find_named(name) for name in set(names)}
    alone: Mapping[str, TracedLayer] = {name: "dense products" if _DENSE.search(name) else "the rest" for name in layers}
    known = tuple(layers[name] for name in names)
    before, after = _carry(known), tuple(reversed(_carry(known[::-1])))
    for name, own, one, other in zip(names, known, before, after, strict=True):
        yield own or _find_around(one, other) or alone[name]


def _find_around(before: TracedLayer | None, after: TracedLayer | None) -> TracedLayer | None:
    if before in _LAYERS and after in (before, *_ENDS):
        return before
    return after if before in _ENDS and after in _LAYERS else None


def _find_named(name: str) -> TracedLayer | None:
    return next((layer for layer, pattern in _NAMED.items() if pattern.search(name)), None)


def _carry(known: Iterable[TracedLayer | None]) -> tuple[TracedLayer | None, ...]:
    """Beside each place the last layer that was known by then."""
    last: TracedLayer | None = None
    carried = []
    for layer in known:
        last = layer or last
        carried.append(last)
    return tuple(carried)
