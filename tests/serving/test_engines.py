"""vLLM behind the same two adapters, the server's and the client's: a real process with its endpoints and manners."""

import sys
from dataclasses import replace

import pytest

from perfgate.check import judge
from perfgate.core import Arm, Outcome
from perfgate.engines.table import ENGINES
from perfgate.errors import EngineError, ScenarioError, ServerError
from perfgate.machine.fingerprint import read_software
from perfgate.report.view import describe_answers
from perfgate.results.answers import load_answers
from perfgate.results.profiling.profiles import Profile
from perfgate.results.results import load_results
from perfgate.scenario.schema import Load, parse_scenario
from perfgate.serving.client import Client, build_argv
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.measure import measure, require_engine
from perfgate.serving.profiling import profile_server
from perfgate.storage.journal import read_lines
from tests.fakes.requests import FAKE_PATH, KeptProgress, build_request, build_text, list_problems, use_fake_engine

VLLM = {'engine = "sglang-cpu"': 'engine = "vllm"', "num_prompts = 8": 'backend = "vllm"\nnum_prompts = 8'}
# What the CPU engine is told does not concern the other one.
PLAIN = {
    '  "--attention-backend", "torch_native",\n': "",
    '  "--dtype", "bfloat16",\n': "",
    '  "--context-length", "1024",\n': "",
    '  "--max-total-tokens", "16384",\n': "",
    '  "--max-running-requests", "16",\n': "",
}
FAKE = replace(ENGINES["vllm"], module="tests.fakes.engine.fake_vllm", env=FAKE_PATH, caches=())


@pytest.fixture
def reaper():
    reaper = Reaper()
    yield reaper
    reaper.close()


@pytest.fixture
def fake_vllm(monkeypatch, tmp_path):
    use_fake_engine(monkeypatch, tmp_path)
    monkeypatch.setitem(ENGINES, "vllm", FAKE)
    monkeypatch.setattr("perfgate.serving.watch.telemetry.lacks_gpu", lambda: False)


def build_launch(tmp_path, ready_timeout_s=120.0, **env):
    (tmp_path / "config.json").write_text('{"vocab_size": 4096}')
    return Launch(
        engine=FAKE,
        python=sys.executable,
        model=tmp_path,
        args=(),
        env=env,
        ready_timeout_s=ready_timeout_s,
        stop_timeout_s=0.5,
    )


def run(folder, **env):
    """Measure two blocks whose candidate has another environment, and judge them."""
    measure(build_request(folder, candidate=ArmSpec(env=env), **VLLM, **PLAIN), KeptProgress())
    scenario, session = load_results(folder)
    return session, judge(session, scenario, None)


def test_argv__of_each_engine(tmp_path):
    launch = replace(build_launch(tmp_path), engine=ENGINES["vllm"], python="python3")
    sglang = replace(launch, engine=ENGINES["sglang"])

    assert [*launch.argv(4000)] == [
        *("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", str(tmp_path)),
        *("--host", "127.0.0.1", "--port", "4000", "--no-enable-prefix-caching"),
    ]
    assert sglang.argv(4000)[3] == "--model-path"


@pytest.mark.parametrize(
    ("engine", "args", "is_told"),
    [
        ("sglang", ("--tp-size", "2"), True),
        ("sglang-cpu", ("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"), True),
        ("sglang", ("--tp-size", "2", "--dp-size", "2"), False),
        ("sglang", (), True),
        ("sglang", ("--dp-size", "2"), False),
        ("vllm", ("--tensor-parallel-size", "2"), False),
    ],
)
def test_argv__the_port_at_which_ranks_meet(tmp_path, engine, args, is_told):
    launch = replace(build_launch(tmp_path), engine=ENGINES[engine], args=args)
    told = launch.argv(24_000)

    assert ("--nccl-port" in told) is is_told
    if is_told:
        assert told[told.index("--nccl-port") + 1] == "14000"
    # An option of the scenario stands behind it and counts.
    assert told[len(told) - len(args) :] == args


def test_wait_ready__is_not_taken_in_by_a_health_that_only_lives(tmp_path, reaper):
    with (
        Server(build_launch(tmp_path, ready_timeout_s=1.0, FAKE_VLLM="stuck"), tmp_path / "log", reaper) as server,
        pytest.raises(ServerError, match="not ready after 1 s"),
    ):
        server.wait_ready()


def test_wait_ready__from_the_first_generation_on(tmp_path, reaper):
    with Server(build_launch(tmp_path, FAKE_VLLM="late"), tmp_path / "log", reaper) as server:
        server.wait_ready()
        server.flush_cache()

        assert server.ready_s > 0


