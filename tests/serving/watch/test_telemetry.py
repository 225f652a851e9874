"""Windows watched for real: a server process, NVML through its real bindings, a Prometheus endpoint, the kernel's counters."""

import gzip
import json

import orjson
import pytest

from perfgate.engines.table import ENGINES
from perfgate.machine.nvml import DeviceSample
from perfgate.results.readings import (
    ACCEPT_LENGTH,
    DECODE_GRAPH_SHARE,
    KV_CAPACITY,
    KV_TRANSFER_MS,
    PREFILL_GRAPH_SHARE,
    READINGS,
    find_kind,
)
from perfgate.serving.watch.engine_metrics import Scrape, parse_metrics, read_batches, summarize_engine
from perfgate.serving.watch.gpu_processes import HIDDEN_BYTES, GpuProcesses, summarize_gpu
from tests.fakes.sick_gpu import ROOT, build_library, run_with_gpu

SESSION = """
import sys
from dataclasses import replace
from perfgate.errors import PerfgateError
from perfgate.serving.watch import telemetry as module
from perfgate.engines.sglang import SGLANG
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.server import Server
module.FREE_TIMEOUT_S = 1.0
place = "tests.fakes.engine.fake_engine"
engine = replace(SGLANG, name="fake", package="fake", module=place, args=(), env={"FAKE_ENGINE": "ok"})
launch = Launch(engine=engine, python=sys.executable, model=Path("."), args=(), env={}, ready_timeout_s=300, stop_timeout_s=5)
folder = STATE.parent
reaper = Reaper()
told = {}
def measure(body, before=lambda: None, after=lambda: None):
    telemetry = module.Telemetry(folder, module.open_monitor([launch]))
    server = Server(launch, folder / "server.log", reaper)
    before()
    try:
        with telemetry.guard(server), server:
            server.wait_ready()
            body.ready(server)
            told["idle"] = telemetry.note_ready(server)
            with telemetry.watch(server, {"index": 0}) as watch:
                body(server)
            told["readings"] = watch.readings
            told["failure"] = watch.failure
            after()
    except PerfgateError as error:
        told["error"] = str(error)
    reaper.close()
    print(json.dumps(told))
"""
OWN = """
def ready(server):
    set_gpu(pids=server.leaders[0])
"""
ASK = """
import time, urllib.request
def ask(server, seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        urllib.request.urlopen(server.url + "/health").read()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


def run(library, folder, body, *, ready=OWN, call="measure(body)"):
    done = run_with_gpu(library, folder, SESSION + ready + body + f"body.ready = ready\n{call}\n")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_watch__quiet_gpu(library, tmp_path):
    told = run(library, tmp_path, "def body(server):\n    wait_samples()\n")

    readings = told["readings"]
    assert readings["foreign_processes"] == 0
    assert readings["throttled_share"] == 0
    assert readings["sm_clock_mhz"] == 1980
    assert readings["gpu_processes_visible"] == 1
    assert readings["gpu_samples_lost"] == 0
    assert told["failure"] is None
    assert "error" not in told
    assert set(readings) <= set(READINGS)


def test_watch__sick_gpu(library, tmp_path):
    body = """
def body(server):
    wait_samples()
    set_gpu(pids=f"{server.leaders[0]} 4000001", sm_clock=1200, reasons=0x41, celsius=90)
    wait_samples()
"""
    readings = run(library, tmp_path, body)["readings"]

    assert readings["foreign_processes"] == 1
    assert readings["sm_clock_min_mhz"] == 1200
    assert readings["temperature_c"] == 90
    assert 0 < readings["throttled_share"] < 1
    assert readings["thermal_share"] == readings["throttled_share"]
    assert readings["power_cap_share"] == 0


def test_watch__foreign_process_on_the_second_gpu(library, tmp_path):
    """Two GPUs of one server: what disturbs either disturbs the window, and each says what it did."""
    ready = """
def ready(server):
    set_gpu(**{"count": 2, "pids": server.leaders[0], "memory_used.1": 3 * 2**20})
"""
    body = """
def body(server):
    wait_samples(4)
    set_gpu(**{"count": 2, "pids": server.leaders[0], "pids.1": f"{server.leaders[0]} 4000001", "sm_clock.1": 1500,
               "milliwatts.1": 300000, "celsius.1": 75, "memory_used.1": 7, "reasons.1": 0x40})
    wait_samples(4)
