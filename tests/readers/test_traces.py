"""Traces of the real profiler, made here on the CPU, and small ones whose sums are known."""

import gzip
import json

import pytest

from perfgate.errors import EvidenceError
from perfgate.evidence import KernelTime, KernelTrace, LaunchShape
from perfgate.readers.traces import read_trace, read_traces, sum_layers
from perfgate.results.profiling.attribution import attribute
from perfgate.results.profiling.profiles import read_attribution
from tests.fakes.recorded import SPINNING, bring_fused

STEP = (
    *("embedding", "RMSNormKernel", "nvjet_qkv", "fused_rope_kernel", "store_kvcache", "_fwd_grouped_kernel_stage1", "nvjet_o"),
    *("FusedAddRMSNormKernel", "tinygemm_kernel", "_router_triton_kernel", "fused_moe_kernel", "swiglu", "fused_moe_kernel"),
    *("spin", "FusedAddRMSNormKernel", "nvjet_head", "ArgMax"),
)
"""A step of one layer, as an H200 ran it: 1 us each."""


def event(name, ts, dur, cat="kernel", tid=7):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": tid, "args": {}}


def write(path, *events, **more):
    content = json.dumps({"schemaVersion": 1, "traceEvents": list(events), **more}).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """Record a function with the real profiler, on the CPU, as SGLang does."""
    torch = pytest.importorskip("torch", reason="needs torch, which the CPU engine installs")
    folder = tmp_path_factory.mktemp("traces")

    def record(work, name="t.trace.json.gz"):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            work(torch, torch.ones(32, 32))
        profiler.export_chrome_trace(str(folder / name))
        return folder / name

    return record


def multiply(torch, matrix):
    for _ in range(5):
        torch.mm(matrix, matrix)


def multiply_and_sort(torch, matrix):
    multiply(torch, matrix)
    for _ in range(10):
        torch.sort(matrix)


def test_read_trace__of_the_real_profiler(profile):
    trace = read_trace(profile(multiply))

    assert trace.kind == "operator"
    assert trace.spent["aten::mm"].count == 5
    assert trace.spent["aten::mm"].time_us > 0


def test_attribute__finds_what_the_candidate_does_more_of(profile):
    base, candidate = read_trace(profile(multiply, "base.json")), read_trace(profile(multiply_and_sort, "candidate.json"))
    found = {part.name: part for part in attribute(base, candidate, base_steps=5, candidate_steps=5).parts}

    assert found["aten::sort"].base_count == 0
    assert found["aten::sort"].candidate_count >= 2
    assert found["aten::sort"].share > 0
    assert (found["aten::mm"].base_count, found["aten::mm"].candidate_count) == (1.0, 1.0)


