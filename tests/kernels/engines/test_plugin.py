"""The plug-in and the peer in the installed SGLang: found, known or refused, computing or counted as left alone."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

from perfgate_moe.build.site import write_site
from perfgate_moe.engines import plugin
from perfgate_moe.engines.plugin import COUNTERS_VARIABLE, parse_mode, require_known
from perfgate_moe.engines.switch import VARIABLE
from perfgate_moe.errors import MoeInputError

# Found and not imported: that takes five seconds of each worker.
pytestmark = pytest.mark.skipif(find_spec("sglang") is None, reason="it goes into SGLang: run `perfgate engine install`")

REPOSITORY = Path(plugin.__file__).parents[2]
# What SGLang's own layer hands to its launches: the shape of each product's answer, and whether the second sums over experts.
PEERS = {"peer:plain": [[[9, 40], False], [[3, 3, 24], False]], "peer:fused-sum": [[[9, 40], False], [[3, 24], True]]}
COMPUTED = ["new:swiglu", "inplace:swiglu", "new:silu", "new:chunked", "new:fp8"]
# What other modes than the server's compute; quantised weights are computed by slots only.
IN_MODES = [f"{mode}/{job}" for mode in ("owner", "atomic32") for job in COMPUTED if job != "new:fp8"]
LEFT = {
    "quantised": "quantised weights (use_int8_w8a8)",
    "tensor-fp8": "quantised weights (use_fp8_w8a8)",
    "fp8-dtype": "weights of dtype float16 for activations of float16",
    "scales": "quantisation (w1_scale)",
    "no_combine": "no_combine",
    "gelu": "activation gelu",
    "ungated": "activation silu without a gate",
    "late-clamp": "activation clamped after SiLU",
    "deepseek-clamp": "activation with swiglu_limit",
    "bias-layout": "bias layout (b2)",
    "input-weights": "router weight on input with biases",
    "router-dtype": "router dtypes float32, int64",
    "hooks": "LoRA hooks",
}


def environment(site, mode, counters=None):
    """The environment of a server whose perfgate is only on PYTHONPATH."""
    settings = {"TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1"}  # the last as on every CPU
    found = os.environ | settings | {"PYTHONPATH": f"{site}:{REPOSITORY}", VARIABLE: mode}
    return found | ({COUNTERS_VARIABLE: str(counters)} if counters else {})


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    write_site(folder)
    return folder


@pytest.fixture(scope="module")
def served(site, tmp_path_factory):
    """Answers by job, the counters' file, and the log of one process with SGLang's layer and the plug-in in it."""
    counters = tmp_path_factory.mktemp("counters") / "moe.json"
    jobs = ["state", *PEERS, *COMPUTED, *IN_MODES, *(f"leave:{name}" for name in LEFT)]
    script = Path(__file__).with_name("plugged.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], input="\n".join(jobs), env=environment(site, "slots", counters),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    return {line["job"]: line["found"] for line in lines}, json.loads(counters.read_text()), done.stdout


def test_register__hooks_both_functions_of_the_installed_sglang(served):
    answers, _, log = served

    assert answers["state"] == [True, True]
    assert "perfgate moe: slots: hooking fused_experts_impl (as since 0.5." in log


def test_register__unknown_parameter_ends_the_process(served):
    answers, _, _ = served

    assert "_fused_moe_kernel_sequence takes the unknown hooks: unset SGLANG_MOE_FUSE" in answers["refusal"]


@pytest.mark.parametrize("job", PEERS)
def test_fused_experts__as_a_peer_reaches_sglang_s_launches(served, job):
    answers, _, _ = served

    assert answers[job] == PEERS[job]


@pytest.mark.parametrize("job", COMPUTED)
def test_swap__answers_as_the_oracle(served, job):
    answers, _, _ = served

    assert answers[job] == []


@pytest.mark.parametrize("job", IN_MODES)
def test_swap__answers_as_the_oracle_in_other_modes(served, job):
    answers, _, _ = served

    assert answers[job] == {"problems": [], "computed": {f"{job.partition('/')[0]}/eager": 1}}


@pytest.mark.parametrize("name", LEFT)
def test_swap__leaves_what_it_does_not_cover_to_sglang(served, name):
    answers, counted, _ = served

    assert answers[f"leave:{name}"] != "answered"
    assert counted["fallbacks"][LEFT[name]] == 1


def test_counters__hold_every_call_once(served):
    _, counted, log = served

    assert counted["mode"] == "slots"
    assert counted["calls"] == len(COMPUTED)
    assert counted["computed"] == {"slots/eager": len(COMPUTED)}
    assert len(counted["fallbacks"]) == len(LEFT)
    assert "perfgate moe active: slots: slots/eager 1; left to SGLang: nothing" in log


def test_register__unknown_mode_ends_the_process_although_sglang_swallows_exceptions(served):
    answers, _, _ = served
    message = (
        "SGLANG_MOE_FUSE_DOWN_SUM_REDUCE: 'fast' is no mode: choose one of auto, slots, owner, atomic32, 1 (auto), 0 or off"
    )

    assert message in answers["unknown mode"]


@pytest.mark.parametrize("mode", ["", "0", "false", "off"])
def test_register__does_nothing_unless_asked(monkeypatch, mode):
    monkeypatch.setenv(VARIABLE, mode)
    monkeypatch.setattr(plugin, "import_module", lambda name: pytest.fail(f"{name} was imported"))

    plugin.register()

    assert parse_mode(mode) is None


@pytest.mark.parametrize(
    ("text", "mode"), [("1", "auto"), ("true", "auto"), ("on", "auto"), ("auto", "auto"), ("owner", "owner")]
)
def test_parse_mode__asked_for(text, mode):
    assert parse_mode(text) == mode


@pytest.mark.parametrize("text", ["2", "yes", "atomic", " 1"])
def test_parse_mode__other_words_are_refused(text):
    with pytest.raises(MoeInputError, match=f"'{text}' is no mode: choose one of auto, slots"):
        parse_mode(text)


def test_require_known__says_that_the_function_is_gone(monkeypatch):
    monkeypatch.setattr(plugin, "_installed_version", lambda: "0.6")

    with pytest.raises(MoeInputError, match=r"SGLang 0.6 has no .*fused_experts_impl: unset SGLANG_MOE_FUSE_DOWN_SUM_REDUCE"):
        require_known("fused_experts_impl", None)