"""
    call = "launch = replace(launch, args=('--tp-size', '2'))\nmeasure(body, before=lambda: set_gpu(count=2))"
    told = run(library, tmp_path, body, ready=ready, call=call)
    readings = told["readings"]

    assert told["idle"]["idle_gpu_memory_mib"] == 3.0
    assert told["idle"]["idle_server_memory_mib"] > 5
    assert readings["foreign_processes"] == 1
    assert (readings["foreign_processes_gpu_0"], readings["foreign_processes_gpu_1"]) == (0, 1)
    assert (readings["sm_clock_min_mhz_gpu_0"], readings["sm_clock_min_mhz_gpu_1"]) == (1980, 1500)
    assert (readings["temperature_c_gpu_0"], readings["temperature_c_gpu_1"]) == (60, 75)
    assert (readings["gpu_memory_used_bytes_gpu_0"], readings["gpu_memory_used_bytes_gpu_1"]) == (0, 3 * 2**20)
    assert readings["throttled_share_gpu_0"] == 0
    assert readings["throttled_share_gpu_1"] == readings["throttled_share"] > 0
    assert readings["power_max_w_gpu_0"] == 400
    assert all(find_kind(name) for name in readings)


def test_watch__a_gpu_of_no_server_that_lives(library, tmp_path):
    """In a matrix a server of two GPUs may come after one of one: the second GPU is watched, and idle."""
    body = """
def body(server):
    wait_samples()
    set_gpu(**{"count": 2, "pids": server.leaders[0], "pids.1": "4000001", "sm_clock.1": 345})
    wait_samples()
"""
    call = """
both, open_monitor = replace(launch, args=('--tp-size', '2')), module.open_monitor
module.open_monitor = lambda launches: open_monitor([*launches, both])
measure(body, before=lambda: set_gpu(count=2))
"""
    readings = run(
        library, tmp_path, body, ready=OWN.replace("set_gpu(pids=", "set_gpu(count=2, pids="), call="set_gpu(count=2)\n" + call
    )["readings"]

    assert (readings["sm_clock_min_mhz"], readings["foreign_processes"]) == (1980, 0)
    assert not [name for name in readings if find_kind(name) is not READINGS.get(name)]


def test_find_kind__of_one_gpu_and_of_none():
    assert find_kind("power_w_gpu_1") is find_kind("power_w") is READINGS["power_w"]
    assert find_kind("gpu_samples") is READINGS["gpu_samples"]
    assert find_kind("power_w_gpu_one") is find_kind("noise_gpu_1") is None


def test_watch__nvml_dies_midway(library, tmp_path):
    body = """
def body(server):
    wait_samples()
    set_gpu(clock_error=15)
    wait_samples()
"""
    told = run(library, tmp_path, body)

    assert told["readings"]["gpu_samples_lost"] >= 1
    assert "telemetry is incomplete" in told["failure"]
    assert "GPU is lost" in told["failure"]


def test_watch__numbers_of_another_namespace(library, tmp_path):
    """The host's numbers mean nothing here: what came with the server is its own, what comes later is not."""
    ready = "def ready(server):\n    set_gpu(pids='4000001')\n"
    body = "def body(server):\n    wait_samples()\n    set_gpu(pids='4000001 4000002')\n    wait_samples()\n"
    readings = run(library, tmp_path, body, ready=ready)["readings"]

    assert readings["foreign_processes"] == 1
    assert readings["gpu_processes_visible"] == 1


def test_watch__foreign_process_from_before_the_server(library, tmp_path):
    ready = "def ready(server):\n    set_gpu(pids='4000001 4000002')\n"
    readings = run(
        library,
        tmp_path,
        "def body(server):\n    wait_samples()\n",
        ready=ready,
        call="measure(body, before=lambda: set_gpu(pids='4000001'))",
    )["readings"]

    assert readings["foreign_processes"] == 1


def test_guard__memory_still_held(library, tmp_path):
    told = run(
        library,
        tmp_path,
        "def body(server):\n    wait_samples()\n",
        call="measure(body, after=lambda: set_gpu(memory_used=1000 * 2**20))",
    )

    assert "1000 MiB of GPU memory" in told["error"]
    assert "still held" in told["error"]


def test_watch__keeps_the_raw_samples_and_reads_the_engine(library, tmp_path):
    body = """
import socket
def body(server):
    with socket.create_connection(("127.0.0.1", server.port)):
        time.sleep(module.SCRAPE_DELAY_S + 0.5)
    told["leaders"] = server.leaders
"""
    told = run(library, tmp_path, body)
    [line] = gzip.decompress((tmp_path / "telemetry.jsonl.gz").read_bytes()).splitlines()
    kept = orjson.loads(line)

    assert kept["index"] == 0
    assert len(kept["ticks"]) == told["readings"]["gpu_samples"]
    assert all(list(tick["main_threads_s"]) == list(map(str, told["leaders"])) for tick in kept["ticks"])
    assert kept["engine_after"]["counters"]["prompts"] > kept["engine_before"]["counters"]["prompts"]
    # The fake engine answers each question with 100 more prompt tokens, 25 of them cached.
    assert told["readings"]["cache_hit_rate"] == 0.25
    assert told["readings"]["queue_wait_s"] == 0.5
    assert told["readings"]["running_requests"] == 16
    assert told["readings"]["token_usage"] == 0.5


