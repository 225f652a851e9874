"""What perfgate needs of an engine's release, one row each, and how a real server is made to show it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from perfgate.core import Arm, Run
from perfgate.engines.engine import Engine
from perfgate.engines.sglang_insides import GSM8K
from perfgate.errors import EngineError, EvidenceError
from perfgate.evidence import Question
from perfgate.machine.tools import Tool
from perfgate.readers.bench_serving import read_window
from perfgate.readers.printed_table import parse_tables
from perfgate.readers.replies import ReplyError, draw_prompts, read_replies
from perfgate.results.expert_use import RawTrace, unpack
from perfgate.results.profiling.profiles import Profile
from perfgate.results.words import describe_remark
from perfgate.scenario.load import Load
from perfgate.scenario.schema import Scenario
from perfgate.serving.client import Client
from perfgate.serving.engine.conversation import post
from perfgate.serving.engine.engine_facts import list_lost
from perfgate.serving.engine.launch import HOST
from perfgate.serving.engine.server import Server
from perfgate.serving.engine.startup import read_info, read_phases
from perfgate.serving.equivalence import COMPLETIONS_PATH, GENERATE_PATH, ask
from perfgate.serving.experts.expert_probe import probe
from perfgate.serving.injection.injection_log import PROOF, read_spent
from perfgate.serving.model.model_guard import read_vocabulary
from perfgate.serving.model.tiny_model import vocabulary
from perfgate.serving.profiling import profile_server
from perfgate.serving.watch.engine_metrics import Scrape, read_batches, scrape
from perfgate_moe.engines.switch import PROOF as KERNELS_PROOF
from perfgate_moe.engines.switch import TRIAL, TRIAL_VARIABLES

DELAY_US = 200
"""How long a batch is delayed by the plug-in on trial."""

ASKED_TOKENS = 24
TIMEOUT_S = 120.0
POLL_S = 0.25
SEED = 7
CHOICES = vocabulary()[100:102]
"""Two words between which a constrained answer has to choose."""

_PYTHON = Tool(timeout_s=300.0, missing=EngineError, failed=EngineError)

MAY_BE_MISSING = frozenset(
    {
        *("retracted", "capacity", "decode_graphs", "decode_others", "prefill_graphs", "prefill_others"),
        *("generated", "verified", "transfers", "transfer_ms"),
    }
)
"""What stays away until something happens that no trial makes happen, and what a verdict can do without: its counters."""


@dataclass(slots=True, kw_only=True)
class Stand:
    """A server on trial, the load generator of its release, and what earlier rows learnt."""

    scenario: Scenario
    server: Server
    client: Client
    folder: Path
    windows: dict[str, Run] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        """The row of the engine."""
        return self.server.launch.engine

    @property
    def load(self) -> Load:
        """A load of the scenario's width, short, whose answers are long enough for a line of the log on running batches."""
        return replace(self.scenario.load, num_prompts=32, output_len=64)

    def question(self, seed: int = SEED) -> Question:
        """One prompt of its own and the length of its answer."""
        vocab = read_vocabulary(self.server.launch.model)
        return Question(prompts=1, input_len=32, output_len=ASKED_TOKENS, vocab=vocab, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One row of the table: `attempt` returns what was seen, or raises PerfgateError where the release cannot do it.

    Without a `vital` one the rows behind it cannot be tried. `applies` says of which engines it is asked at all.
    """

    name: str
    what: str
    attempt: Callable[[Stand], str]
    is_vital: bool = False
    applies: Callable[[Engine], bool] = lambda _: True


def read_facts(stand: Stand) -> str:
    """The names, options and words that perfgate uses stand in the source, but for those of the GSM8K evaluation."""
    lost = [fact.place for fact in list_lost(stand.engine, stand.server.launch.python) if fact.use != GSM8K]
    if lost:
        raise EngineError(f"not in its source: {', '.join(lost)}")
    return f"{sum(fact.use != GSM8K for fact in stand.engine.facts)} facts hold"


def read_evaluation(stand: Stand) -> str:
    """The evaluation of GSM8K lies in the wheel."""
    lost = [fact.place for fact in list_lost(stand.engine, stand.server.launch.python) if fact.use == GSM8K]
    if lost:
        raise EngineError(f"not in its wheel: {', '.join(lost)}")
    return "in the wheel"


def start(stand: Stand) -> str:
    """The process lives and opens its port."""
    stand.server.start()
    while stand.server.age_s < stand.server.launch.ready_timeout_s:
        stand.server.raise_if_dead()
        with socket.socket() as probe_socket:
            if probe_socket.connect_ex((HOST, stand.server.port)) == 0:
                return "port open"
        time.sleep(POLL_S)
    raise EngineError(f"no port within {stand.server.launch.ready_timeout_s:.0f} s (log {stand.server.log})")


def get_ready(stand: Stand) -> str:
    """It says that it generated a token."""
    stand.server.wait_ready()
    return f"`{stand.engine.ready_path}` answers"


def serve(stand: Stand) -> str:
    """It generates as many tokens as were asked for, without any from the cache."""
    found = _generate(stand, stand.question())
    return f"{_require(found, 'completion_tokens', ASKED_TOKENS)} tokens"


def serve_openai(stand: Stand) -> str:
    """It does so behind OpenAI's path."""
    question = stand.question(SEED + 1)
    model = str(stand.server.launch.model)
    content = {"model": model, "prompt": draw_prompts(question)[0], "max_tokens": ASKED_TOKENS, "ignore_eos": True}
    found = _ask(stand, COMPLETIONS_PATH, content)
    usage = found.get("usage")
    return f"{_require(usage if isinstance(usage, dict) else {}, 'completion_tokens', ASKED_TOKENS)} tokens"


def compare_answers(stand: Stand) -> str:
    """The fixed prompts come back with the log-prob of each token, in the form that is read."""
    body, question = ask(stand.server, stand.scenario.equivalence)
    try:
        replies = read_replies(question, body)
    except ReplyError as error:
        raise EvidenceError(str(error)) from None
    return f"{sum(len(one.tokens) for one in replies)} tokens with log-probs"


def flush(stand: Stand) -> str:
    """What was in the prefix cache is found there, and is gone once it was emptied."""
    question = stand.question(SEED + 2)
    _generate(stand, question)
    known = _generate(stand, question).get("cached_tokens")
    stand.server.flush_cache()
    left = _generate(stand, question).get("cached_tokens")
    if not isinstance(known, int) or known <= 0 or left != 0:
        raise EngineError(f"cached_tokens: {known} before the cache was emptied, {left} after it")
    return f"{known} tokens known, then 0"


def freeze(stand: Stand) -> str:
    """It takes what lives out of the garbage collection."""
    if not stand.server.freeze_gc():
        raise EngineError(f"{stand.engine.freeze_path} is not offered")
    return "offered"


def read_settings(stand: Stand) -> str:
    """It tells the settings that it resolved to."""
    settings = read_info(stand.server) or {}
    if not settings.get("model_path"):
        raise EngineError(f"{stand.engine.info_path} names no model_path")
    return f"{len(settings)} settings"


def generate_load(stand: Stand) -> str:
    """The release's own load generator drives it over the engine's own path, and its output is read."""
    return _drive(stand, stand.engine.backend)


def generate_load_openai(stand: Stand) -> str:
    """The same over OpenAI's path."""
    backend = stand.engine.backend
    return _drive(stand, f"{backend}-oai" if is_sglang(stand.engine) else backend)


def read_printed(stand: Stand) -> str:
    """The tables that the load generator printed say what its records say."""
    log = stand.folder / "client.log"
    printed = parse_tables(log.read_text(encoding="utf-8", errors="replace"), str(log))
    told = {round(run.values.get("output_tok_per_s", 0.0)) for run in printed}
    for name, run in stand.windows.items():
        # The printed table rounds.
        if not {round(run.values["output_tok_per_s"]) + step for step in (-1, 0, 1)} & told:
            raise EvidenceError(f"{log}: no table with the throughput of {name}")
    if not stand.windows:
        raise EngineError("no load generator ran")
    return f"{len(printed)} tables"


def read_metrics(stand: Stand) -> str:
    """Its metrics have the gauges and counters that are read, and the counters grew."""
    found = scrape(*stand.server.metrics_urls) or Scrape(took_s=0.0, gauges={}, counters={})
    missing = (stand.engine.gauges.keys() - found.gauges.keys()) | (stand.engine.counters.keys() - found.counters.keys())
    # Without a prefix cache nothing is looked up in it.
    growing = ("prompts", "hits", "queued") if stand.engine.flush_path else ("queued",)
    still = [name for name in growing if not found.counters.get(name)]
    if lost := sorted({*(missing - MAY_BE_MISSING), *still}):
        raise EngineError(f"{stand.engine.metrics_path} tells nothing of {', '.join(lost)}")
    return f"{len(found.gauges)} gauges, {len(found.counters)} counters"


def read_running(stand: Stand) -> str:
    """Its log tells of running batches."""
    batches = read_batches(stand.server.log, 0, stand.engine.batch)
    most = max((batch["running_requests"] for batch in batches), default=0.0)
    if most < 2:
        raise EngineError(f"no line on a batch of several requests in {stand.server.log}")
    return f"{len(batches)} lines, up to {most:.0f} requests"


def read_start_phases(stand: Stand) -> str:
    """Its log tells how long the weights took."""
    phases = read_phases(stand.server.launch, stand.server.log)
    if "weights_s" not in phases:
        raise EngineError(f"no line on the weights in {stand.server.log}")
    return ", ".join(sorted(phases))


def record_experts(stand: Stand) -> str:
    """The recorder, a plug-in, sees which experts the tokens choose."""
    found = probe(stand.server, stand.server.expert_folder, stand.load.max_concurrency)
    if not isinstance(found, RawTrace):
        raise EngineError(f"expert use unknown: {found.value}")
    trace, model = unpack(found), stand.scenario.model
    seen = (trace.experts, trace.top_k, len(trace.texts[0].chosen))
    if seen != (model.experts, model.top_k, model.layers):
        raise EngineError(f"experts, top-k, layers: {seen}, the model has {(model.experts, model.top_k, model.layers)}")
    return f"{model.top_k} of {model.experts} experts in {model.layers} layers"


def slow_down(stand: Stand) -> str:
    """A plug-in delays each batch by as much as it was told, and says so."""
    spent = read_spent(stand.server.log)
    if spent is None:
        raise EngineError(f"{PROOF!r} with its sum is not in {stand.server.log}")
    mean_us = spent.injected_us / spent.steps
    if mean_us < DELAY_US:
        raise EngineError(f"{mean_us:.0f} us a batch, {DELAY_US} were asked for")
    return f"{spent.steps:.0f} batches delayed"


def hook_kernels(stand: Stand) -> str:
    """SGLang's runner hands a layer to the kernels' plug-in, which computes it, interpreted: no GPU is needed."""
    variables = [f"{name}={value}" for name, value in {**stand.engine.env, **TRIAL_VARIABLES}.items()]
    done = _PYTHON.call(["env", *variables, stand.server.launch.python, "-P", "-m", TRIAL], name="the kernels' plug-in")
    if KERNELS_PROOF not in done.text:
        raise EngineError(f"the kernels' plug-in: {KERNELS_PROOF!r} is not in what it said: {done.text.strip()[-200:]}")
    return "one layer, as the reference"


def constrain(stand: Stand) -> str:
    """An answer follows a grammar."""
    prompt, regex = draw_prompts(stand.question(SEED + 3))[0], f"({'|'.join(CHOICES)})"
    if is_sglang(stand.engine):
        sampling = {"temperature": 0.0, "max_new_tokens": 8, "regex": regex}
        found = _ask(stand, GENERATE_PATH, {"input_ids": prompt, "sampling_params": sampling})
    else:
        asked = {"temperature": 0.0, "max_tokens": 8, "structured_outputs": {"regex": regex}}
        reply = _ask(stand, COMPLETIONS_PATH, {"model": str(stand.server.launch.model), "prompt": prompt, **asked})
        found = next(iter(reply.get("choices") or ()), {})
    text = str(found.get("text")).strip()
    if text not in CHOICES:
        raise EngineError(f"{text[:40]!r} where one of {', '.join(CHOICES)} was to come")
    return "one of two words"


def profile(stand: Stand) -> str:
    """Its profiler writes a trace whose operators are read."""
    place = Profile(arm=Arm.BASE, block=0, start=1)
    trace = profile_server(stand.server, replace(stand.load, output_len=8), stand.folder, place).read()
    busy_ms = sum(one.time_us for one in trace.spent.values()) / 1e3
    if busy_ms <= 0:
        raise EngineError("a trace of no time")
    return f"{len(trace.spent)} {trace.kind}s"


def stop(stand: Stand) -> str:
    """It ends, and leaves no process."""
    stand.server.stop()
    return "no process left"


def _drive(stand: Stand, backend: str) -> str:
    stand.client.wait_ready_once()
    load = replace(stand.load, backend=backend)
    file = stand.folder / f"{backend}.jsonl"
    file.write_bytes(stand.client.measure(load, stand.server.launch.model, stand.server.url))
    run = read_window(file)
    if run.problems or run.completed != load.num_prompts:
        raise EvidenceError(
            f"{file}: {'; '.join(map(describe_remark, run.problems)) or f'{run.completed} of {load.num_prompts} requests'}"
        )
    stand.windows[backend] = run
    return f"{run.completed} requests, {len(run.values)} metrics"


def _generate(stand: Stand, question: Question) -> Mapping[str, Any]:
    """What a server says of an answer that it gave."""
    sampling = {"temperature": 0.0, "max_new_tokens": question.output_len, "ignore_eos": True}
    found = _ask(stand, GENERATE_PATH, {"input_ids": draw_prompts(question)[0], "sampling_params": sampling})
    meta = found.get("meta_info")
    if not isinstance(meta, dict):
        raise EngineError(f"{GENERATE_PATH}: no meta_info in the answer")
    return meta


def _ask(stand: Stand, path: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
    body = post(stand.server, path, content, what=f"a request to {path}", timeout_s=TIMEOUT_S)
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise EngineError(f"{path}: the answer is not JSON") from None
    return found if isinstance(found, dict) else {}


def _require(found: Mapping[str, Any], name: str, wanted: int) -> int:
    if found.get(name) != wanted:
        raise EngineError(f"{name}: {found.get(name)} where {wanted} were asked for")
    return wanted


def is_sglang(engine: Engine) -> bool:
    """Whether an engine speaks SGLang's own dialect: the paths, plug-ins and kernels of no other are known here."""
    return engine.dialect == "sglang"


CAPABILITIES = (
    Capability(name="source", what="names, options and words that perfgate uses stand in its source", attempt=read_facts),
    Capability(name="start", what="the process opens its port", attempt=start, is_vital=True),
    Capability(name="ready", what="it says that it generated a token", attempt=get_ready, is_vital=True),
    Capability(name="serve", what="tokens as asked for, on the engine's own path", attempt=serve, applies=is_sglang),
    Capability(name="serve, OpenAI", what="the same on `/v1/completions`", attempt=serve_openai),
    Capability(name="answers", what="fixed prompts with log-probs, read back", attempt=compare_answers),
    Capability(
        name="flush",
        what="a known prefix is unknown after the cache was emptied",
        attempt=flush,
        applies=lambda engine: engine.flush_path is not None,
    ),
    Capability(
        name="freeze",
        what="the garbage collector leaves alone what lives",
        attempt=freeze,
        applies=lambda engine: engine.freeze_path is not None,
    ),
    Capability(
        name="settings",
        what="the settings that it resolved to, read",
        attempt=read_settings,
        applies=lambda engine: engine.info_path is not None,
    ),
    Capability(
        name="load", what="its `bench_serving` on the engine's own path, records read", attempt=generate_load, applies=is_sglang
    ),
    Capability(name="load, OpenAI", what="`bench_serving` on OpenAI's path, records read", attempt=generate_load_openai),
    Capability(name="printed table", what="what `bench_serving` prints, read, says what its records say", attempt=read_printed),
    Capability(name="metrics", what="gauges and counters, read", attempt=read_metrics),
    Capability(
        name="log: batches",
        what="lines on running batches, read",
        attempt=read_running,
        applies=lambda engine: engine.batch is not None,
    ),
    Capability(name="log: phases", what="seconds of the start's phases, read", attempt=read_start_phases),
    Capability(name="plug-in", what="a delay is put into each batch and told", attempt=slow_down, applies=is_sglang),
    Capability(name="recorder", what="which experts the tokens choose, read", attempt=record_experts),
    Capability(
        name="kernels",
        what="its runner hands a layer to perfgate's MoE plug-in, interpreted",
        attempt=hook_kernels,
        applies=is_sglang,
    ),
    Capability(name="profile", what="a trace of one batch, read", attempt=profile, applies=lambda engine: engine.is_profiled),
    Capability(name="GSM8K", what="SGLang's evaluation lies in the wheel", attempt=read_evaluation, applies=is_sglang),
    Capability(name="structured output", what="an answer follows a regular expression", attempt=constrain),
    Capability(name="stop", what="it ends and leaves no process", attempt=stop),
)
"""In the order in which they are tried: each has what it needs of those before it, and what may end a server comes late."""

STARTS = tuple(one for one in CAPABILITIES if one.name in {"source", "start", "ready", "serve", "stop"})
"""Those that show whether a release serves at all, and leave no server."""
