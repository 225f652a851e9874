"""`perfgate resolve` in the installed engine's own code, on a GPU that is not there."""

import sys

from perfgate.resolution.arms import find_source
from perfgate.resolution.ask import ask_arms
from perfgate.resolution.diff import compare
from perfgate.resolution.table import GPUS, MODELS

TABLE = "E=128,N=768,device_name=NVIDIA_H200.json"


def test_resolve__the_engine_resolves_and_a_table_of_another_triton_is_a_loss():
    sources = [find_source(sys.executable, sys.executable, option="--base", triton=triton) for triton in ("3.6.0", "")]

    tuned, arm = ask_arms(sources, [MODELS["qwen3-30b"]], [GPUS["h200"]])
    lost = compare(tuned, arm, {})

    (reading,) = arm.readings.values()
    assert reading.unverified == {}
    assert reading.choices["moe_runner"] == "triton"
    assert reading.choices["weights_bytes"] > 60e9  # 30.5 billion of two bytes
    # Of all that two processes were asked, this alone differs: the rest was answered alike.
    assert [(one.key, one.kind.value) for one in lost.differences] == [("moe_tiles", "lost")]
    assert lost.differences[0].base.startswith(f"{TABLE} of its own Triton 3.6.0")
    assert lost.differences[0].candidate.startswith(f"{TABLE} of another Triton 3.6.0")