def test_watch__the_thread_that_answers(library, tmp_path):
    """A server that is asked without a pause is at work, and one that is left alone is not."""
    shares = {}
    for name, body in {"idle": "wait_samples(8)", "asked": "ask(server, 1.5)"}.items():
        (tmp_path / name).mkdir()
        told = run(library, tmp_path / name, f"def body(server):\n    {body}\n", ready=OWN + ASK)
        shares[name] = told["readings"]["front_end_core_share"]

    assert 0 <= shares["idle"] < shares["asked"] <= 1


def test_count_foreign__known_namespace():
    processes = GpuProcesses()
    processes.note_ready([7])

    assert processes.count_foreign([7, 8], own=[8]) == 1
    assert processes.count_foreign([8], own=[8]) == 0


def test_count_foreign__hidden_holder_of_memory():
    processes = GpuProcesses()
    processes.note_idle([], HIDDEN_BYTES + 1)
    processes.note_ready([])

    assert processes.count_foreign([], own=[]) == 1
    assert not processes.is_visible([], own=[])


def test_count_foreign__idle_driver_does_not_count():
    processes = GpuProcesses()
    processes.note_idle([], 600 * 2**20)

    assert processes.count_foreign([], own=[]) == 0


def build_sample(**values):
    reasons, pids = values.pop("reasons", None), values.pop("pids", None)
    return DeviceSample(values=values, reasons=reasons, pids=pids)


def test_summarize_gpu__two_devices():
    first = [build_sample(sm_clock_mhz=clock, power_w=300.0, reasons=0) for clock in (1900.0, 1980.0, 1980.0, 1980.0)]
    second = [build_sample(sm_clock_mhz=1700.0, power_w=100.0, reasons=reasons) for reasons in (0, 0x4, 0x20, 0x8)]
    told = summarize_gpu(list(zip(first, second, strict=True)))

    assert {name: value for name, value in told.items() if "_gpu_" not in name} == {
        "sm_clock_mhz": 1700.0,
        "sm_clock_min_mhz": 1700.0,
        "power_w": 400.0,
        "power_max_w": 300.0,
        "throttled_share": 0.5,
        "power_cap_share": 0.25,
        "thermal_share": 0.25,
    }
    assert (told["sm_clock_mhz_gpu_0"], told["sm_clock_mhz_gpu_1"]) == (1980.0, 1700.0)
    assert (told["power_w_gpu_0"], told["power_w_gpu_1"]) == (300.0, 100.0)
    assert told["throttled_share_gpu_1"] == 0.5
    assert summarize_gpu([(sample,) for sample in first]).keys() == {name for name in told if "_gpu_" not in name}


@pytest.mark.parametrize("reasons", [0x0, 0x1, 0x2, 0x4, 0x10, 0x100])
def test_summarize_gpu__idle_boost_and_set_clocks_are_no_throttling(reasons):
    assert summarize_gpu([[build_sample(reasons=reasons)]])["throttled_share"] == 0


def test_summarize_gpu__nothing_told():
    assert summarize_gpu([]) == {}
    assert summarize_gpu([[build_sample()]]) == {}


@pytest.mark.parametrize("text", ["<html>no</html>", "sglang:num_running_reqs three", '{"a": 1}'])
def test_parse_metrics__no_prometheus_text(text):
    assert parse_metrics(text + "\n", took_s=0.1) is None


def test_parse_metrics__ranks_are_summed_and_shares_are_not():
    text = "".join(
        f'sglang:{name}{{dp_rank="{rank}"}} {value}\n'
        for rank, value in ((0, 0.25), (1, 0.5))
        for name in ("num_running_reqs", "num_queue_reqs", "token_usage")
    )
    found = parse_metrics(text, took_s=0.1)

    assert found.gauges == {"running_requests": 0.75, "queued_requests": 0.75, "token_usage": 0.5}
    assert found.counters == {}


