"""Real SGLang on the CPU is asked which experts its tokens choose: a mixture passes, routers in name only do not.

Entry points are read from installed packages: a checkout that was installed before the recorder existed is seen through a
folder of its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import sys
from array import array
from pathlib import Path

import numpy as np
import orjson
import pytest

from perfgate.core import Arm
from perfgate.engines.table import ENGINES
from perfgate.results.expert_use import load_use, store_use
from perfgate.results.words import describe_damage
from perfgate.scenario.catalog import load_scenario
from perfgate.serving.engine.conversation import post
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.experts import expert_probe
from perfgate.serving.experts.expert_probe import draw_prompts, probe, read_passes
from perfgate.serving.experts.expert_recorder import RECORD
from perfgate.serving.model.tiny_model import write_tiny_model
from perfgate.stats.expert_use import expect_distinct
from perfgate.verdict.validity.routing import check_use

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.xdist_group("engine")]

ROOT = Path(__file__).parents[2]
GROUP = "[sglang.srt.plugins]\n"
RECORDER = "perfgate_experts = perfgate.serving.experts.expert_recorder:register\n"
# A router that takes turns by the place of a token in its pass, and one that counts calls: neither looks at the token.
CYCLE = """
import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
CALLS = [0]
def choose(original, self, hidden, logits, *args, **kwargs):
    output = original(self, hidden, logits, *args, **kwargs)
    rows, top_k = output.topk_ids.shape
    CALLS[0] += {step}
    at = torch.arange(rows).unsqueeze(1) * top_k + torch.arange(top_k) + CALLS[0]
    return output._replace(topk_ids=(at % logits.shape[-1]).to(output.topk_ids.dtype))
def register():
    # Replaces the method, so that the recorder, whatever the order, sees what the kernel is given.
    from sglang.srt.layers.moe.topk import TopK
    original = TopK.forward_native, TopK.forward_cpu
    for name, one in zip(("forward_native", "forward_cpu"), original):
        setattr(TopK, name, lambda self, *a, _one=one, **k: choose(_one, self, *a, **k))
"""


def write_site(folder: Path, plugin: str = "") -> Path:
    """A folder for PYTHONPATH with perfgate's recorder as a plug-in, and with `plugin` as another."""
    facts = folder / "perfgate_recorder-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: perfgate-recorder\nVersion: 1\n")
    lines = GROUP + RECORDER
    if plugin:
        (folder / "cycling_router.py").write_text(plugin)
        lines += "cycling = cycling_router:register\n"
    (facts / "entry_points.txt").write_text(lines)
    return folder


def build_launch(model: Path, site: Path) -> Launch:
    scenario = load_scenario("cpu-moe")
    path = os.pathsep.join([str(ROOT), str(site)])
    # Only the plug-ins of this test, however perfgate is installed.
    own = {"PYTHONPATH": path, "SGLANG_PLUGINS": "perfgate_experts,cycling"}
    return Launch(
        engine=ENGINES["sglang-cpu"],
        python=sys.executable,
        model=model,
        args=scenario.server.args,
        env={**scenario.server.env, **own},
        ready_timeout_s=300.0,
        stop_timeout_s=2.0,
    )


def swamp_router(model: Path) -> Path:
    """Give every token one dimension that swamps the others, and the router a row for it: a bias larger than all logits."""
    path = model / "model.safetensors"
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])

    def view(name):
        first, last = header[name]["data_offsets"]
        return np.frombuffer(content, dtype="<u2", count=(last - first) // 2, offset=8 + size + first).reshape(
            header[name]["shape"]
        )

    def bfloat16(values):
        return (np.asarray(values, dtype="<f4").view("<u4") >> 16).astype("<u2")

    view("model.embed_tokens.weight")[:, 0] = bfloat16([1000.0])[0]
    for layer in (0, 1):
        gate = view(f"model.layers.{layer}.mlp.gate.weight")
        gate[:, 0] = bfloat16(np.linspace(8.0, -8.0, gate.shape[0]))
    path.write_bytes(content)
    return model