@pytest.mark.parametrize(("pool", "are_apart"), [((), True), (("--kv-cache-memory-bytes", "1024"), False)])
@pytest.mark.usefixtures("fake_vllm")
def test_measure__servers_that_would_count_each_others_memory_start_one_after_the_other(tmp_path, monkeypatch, pool, are_apart):
    monkeypatch.setenv("FAKE_CARD", str(tmp_path / "card"))
    arms = dict.fromkeys(Arm, ArmSpec(args=pool))
    measure(build_request(tmp_path / "out", fields={"arms": arms}, **VLLM, **PLAIN), KeptProgress())

    events = list(read_lines(tmp_path / "out" / "events.jsonl"))
    begun = [event["at_s"] for event in events if event["event"] == "server_started"]
    assert list_problems(load_results(tmp_path / "out")[1]) == ()
    # One takes half a second to start.
    assert [begun[start] - begun[start - 1] > 0.5 for start in (1, 3)] == [are_apart, are_apart]


@pytest.mark.usefixtures("fake_vllm")
def test_measure__session_of_vllm(tmp_path):
    session, verdict = run(tmp_path / "out", FAKE_ANSWER="noisy")
    answers = load_answers(tmp_path / "out")

    assert list_problems(session) == ()
    assert verdict.outcome is not Outcome.INVALID
    assert {found.question.dialect for found in answers} == {"openai"}
    rules = load_results(tmp_path / "out")[0].equivalence
    assert describe_answers(session, rules).startswith("log-probs of the candidate differ from the base's by 0.")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong", "its answers are wrong, however fast"),
        ("early", "equivalence prompt 3: ended by itself after 5 of 32 tokens"),
        ("empty", "equivalence prompt 3: nothing was generated"),
        ("cached", "equivalence prompt 0: 48 of its 48 tokens came from a cache"),
        ("mixed", "equivalence prompt 3: the server scored another prompt than it was asked"),
        ("missing", "answered 15 of 16 equivalence prompts"),
        ("nan", "equivalence prompt 3: the log-prob of a generated token is no number"),
    ],
)
@pytest.mark.usefixtures("fake_vllm")
def test_measure__wrong_answers_of_vllm(tmp_path, fault, words):
    session, verdict = run(tmp_path / "out", FAKE_ANSWER=fault)

    assert verdict.outcome is Outcome.INVALID
    assert f"block 1, candidate, start 2: {words}" in list_problems(session)[0]


def test_profile_server__engine_without_a_profiler(tmp_path, reaper):
    load = Load(num_prompts=8, input_len=16, output_len=12, max_concurrency=4)
    with Server(build_launch(tmp_path), tmp_path / "log", reaper) as server:
        server.wait_ready()

        with pytest.raises(ServerError, match="engine vllm starts no profiler by request"):
            profile_server(server, load, tmp_path, Profile(arm=Arm.BASE, block=1, start=1))


def test_parse_scenario__backend_that_does_not_speak_to_the_engine():
    text = build_text(**{'engine = "sglang-cpu"': 'engine = "vllm"'})

    with pytest.raises(ScenarioError, match=r"load\.backend: sglang is not for vllm; write vllm"):
        parse_scenario(text, "test")
    with pytest.raises(ScenarioError, match=r"load\.backend: vllm is not for sglang-cpu; write sglang"):
        parse_scenario(build_text(**{"num_prompts = 8": 'backend = "vllm"\nnum_prompts = 8'}), "test")


def test_build_argv__names_the_backend(tmp_path):
    load = Load(num_prompts=8, input_len=16, output_len=12, max_concurrency=4, backend="vllm")
    argv = build_argv(load, tmp_path, "http://127.0.0.1:1", tmp_path / "out")

    assert argv[argv.index("--backend") + 1] == "vllm"


def test_client__runs_where_bench_serving_is(tmp_path, reaper):
    client = Client("/an/environment/of/vllm/python", ENGINES["vllm"], tmp_path / "log", reaper)
    own = Client("/an/environment/of/sglang/python", ENGINES["sglang"], tmp_path / "log", reaper)

    assert (client.python, own.python) == (sys.executable, "/an/environment/of/sglang/python")


def test_require_engine__of_another_name():
    scenario = parse_scenario(build_text(**VLLM, **PLAIN), "test")

    with pytest.raises(EngineError, match="vllm is not installed there"):
        require_engine(scenario, ArmSpec(), read_software(sys.executable))