def test_parse_metrics__tensor_ranks_tell_of_one_pool_and_data_ranks_of_their_own():
    """As SGLang 0.5.15.post1 answered with `--tp-size 2` on a CPU; with DP attention each rank has its own `dp_rank`."""
    pool = 'sglang:max_total_num_tokens{{model_name="m",moe_ep_rank="{ep}",pp_rank="0",tp_rank="{tp}"{more}}} 16384.0\n'
    tensor = [pool.format(ep=rank, tp=rank, more="") for rank in (0, 1)]
    data = [pool.format(ep=0, tp=rank, more=f',dp_rank="{rank}"') for rank in (0, 1)]
    hits = [f'sglang:cached_tokens_total{{cache_source="{source}",tp_rank="0"}} 5.0\n' for source in ("device", "host")]

    assert parse_metrics("".join([*tensor, *hits]), took_s=0.1).gauges == {"capacity": 16384.0}
    assert parse_metrics("".join(data), took_s=0.1).gauges == {"capacity": 32768.0}
    assert parse_metrics("".join(hits), took_s=0.1).counters == {"hits": 10.0}


# As SGLang 0.5.15.post1 names them.
COUNTED = """# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{{model_name="m",tp_rank="0"}} 65536.0
# TYPE sglang:cuda_graph_passes_total counter
sglang:cuda_graph_passes_total{{mode="decode_cuda_graph",model_name="m",tp_rank="0"}} {decodes}
sglang:cuda_graph_passes_total{{mode="decode_none",model_name="m",tp_rank="0"}} {others}
sglang:cuda_graph_passes_total{{mode="prefill_none",model_name="m",tp_rank="0"}} {prefills}
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{model_name="m"}} {tokens}
# TYPE sglang:spec_verify_calls_total counter
sglang:spec_verify_calls_total{{model_name="m"}} {drafts}
"""


def test_summarize_engine__what_a_window_counts():
    before = parse_metrics(COUNTED.format(decodes=10.0, others=4.0, prefills=2.0, tokens=100.0, drafts=40.0), took_s=0.1)
    after = parse_metrics(COUNTED.format(decodes=40.0, others=14.0, prefills=5.0, tokens=400.0, drafts=140.0), took_s=0.1)
    told = summarize_engine(before, [], after)

    assert (told[KV_CAPACITY], told[DECODE_GRAPH_SHARE], told[PREFILL_GRAPH_SHARE]) == (65536.0, 0.75, 0.0)
    assert told[ACCEPT_LENGTH] == 3.0


TRANSFERRED = """# TYPE sglang:kv_transfer_latency_ms histogram
sglang:kv_transfer_latency_ms_sum{{model_name="m"}} {took}
sglang:kv_transfer_latency_ms_count{{model_name="m"}} {count}
"""


def test_summarize_engine__two_services_are_one_engine():
    before, after = (
        parse_metrics(
            COUNTED.format(decodes=0.0, others=0.0, prefills=prefills, tokens=count, drafts=0.0)
            + TRANSFERRED.format(took=took, count=count),
            COUNTED.format(decodes=decodes, others=0.0, prefills=0.0, tokens=count, drafts=0.0),
            took_s=0.1,
        )
        for prefills, decodes, took, count in ((1.0, 1.0, 10.0, 5.0), (3.0, 31.0, 130.0, 45.0))
    )
    told = summarize_engine(before, [], after)

    assert (told[KV_CAPACITY], told[DECODE_GRAPH_SHARE], told[PREFILL_GRAPH_SHARE]) == (131072.0, 1.0, 0.0)
    assert told[KV_TRANSFER_MS] == 3.0


def test_summarize_engine__a_counter_that_did_not_move_is_told_by_none():
    same = parse_metrics(COUNTED.format(decodes=10.0, others=4.0, prefills=2.0, tokens=100.0, drafts=40.0), took_s=0.1)

    assert not {DECODE_GRAPH_SHARE, PREFILL_GRAPH_SHARE, ACCEPT_LENGTH} & summarize_engine(same, [], same).keys()
    assert KV_CAPACITY not in summarize_engine(build_scrape(), [], build_scrape())


def build_scrape(*, running=0.0, **counters):
    return Scrape(took_s=0.02, gauges={"running_requests": running, "queued_requests": 0.0}, counters=counters)


def test_summarize_engine__an_engine_without_work_says_nothing_of_the_load():
    during = [build_scrape(), build_scrape(running=128.0), build_scrape(running=64.0)]
    told = summarize_engine(build_scrape(), during, build_scrape())

    assert (told["running_requests"], told["engine_scrapes"]) == (96.0, 3.0)
    assert "running_requests" not in summarize_engine(build_scrape(), during[:1], build_scrape())