@pytest.fixture(scope="module")
def reaper():
    reaper = Reaper()
    yield reaper
    reaper.close()


@contextlib.contextmanager
def serve(model, site, folder, reaper):
    with Server(build_launch(model, site), folder / "server.log", reaper) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "tiny-qwen3-moe")


def ask(server, concurrency=16):
    found = probe(server, server.expert_folder, concurrency)
    store_use(server.log.parent, found, arm=Arm.BASE, block=1, start=1)
    uses, damage = load_use(server.log.parent, (Arm.BASE,))
    return uses[Arm.BASE], [*(describe_damage(found) for found in damage), *check_use({Arm.BASE: uses[Arm.BASE]})]


def test_probe__tiny_model_is_a_mixture_of_experts(tmp_path, model, reaper):
    with serve(model, write_site(tmp_path / "site"), tmp_path, reaper) as server:
        use, problems = ask(server)
        folder = server.expert_folder

    assert (use.unknown, problems) == (None, [])
    assert [layer.used for layer in use.layers] == [8, 8]
    assert all(layer.effective > 6.0 for layer in use.layers)
    assert all(layer.dependence > 0.5 for layer in use.layers)
    assert use.layers[0].uniform_a_step == pytest.approx(expect_distinct(8, 2, 16))
    assert not folder.exists()


def test_probe__what_prefill_chooses_is_what_decode_chose(tmp_path, model, reaper):
    """On the CPU decode steps run in Python too, and can be seen: the texts sent again stand for them."""
    with serve(model, write_site(tmp_path / "site"), tmp_path, reaper) as server:
        folder = server.expert_folder
        [prompt] = draw_prompts(1, 4096)
        server.flush_cache()
        expert_probe._switch(folder, is_on=True)
        content = {"input_ids": prompt, "sampling_params": {"temperature": 0.0, "max_new_tokens": 17, "ignore_eos": True}}
        answer = orjson.loads(post(server, "/generate", content, what="a prompt", timeout_s=60.0))["output_ids"]
        decoded = [one for one in read_passes(folder / RECORD) if one.tokens == 1][:16]
        (folder / RECORD).unlink()
        server.flush_cache()
        expert_probe._compute(server, prompt + answer[:16])
        [whole] = [one for one in read_passes(folder / RECORD) if one.tokens == 48]

    def read(one, layer):
        ids = array("H", base64.b64decode(one.lines[layer]["ids"]))
        return [frozenset(ids[first : first + 2]) for first in range(0, len(ids), 2)]

    pairs = [(read(step, layer)[0], read(whole, layer)[32 + at]) for layer in (0, 1) for at, step in enumerate(decoded)]
    same = sum(len(one & other) for one, other in pairs) / (2 * len(pairs))
    assert len(pairs) == 32
    assert same >= 0.95


def test_probe__router_whose_bias_swamps_the_logits_is_refused(tmp_path, model, reaper):
    collapsed = swamp_router(Path(shutil.copytree(model, tmp_path / "collapsed")))
    with serve(collapsed, write_site(tmp_path / "site"), tmp_path, reaper) as server:
        use, problems = ask(server)

    assert [layer.used for layer in use.layers] == [2, 2]
    assert problems[0].startswith("this model cannot measure a MoE kernel: as the base serves it, a decode step of 16 tokens")
    assert "touches 2.0 of 8 experts" in problems[0]


@pytest.mark.parametrize("step", [0, 3], ids=["by place", "by calls"])
def test_probe__router_that_takes_turns_is_refused(tmp_path, model, reaper, step):
    """It uses every expert alike, and looks at no token."""
    with serve(model, write_site(tmp_path / "site", CYCLE.replace("{step}", str(step))), tmp_path, reaper) as server:
        use, problems = ask(server)

    assert [layer.used for layer in use.layers] == [8, 8]
    assert all(layer.effective > 7.9 for layer in use.layers)
    assert any("do not depend on the token" in problem for problem in problems)