def test_read_trace__truncated_file_of_the_real_profiler(profile, tmp_path):
    whole = profile(multiply).read_bytes()
    path = tmp_path / "t.trace.json.gz"
    path.write_bytes(whole[: len(whole) // 2])

    with pytest.raises(EvidenceError, match=r"t\.trace\.json\.gz: truncated or no trace"):
        read_trace(path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.json.gz", b"", "not valid JSON"),
        ("t.json", b"", "not valid JSON"),
        ("t.json", b'{"traceEvents": [{"ph": "X", ', "not valid JSON"),
        ("t.json.gz", b"no gzip", "truncated or no trace"),
        ("t.json", b"[1, 2]", "holds no traceEvents"),
        ("t.json", b'{"traceEvents": 3}', "holds no traceEvents"),
        ("t.json", b'{"traceEvents": []}', "nothing ran while it was recorded"),
        ("t.json", b'{"traceEvents": [3, {"ph": "X", "cat": "kernel", "name": "k"}]}', "nothing ran while it was recorded"),
    ],
)
def test_read_trace__what_is_no_trace(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(EvidenceError, match=words) as caught:
        read_trace(path)

    assert str(path) in str(caught.value)


def test_read_trace__missing_file(tmp_path):
    with pytest.raises(EvidenceError, match="No such file"):
        read_trace(tmp_path / "t.json")


def test_read_trace__operators_are_counted_without_what_they_call(tmp_path):
    events = [
        event("outer", 0, 100, "cpu_op"),
        event("inner", 10, 40, "cpu_op"),
        event("leaf", 20, 10, "cpu_op"),
        event("inner", 60, 40, "cpu_op"),
        event("next", 100, 5, "cpu_op"),
        event("elsewhere", 50, 30, "cpu_op", tid=8),
    ]
    trace = read_trace(write(tmp_path / "t.json", *reversed(events)))

    assert trace.spent == {
        "outer": KernelTime(time_us=20, count=1),
        "inner": KernelTime(time_us=70, count=2),
        "leaf": KernelTime(time_us=10, count=1),
        "next": KernelTime(time_us=5, count=1),
        "elsewhere": KernelTime(time_us=30, count=1),
    }
    assert trace.total_us == 135


def test_read_trace__kernels_leave_operators_out(tmp_path):
    trace = read_trace(
        write(
            tmp_path / "t.json",
            event("aten::mm", 0, 90, "cpu_op"),
            event("gemm", 5, 10),
            event("Memcpy DtoD", 20, 2, "gpu_memcpy"),
            event("gemm", 30, 12),
            {"ph": "i", "cat": "kernel", "name": "mark", "ts": 1},
        )
    )

    assert trace == KernelTrace(
        kind="kernel",
        spent={"gemm": KernelTime(time_us=22, count=2), "Memcpy DtoD": KernelTime(time_us=2, count=1)},
        layers={"dense products": 22, "the rest": 2},
    )


def test_read_trace__how_each_kernel_was_launched(tmp_path):
    args = {"grid": [360, 2, 1], "block": [256, 1, 1], "registers per thread": 45, "shared memory": 12288}
    told = [
        args,
        args,
        {**args, "grid": [1, 1, 1]},
        {**args, "grid": [1, 1]},
        {**args, "block": "256"},
        {"grid": [1, 1, 1]},
        None,
        [],
    ]
    events = [{**event("moe", 10 * number, 5), "args": one} for number, one in enumerate(told)]

    (spent,) = read_trace(write(tmp_path / "t.json", *events)).spent.values()

    launches = {shape.grid: count for shape, count in spent.launches.items()}
    assert (spent.count, launches) == (8, {(360, 2, 1): 2, (1, 1, 1): 1})
    assert LaunchShape(grid=(360, 2, 1), block=(256, 1, 1), registers=45, shared_bytes=12288) in spent.launches
    assert next(iter(read_traces([tmp_path / "t.json"] * 2).spent.values())).launches == {
        shape: 2 * count for shape, count in spent.launches.items()
    }


def test_read_traces__sums_ranks_and_leaves_out_one_without_kernels(tmp_path):
    first = write(tmp_path / "TP-0.json.gz", event("gemm", 0, 10))
    second = write(tmp_path / "TP-1.json.gz", event("gemm", 0, 14))
    idle = write(tmp_path / "TP-2.json.gz", event("aten::mm", 0, 14, "cpu_op"))

    assert read_traces([first, second, idle]) == KernelTrace(
        kind="kernel", spent={"gemm": KernelTime(time_us=24, count=2)}, layers={"dense products": 24}
    )
    with pytest.raises(EvidenceError, match="the profiler wrote no trace"):
        read_traces([])


def make_trace(**times):
    return KernelTrace(kind="kernel", spent={name: KernelTime(time_us=time, count=8) for name, time in times.items()})


def test_attribute__per_step_and_the_slower_first():
    found = attribute(
        make_trace(moe=800.0, attention=400.0, combine=80.0),
        make_trace(moe=560.0, attention=200.0, fused=20.0),
        base_steps=8,
        candidate_steps=4,
    )

    assert [(part.name, part.difference_us, part.share) for part in found.parts] == [
        ("moe", 40.0, pytest.approx(40 / 55)),
        ("fused", 5.0, pytest.approx(5 / 55)),
        ("combine", -10.0, pytest.approx(-10 / 55)),
        ("attention", 0.0, 0.0),
    ]
    assert (found.base_us, found.candidate_us) == (160.0, 195.0)
    assert (found.parts[0].base_count, found.parts[0].candidate_count) == (1.0, 2.0)


def test_attribute__no_difference_at_all():
    found = attribute(make_trace(moe=8.0), make_trace(moe=8.0), base_steps=8, candidate_steps=8)

    assert [part.share for part in found.parts] == [0.0]


def test_attribute__kernels_against_operators():
    operators = KernelTrace(kind="operator", spent={"aten::mm": KernelTime(time_us=1.0, count=1)})

    with pytest.raises(EvidenceError, match="the base's trace holds kernels, the candidate's operators"):
        attribute(make_trace(moe=8.0), operators, base_steps=1, candidate_steps=1)


def test_sum_layers__what_no_name_tells_is_told_by_what_runs_around_it():
    found = sum_layers([[(name, 1.0) for name in STEP]])

    assert found == {"MoE": 6.0, "attention": 5.0, "norms": 3.0, "dense products": 1.0, "the rest": 2.0}


@pytest.mark.parametrize(
    ("names", "layer"),
    [
        (("fused_moe_kernel", "copy", "ncclDevKernel_AllReduce"), "MoE"),
        (("fused_moe_kernel", "copy", "fused_rope_kernel"), "the rest"),
        (("RMSNormKernel", "cutlass_gemm", "RMSNormKernel"), "dense products"),
        (("RMSNormKernel", "copy"), "the rest"),
        (("copy",), "the rest"),
    ],
)
def test_sum_layers__a_norm_or_a_message_ends_a_layer(names, layer):
    (other,) = (name for name in names if name in ("copy", "cutlass_gemm"))
    found = sum_layers([[(name, 10.0 if name == other else 0.0) for name in names]])

    assert found[layer] == 10.0


def test_sum_layers__streams_are_apart():
    found = sum_layers([[("fused_moe_kernel", 5.0)], [("copy", 1.0)], [("fused_moe_kernel", 5.0), ("copy", 2.0)]])

    assert found == {"MoE": 10.0, "the rest": 3.0}


def test_read_attribution__a_spin_in_each_moe_layer_is_found_there():
    """The kernel that spins has a name of no layer, and 24 calls a step."""
    found = read_attribution(SPINNING)
    worst = found.layers[0]

    assert worst.layer == "MoE"
    assert worst.difference_us == pytest.approx(found.candidate_us - found.base_us, rel=0.02)
    for arm in ("base_us", "candidate_us"):
        assert sum(getattr(one, arm) for one in found.layers) == pytest.approx(getattr(found, arm))


def test_read_attribution__the_fused_sum_differs_in_the_moe_layers_first():
    found = read_attribution(bring_fused())

    assert [one.layer for one in found.layers][:2] == ["MoE", "attention"]
    assert found.layers[0].difference_us > 8 * abs(found.layers[1].difference_us)