# As SGLang 0.5.16 wrote them on an H200, in a window of the closed loop.
BATCH_LOG = (
    "[2026-11-21 21:09:21] Prefill batch, #new-seq: 15, #new-token: 7680, #cached-token: 0, full token usage: 0.13, "
    "swa token usage: 0.04, #running-req: 1, #queue-req: 0, #pending-token: 0, cuda graph: False\n"
    "[2026-11-21 21:09:21] Decode batch, #running-req: 16, #full token: 8336, full token usage: 0.13, #swa token: 2176, "
    "swa token usage: 0.04, cuda graph: True, gen throughput (token/s): 9.02, #queue-req: 0\n"
    "[2026-11-21 21:09:21] Decode batch, #running-req: 12, #full token: 9616, full token usage: 0.15, #swa token: 3456, "
    "swa token usage: 0.07, cuda graph: True, gen throughput (token/s): 4381.40, #queue-req: 2\n"
)
# And 0.5.15 on a CPU.
CPU_LINE = (
    "[2026-11-21 17:00:46] Decode batch, #running-req: 14, #token: 0, token usage: 0.00, cpu graph: False, "
    "gen throughput (token/s): 21.47, #queue-req: 0\n"
)


def test_read_batches__what_the_log_told_since_the_window_began(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(CPU_LINE + BATCH_LOG + "[2026-11-21 21:09:22] Decode batch, #running-req: 1")
    pattern = ENGINES["sglang"].batch
    batches = read_batches(log, len(CPU_LINE), pattern)
    told = summarize_engine(build_scrape(), [], build_scrape(), batches)

    assert [batch["running_requests"] for batch in batches] == [16.0, 12.0]
    assert (told["running_requests"], told["queued_requests"], told["token_usage"]) == (14.0, 1.0, 0.15)
    assert read_batches(log, 0, pattern)[0] == {"running_requests": 14.0, "token_usage": 0.0, "queued_requests": 0.0}
    assert read_batches(log, 0, ENGINES["vllm"].batch) == read_batches(tmp_path / "none", 0, pattern) == []


def test_summarize_engine__the_log_goes_before_a_gauge_that_may_be_stale():
    stale = build_scrape(running_requests=0.0, queued_requests=0.0, token_usage=0.15)
    batches = [{"running_requests": 16.0, "queued_requests": 0.0, "token_usage": 0.2}]

    assert "running_requests" not in summarize_engine(None, [stale], None)
    assert summarize_engine(None, [stale], None, batches)["running_requests"] == 16.0


def test_summarize_engine__counters_begin_with_their_first_increase():
    told = summarize_engine(build_scrape(), [], build_scrape(prompts=200.0, hits=50.0, queued=4.0, queue_s=2.0))

    assert (told["cache_hit_rate"], told["queue_wait_s"]) == (0.25, 0.5)
    assert "cache_hit_rate" not in summarize_engine(None, [], build_scrape(prompts=200.0))
    assert "queue_wait_s" not in summarize_engine(build_scrape(queued=4.0), [], build_scrape(queued=4.0))


def test_docs__table_of_readings_is_the_codes():
    text = (ROOT / "docs" / "reference" / "telemetry.md").read_text()
    rows = [f"| `{name}` | {reading.unit} | {reading.meaning} |" for name, reading in READINGS.items()]

    assert "\n".join(rows) in text


def test_measure__gpu_lost_between_windows_voids_the_session(library, tmp_path):
    code = """
import sys
from dataclasses import replace
from tests.serving.test_session import KeptProgress, build_request
from perfgate.results.results import load_results
from perfgate.serving import measure as module
from perfgate.engines import table as engines
from perfgate.engines.sglang import SGLANG
from perfgate.serving.watch.telemetry import Telemetry
place = "tests.fakes.engine.fake_engine"
fake = replace(SGLANG, name="sglang-cpu", package="pytest", module=place, args=(), env={})
engines.ENGINES["sglang-cpu"] = fake
module.require_engine = lambda *_: None
note_ready = Telemetry.note_ready
def lose(self, server):
    idle = note_ready(self, server)
    set_gpu(clock_error=15)
    return idle
Telemetry.note_ready = lose
module.measure(build_request(STATE.parent / "out", **{'resident = "both"': 'resident = "one"'}), KeptProgress())
_, session = load_results(STATE.parent / "out")
print(json.dumps([[problem.message for problem in session.problems], [dict(window.telemetry) for window in session.windows]]))
"""
    done = run_with_gpu(library, tmp_path, code, PERFGATE_STATE=str(tmp_path / "machine"))
    assert done.returncode == 0, done.stderr
    [problem], [readings] = json.loads(done.stdout)

    assert "telemetry is incomplete" in problem
    assert readings["gpu_samples_lost"] >= 1
    assert "sm_clock_mhz" not in readings
