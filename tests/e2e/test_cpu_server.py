"""One real server on the CPU, asked what a session asks: its answers, its operators, which experts its tokens choose.

A right one gives its own answers again and is a mixture of experts; wrong answers and routers in name only are told from it.
What is wrong comes and goes while the server runs: its router follows a file, and it can be given other weights. Entry points
are read from installed packages: a checkout that was installed before the recorder existed is seen through a folder of its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import sys
from array import array
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import orjson
import pytest

from perfgate.core import Arm
from perfgate.engines.table import ENGINES
from perfgate.evidence import Answers
from perfgate.results.answers import load_answers, store_answers
from perfgate.results.expert_use import load_use, store_use
from perfgate.results.profiling.profiles import Profile, attribute_profiles, load_profiles
from perfgate.results.words import describe_damage
from perfgate.scenario.catalog import load_scenario
from perfgate.serving.engine.conversation import post
from perfgate.serving.engine.launch import Launch
from perfgate.serving.engine.reaper import Reaper
from perfgate.serving.engine.server import Server
from perfgate.serving.equivalence import ask
from perfgate.serving.experts import expert_probe
from perfgate.serving.experts.expert_probe import Generate, draw_prompts, probe, read_passes
from perfgate.serving.experts.expert_recorder import RECORD
from perfgate.serving.model.tiny_model import write_tiny_model
from perfgate.serving.profiling import profile_server
from perfgate.stats.expert_use import expect_distinct
from perfgate.verdict.validity.equivalence import check_equivalence, compare_starts
from perfgate.verdict.validity.routing import check_use

# One group: two gates at once on one machine would be each other's noise.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), pytest.mark.xdist_group("engine")]

ROOT = Path(__file__).parents[2]
RECORDER = "perfgate_experts = perfgate.serving.experts.expert_recorder:register"
ENTRY_POINTS = f"[sglang.srt.plugins]\n{RECORDER}\nwayward = wayward_router:register\n"
FOLLOWED = "WAYWARD_ROUTER"
# A router that does what the file says: the model's own choice; the first of two experts alone, which is faster, and wrong; or
# turns, by the place of a token in its pass or by the number of calls: neither looks at the token.
ONE_EXPERT, BY_PLACE, BY_CALLS = "one expert", "by place", "by calls"
ROUTER = f"""
import os
from pathlib import Path
import torch
FOLLOWED = Path(os.environ["{FOLLOWED}"])
CALLS = [0]
def choose(original, self, hidden, logits, *args, **kwargs):
    output = original(self, hidden, logits, *args, **kwargs)
    way = FOLLOWED.read_text()
    rows, top_k = output.topk_ids.shape
    if way == "{ONE_EXPERT}":
        first = torch.zeros_like(output.topk_weights)
        first[:, 0] = 1
        return output._replace(topk_weights=first)
    if way in ("{BY_PLACE}", "{BY_CALLS}"):
        CALLS[0] += 3 * (way == "{BY_CALLS}")
        at = torch.arange(rows).unsqueeze(1) * top_k + torch.arange(top_k) + CALLS[0]
        return output._replace(topk_ids=(at % logits.shape[-1]).to(output.topk_ids.dtype))
    return output
def register():
    # Replaces the method, so that the recorder, whatever the order, sees what the kernel is given.
    from sglang.srt.layers.moe.topk import TopK
    original = TopK.forward_native, TopK.forward_cpu
    for name, one in zip(("forward_native", "forward_cpu"), original):
        setattr(TopK, name, lambda self, *a, _one=one, **k: choose(_one, self, *a, **k))
"""


def write_site(folder: Path) -> Path:
    """A folder for PYTHONPATH with perfgate's recorder and the wayward router as plug-ins."""
    facts = folder / "perfgate_recorder-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: perfgate-recorder\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "wayward_router.py").write_text(ROUTER)
    return folder


