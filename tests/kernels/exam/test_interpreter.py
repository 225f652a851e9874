"""Our Triton kernels without a GPU: float32 and float16 through the interpreter (its bfloat16 product is wrong)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

SMALL_LAYER = "E=3,k=2,H=24,I=20"
JOBS = [
    f"triton-slots {SMALL_LAYER},M=5",
    f"triton-slots {SMALL_LAYER},M=3,dtype=float16,activation=silu,mask=ep,bias=off,scaling=2.5",
    f"triton-slots {SMALL_LAYER},M=3,activation=silu,bias=off,on_input=1,data=nan",
    f"triton-slots {SMALL_LAYER},M=4,activation=swiglu-chunked,weights=odd,routing=duplicate,data=edges",
    f"triton-slots {SMALL_LAYER},M=4,activation=silu,data=exact,mask=padded",
    f"triton-slots {SMALL_LAYER},M=1,mask=all",
    f"triton-direct {SMALL_LAYER},M=2,mask=ep",
    f"triton-owner {SMALL_LAYER},M=2,mask=ep",
    f"triton-direct {SMALL_LAYER},M=1,activation=silu,data=exact,dtype=float16",
    f"triton-atomic32 {SMALL_LAYER},M=5,dtype=float16",
    f"tma {SMALL_LAYER},M=3",
    "short E=2,k=1,H=16,I=16,M=17,routing=same",
    "short E=2,k=1,H=16,I=16,M=4,mask=ep",
    "triton-slots E=3,k=2,H=200,I=72,M=5,dtype=float16,quant=fp8",
    "triton-slots E=2,k=2,H=136,I=136,M=3,dtype=float16,activation=silu,bias=off,quant=fp8,mask=ep,scaling=2.5,data=nan",
    "triton-slots E=3,k=2,H=96,I=32,M=5,dtype=float16,quant=mxfp4",
    "triton-slots E=2,k=2,H=160,I=96,M=3,dtype=float16,activation=silu,bias=off,quant=mxfp4,mask=ep,scaling=2.5,data=nan",
    "scales E=2,k=2,H=160,I=96,M=3,dtype=float16,quant=mxfp4",
    "triton-direct E=3,k=2,H=136,I=72,M=2,dtype=float16,quant=fp8,mask=ep",
    "triton-direct E=3,k=2,H=96,I=32,M=2,dtype=float16,quant=mxfp4,mask=ep",
    "triton E=8,k=2,H=136,I=72,M=2,dtype=float16,activation=silu,bias=off,quant=fp8",
    "alike E=2,k=2,H=136,I=136,M=3,dtype=float16,quant=fp8",
    "alike E=3,k=2,H=128,I=128,M=3,dtype=float16,activation=silu,bias=off,quant=fp8,mask=ep",
    "alike E=2,k=1,H=264,I=256,M=3,dtype=float16,activation=silu,bias=off,quant=fp8",
    "alike E=2,k=2,H=160,I=96,M=3,dtype=float16,quant=mxfp4",
    "alike E=2,k=1,H=64,I=128,M=2,dtype=float16,activation=silu,bias=off,quant=mxfp4",
    "runner E=4,k=2,H=64,I=64,M=5,dtype=float16,quant=mxfp4",
    "runner E=5,k=3,H=96,I=64,M=1,dtype=float16,quant=mxfp4,bias=off",
    "choose 5 3 7",
    "choose 128 8 3",
    "widen E=2,k=2,H=96,I=64,M=3,dtype=bfloat16,quant=mxfp4",
    "codes 500",
    "align 30 4 16",
    "align 4900 3 64",
]


@pytest.fixture(scope="module")
def answers():
    """What the interpreter found, job by job, from one process for all of them."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    script = Path(__file__).with_name("interpreted.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], input="\n".join(JOBS), env=environment, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["job"]: line["problems"] for line in lines} | ({} if done.returncode == 0 else {"error": done.stderr[-2000:]})


@pytest.mark.parametrize("job", JOBS)
def test_kernels__agree_with_the_oracle(answers, job):
    assert answers.get(job) == [], answers.get("error", "")
