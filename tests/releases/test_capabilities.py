"""A row of the table fails on a server that does not do what it is about: each is asked of one that misbehaves."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfgate.engines.table import ENGINES
from perfgate.errors import EngineError, PerfgateError
from perfgate.releases import capabilities
from perfgate.releases.capabilities import CAPABILITIES, CHOICES, DELAY_US, Stand
from perfgate.scenario.catalog import load_scenario
from perfgate.serving.injection.injection_log import MEASURED

SCENARIO = load_scenario("cpu-moe")
METRICS = "\n".join(
    f"sglang:{name} 1.0"
    for name in (*ENGINES["sglang-cpu"].gauges.values(), *ENGINES["sglang-cpu"].counters.values())
    if "retracted" not in name
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

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": 4096}))
    return folder


@pytest.fixture
def attempt(tmp_path, model):
    """Try one capability on a server that answers so, with such a log."""

    def run(name, answers=(), log=LOG):
        (tmp_path / "server.log").write_text(log)
        with serve(dict(answers)) as url:
            server = SimpleNamespace(
                url=url,
                metrics_url=f"{url}/metrics",
                log=tmp_path / "server.log",
                launch=SimpleNamespace(engine=ENGINES["sglang-cpu"], model=model, python="python"),
                raise_if_dead=lambda _=0.0: None,
                flush_cache=lambda: None,
                expert_folder=tmp_path / "experts",
            )
            stand = Stand(version="0.6.0", scenario=SCENARIO, server=server, client=None, folder=tmp_path)
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
    gone = "0.5.16" if name == "GSM8K" else None
    found = [SimpleNamespace(place=place, gone=gone) for place in lost]
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
