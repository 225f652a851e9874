"""What compilers leave in their caches and engines in their logs, read as a window's readings."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfgate.engines.sglang import NAMED_CACHES
from perfgate.engines.table import ENGINES
from perfgate.results.readings import READINGS
from perfgate.serving.watch.engine_metrics import Scrape, parse_metrics, summarize_engine
from perfgate.serving.watch.other_work import count_work, list_cached, list_caches, name_added, read_work
from tests.fakes.requests import make_launch

# As SGLang 0.5.15.post1 and 0.5.16 write them.
SGLANG_LOG = """[2026-11-22 08:00:00] Decode batch, #running-req: 16, #token: 4352, token usage: 0.07, #queue-req: 0
[2026-11-22 08:00:01] Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2], avail mem=46.21 GB
[2026-11-22 08:00:02] Capture target decode CUDA graph end. elapsed=4.08 s, mem usage=7.31 GB, avail mem=46.21 GB.
[2026-11-22 08:00:03] Capture single-CG draft extend begin. This can take several minutes. bs=[1]
[2026-11-22 08:00:04] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 64, #new_token_ratio: 0.1
[2026-11-22 08:00:05] Testing retraction. #retracted_reqs: 2, #new_tokens_gained: 64
[2026-11-22 08:00:06] Try DeepGEMM JIT Compiling for <GROUPED_GEMM> N=4096, K=7168, num_groups=8 with all Ms.
"""


# What SGLang 0.5.16 wrote with --tokenizer-worker-num 2 on an H200: as it served, and as it was stopped.
WORKERS_LOG = """[2026-11-29 04:37:51] INFO:     Started parent process [5851]
[2026-11-29 04:38:02] INFO:     Waiting for child process [6153]
[2026-11-29 04:38:02] INFO:     Child process [6153] died
[2026-11-29 04:38:11] INFO:     Started server process [6154]
[2026-11-29 04:38:14] INFO:     Application startup complete.
[2026-11-29 04:38:15] INFO:     Waiting for child process [6243]
[2026-11-29 04:38:15] INFO:     Child process [6243] died
"""
STOPPED_LOG = """[2026-11-29 04:40:43] INFO:     Received SIGTERM, exiting.
[2026-11-29 04:40:43] INFO:     Terminated child process [6942]
[2026-11-29 04:40:43] INFO:     Terminated child process [6154]
[2026-11-29 04:40:43] INFO:     Waiting for child process [6942]
[2026-11-29 04:40:43] INFO:     Waiting for child process [6154]
[2026-11-29 04:40:45] INFO:     Stopping parent process [5851]
"""


def put(folder, name, text="{}"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def test_read_work__as_sglang_writes_it(tmp_path):
    (tmp_path / "log").write_text(SGLANG_LOG)
    first = len(SGLANG_LOG.splitlines(keepends=True)[0])
    patterns = ENGINES["sglang"].work

    assert read_work(tmp_path / "log", 0, patterns) == {
        "graphs_captured": 2.0,
        "requests_retracted": 5.0,
        "kernels_compiled": 1.0,
        "processes_restarted": 0.0,
    }
    assert read_work(tmp_path / "log", first, patterns) == read_work(tmp_path / "log", 0, patterns)
    assert set(read_work(tmp_path / "log", len(SGLANG_LOG), patterns).values()) == {0.0}
    assert set(read_work(tmp_path / "none", 0, patterns).values()) == {0.0}


@pytest.mark.parametrize(("text", "count"), [(WORKERS_LOG, 2.0), (STOPPED_LOG, 0.0)])
def test_read_work__a_worker_that_dies_and_a_server_that_is_stopped(tmp_path, text, count):
    (tmp_path / "log").write_text(text)

    assert read_work(tmp_path / "log", 0, ENGINES["sglang-cpu"].work)["processes_restarted"] == count


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_engines__every_line_of_work_adds_to_a_reading(engine):
    assert engine.work
    assert set(engine.work) <= set(READINGS)


def test_name_added__triton_names_its_kernels(tmp_path):
    put(tmp_path / "triton" / "OLD", "__grp__old_kernel.json")
    before = list_cached([tmp_path])
    put(tmp_path / "triton" / "ABC", "__grp__fused_moe_kernel.json")
    put(tmp_path / "triton" / "ABC", "fused_moe_kernel.cubin")
    put(tmp_path / "triton" / "ABC" / "deeper", "x.so")
    put(tmp_path / "inductor" / "xy", "cxyabc.py")
    after = list_cached([tmp_path, tmp_path / "triton", tmp_path / "none"])

    assert name_added(before, after) == ("ABC/deeper", "fused_moe_kernel", "inductor/xy")
    assert name_added(after, after) == ()


def test_name_added__a_file_that_is_made_anew_in_an_old_ones_place(tmp_path):
    put(tmp_path / "ABC", "__grp__kernel.json")
    before = list_cached([tmp_path])
    put(tmp_path / "ABC", "kernel.part")
    (tmp_path / "ABC" / "kernel.part").replace(tmp_path / "ABC" / "__grp__kernel.json")

    assert name_added(before, list_cached([tmp_path])) == ("kernel",)


def test_list_cached__what_a_cache_hit_leaves_is_nothing(tmp_path):
    (tmp_path / "HASH").mkdir()
    put(tmp_path / "HASH" / "tmp.pid_1_abc", "kernel.json")
    put(tmp_path / "locks", "x.lock")
    put(tmp_path / "HASH", "lock")
    put(tmp_path / "ab" / "__pycache__", "m.cpython-311.pyc")
    put(tmp_path / "ab", ".12.34.tmp")

    assert list_cached([tmp_path]) == frozenset()


@pytest.fixture
def nothing_said(monkeypatch):
    for folder in ENGINES["sglang"].caches:
        monkeypatch.delenv(folder.variable, raising=False)


@pytest.mark.usefixtures("nothing_said")
def test_list_caches__where_nothing_is_said_as_the_compilers_have_it():
    launch = make_launch(HOME="/home/me", TMPDIR="/scratch", LOGNAME="m:e")
    told = {str(path) for path in list_caches(launch)}

    assert told == {
        "/home/me/.triton/cache",
        "/scratch/torchinductor_m_e",
        "/home/me/.cache/flashinfer",
        "/home/me/.nv/ComputeCache",
        "/home/me/.cache/deep_gemm",
        "/home/me/.cache/sglang/torch_compile_cache",
        "/home/me/.cache/tvm-ffi",
    }


@pytest.mark.usefixtures("nothing_said")
def test_list_caches__as_the_arm_says(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/inherited")
    named = replace(make_launch(), engine=replace(ENGINES["sglang"], caches=NAMED_CACHES))

    assert {str(path) for path in list_caches(replace(named, env={"SGLANG_CACHE_DIR": "/arm"}))} == {
        "/inherited",
        "/arm/torch_compile_cache",
    }
    assert "/arm" in {str(path) for path in list_caches(replace(named, env={"TRITON_CACHE_DIR": "/arm"}))}


def test_count_work__without_caches_only_the_log_tells(tmp_path):
    launch = make_launch("sglang")
    (tmp_path / "log").write_text(SGLANG_LOG)
    server = SimpleNamespace(log=tmp_path / "log", launch=launch)
    silent = SimpleNamespace(log=tmp_path / "log", launch=replace(launch, engine=replace(launch.engine, caches=(), work={})))

    assert count_work(server, {server.log: 0}, ("a", "b", "c"))["kernels_compiled"] == 3.0
    assert count_work(server, {server.log: 0}, ())["kernels_compiled"] == 1.0
    assert count_work(silent, {silent.log: 0}, ()) == {}


@pytest.mark.parametrize("name", ["sglang:num_retracted_requests_total", "vllm:num_preemptions_total"])
def test_summarize_engine__requests_that_were_put_back(name):
    page = parse_metrics(f'{name}{{dp_rank="0"}} 4.0\n{name}{{dp_rank="1"}} 1.0\n', took_s=0.01)
    nothing = Scrape(took_s=0.01, gauges={}, counters={})

    assert summarize_engine(nothing, [], page)["requests_retracted"] == 5.0
    assert summarize_engine(page, [], page)["requests_retracted"] == 0.0
    assert "requests_retracted" not in summarize_engine(None, [], page)