def build_launch(model: Path, args: tuple[str, ...] = (), env: Mapping[str, str] = MappingProxyType({})) -> Launch:
    """The server of the scenario cpu-moe, with arguments and variables of a test."""
    scenario = load_scenario("cpu-moe")
    return Launch(
        engine=ENGINES["sglang-cpu"],
        python=sys.executable,
        model=model,
        args=(*scenario.server.args, *args),
        env={**scenario.server.env, **env},
        ready_timeout_s=300.0,
        stop_timeout_s=0.2,
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
def server(tmp_path_factory):
    """The server; nothing of it may be left in the end."""
    folder = tmp_path_factory.mktemp("server")
    model = write_tiny_model(folder / "model", "tiny-qwen3-moe")
    followed = folder / "router"
    followed.write_text("")
    # Only the plug-ins of this test, however perfgate is installed.
    path = os.pathsep.join([str(ROOT), str(write_site(folder / "site"))])
    env = {"PYTHONPATH": path, "SGLANG_PLUGINS": "perfgate_experts,wayward", FOLLOWED: str(followed)}
    launch = build_launch(model, env=env)
    reaper = Reaper()
    with contextlib.ExitStack() as stack:
        stack.callback(reaper.close)
        server = stack.enter_context(Server(launch, folder / "server.log", reaper))
        server.wait_ready()
        yield server
    assert not server.expert_folder.exists()


@contextlib.contextmanager
def follow(server, way):
    """Have the server's router go another way for a while."""
    followed = Path(server.launch.env[FOLLOWED])
    followed.write_text(way)
    yield
    followed.write_text("")


@pytest.fixture(scope="module")
def folder(server, tmp_path_factory):
    """Answers of a base, asked twice, and of a candidate that is wrong; a profile of each."""
    folder = tmp_path_factory.mktemp("answers")
    scenario = load_scenario("cpu-moe")
    for number, (arm, way) in enumerate({Arm.BASE: "", Arm.CANDIDATE: ONE_EXPERT}.items(), start=1):
        with follow(server, way):
            for start in (number, number + 10):
                body, question = ask(server, scenario.equivalence)
                store_answers(folder, body, Answers(arm=arm, block=1, start=start, question=question))
            profile_server(server, scenario.load, folder, Profile(arm=arm, block=1, start=number))
    return folder


def test_ask__a_server_gives_its_own_answers_again(folder):
    answers = {found.start: found for found in load_answers(folder)}
    drift = compare_starts(answers[1], answers[11])

    assert [found.problem for found in answers.values()] == [None] * 4
    assert drift.mean < 0.01


def test_check_equivalence__one_expert_of_two_is_wrong(folder):
    [problem] = check_equivalence(load_answers(folder), load_scenario("cpu-moe").equivalence)

    assert "its answers are wrong, however fast" in problem


def test_profile_server__shows_the_operators_of_both(folder):
    found = attribute_profiles(load_profiles(folder))
    # Which requests meet in the profiled steps is chance: an operator of prefill may show in one arm alone.
    shared = {part.name for part in found.parts if part.base_count > 0 and part.candidate_count > 0}

    assert found.kind == "operator"
    assert shared & {"aten::mm", "aten::linear"}, found.parts


def learn_use(server, folder):
    """Which experts the server chooses, and what is wrong with that."""
    found = probe(server, server.expert_folder, max_concurrency=16)
    store_use(folder, found, arm=Arm.BASE, block=1, start=1)
    uses, damage = load_use(folder, (Arm.BASE,))
    return uses[Arm.BASE], [*(describe_damage(found) for found in damage), *check_use({Arm.BASE: uses[Arm.BASE]})]


def test_probe__tiny_model_is_a_mixture_of_experts(tmp_path, server):
    use, problems = learn_use(server, tmp_path)

    assert (use.unknown, problems) == (None, [])
    assert [layer.used for layer in use.layers] == [8, 8]
    assert all(layer.effective > 6.0 for layer in use.layers)
    assert all(layer.dependence > 0.5 for layer in use.layers)
    assert use.layers[0].uniform_a_step == pytest.approx(expect_distinct(8, 2, 16))


def test_probe__what_prefill_chooses_is_what_decode_chose(server):
    """On the CPU decode steps run in Python too, and can be seen: the texts sent again stand for them."""
    folder = server.expert_folder
    [prompt] = draw_prompts(1, 4096)
    server.flush_cache()
    expert_probe._switch(folder, is_on=True)
    content = {"input_ids": prompt, "sampling_params": {"temperature": 0.0, "max_new_tokens": 17, "ignore_eos": True}}
    answer = orjson.loads(post(server, "/generate", content, what="a prompt", timeout_s=60.0))["output_ids"]
    decoded = [one for one in read_passes(folder / RECORD) if one.tokens == 1][:16]
    (folder / RECORD).unlink()
    server.flush_cache()
    post(server, Generate.path, Generate().write([prompt + answer[:16]], 1), what="its text", timeout_s=60.0)
    [whole] = [one for one in read_passes(folder / RECORD) if one.tokens == 48]
    expert_probe._switch(folder, is_on=False)

    def read(one, layer):
        ids = array("H", base64.b64decode(one.lines[layer]["ids"]))
        return [frozenset(ids[first : first + 2]) for first in range(0, len(ids), 2)]

    pairs = [(read(step, layer)[0], read(whole, layer)[32 + at]) for layer in (0, 1) for at, step in enumerate(decoded)]
    same = sum(len(one & other) for one, other in pairs) / (2 * len(pairs))
    assert len(pairs) == 32
    assert same >= 0.95


@contextlib.contextmanager
def serve_weights(server, model):
    """Have the server serve the weights of another folder for a while."""
    for path in (model, server.launch.model):
        post(server, "/update_weights_from_disk", {"model_path": str(path)}, what="to load weights", timeout_s=60.0)
        if path == model:
            yield


def test_probe__router_whose_bias_swamps_the_logits_is_refused(tmp_path, server):
    collapsed = swamp_router(Path(shutil.copytree(server.launch.model, tmp_path / "collapsed")))
    with serve_weights(server, collapsed):
        use, problems = learn_use(server, tmp_path)

    assert [layer.used for layer in use.layers] == [2, 2]
    assert problems[0].startswith("this model cannot measure a MoE kernel: as the base serves it, a decode step of 16 tokens")
    assert "touches 2.0 of 8 experts" in problems[0]


@pytest.mark.parametrize("way", [BY_PLACE, BY_CALLS])
def test_probe__router_that_takes_turns_is_refused(tmp_path, server, way):
    """It uses every expert alike, and looks at no token."""
    with follow(server, way):
        use, problems = learn_use(server, tmp_path)

    assert [layer.used for layer in use.layers] == [8, 8]
    assert all(layer.effective > 7.9 for layer in use.layers)
    assert any("do not depend on the token" in problem for problem in problems)
