"""The plug-in's hook on tensors: it writes only while asked, and reads ids in every form that SGLang hands on."""

import base64
import json
from array import array
from types import SimpleNamespace

import pytest

from perfgate.serving.experts import expert_recorder
from perfgate.serving.experts.expert_recorder import HOOKED, ON, RECORD, Recorder, read_ids

torch = pytest.importorskip("torch")

LOGITS = torch.tensor([[0.1, 0.9, 0.5, 0.2], [2.0, 1.0, 0.0, 3.0]])
WANTED = [{1, 2}, {0, 3}]


def make_module(top_k=2, fused=0):
    config = SimpleNamespace(top_k=top_k + fused, num_fused_shared_experts=fused)
    return SimpleNamespace(layer_id=0, topk_config=config)


def standard(ids):
    return SimpleNamespace(topk_ids=torch.tensor(ids, dtype=torch.int32))


@pytest.mark.parametrize(
    ("module", "result"),
    [
        (make_module(), standard([[1, 2], [3, 0]])),
        (make_module(fused=1), standard([[1, 2, 4], [3, 0, 4]])),
        (make_module(), SimpleNamespace(packed_topk_ids=torch.tensor([[(1 << 16) + 7, 2 << 16], [3 << 16, 9]]))),
        (make_module(), SimpleNamespace(to_standard=lambda _layer: standard([[2, 1], [0, 3]]))),
        (make_module(), SimpleNamespace(routing_data=None)),
    ],
    ids=["standard", "shared expert fused", "packed", "bypassed", "triton_kernels"],
)
def test_read_ids__every_form(module, result):
    assert [set(row) for row in read_ids(module, LOGITS, result).tolist()] == WANTED


def test_hook__writes_while_it_is_switched_on(tmp_path, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(expert_recorder.time, "monotonic", lambda: float(next(clock)))
    recorder = Recorder(folder=tmp_path)
    layers = [make_module(), make_module()]

    def forward():
        for module in layers:
            recorder.hook(lambda *_, **__: standard([[1, 2], [3, 0]]), module, None, LOGITS)

    forward()
    assert (tmp_path / HOOKED).exists()
    assert not (tmp_path / RECORD).exists()
    (tmp_path / ON).touch()
    forward()
    (tmp_path / ON).unlink()
    forward()
    lines = [json.loads(line) for line in (tmp_path / RECORD).read_text().splitlines()]

    assert [(line["layer"], line["experts"], line["top_k"], line["placed"]) for line in lines] == [
        (0, 4, 2, False),
        (1, 4, 2, False),
    ]
    assert list(array("H", base64.b64decode(lines[0]["ids"]))) == [1, 2, 3, 0]


def test_hook__asks_for_the_switch_at_most_twice_a_second(tmp_path, monkeypatch):
    monkeypatch.setattr(expert_recorder.time, "monotonic", lambda: 100.0)
    recorder = Recorder(folder=tmp_path)
    module = make_module()
    recorder.hook(lambda *_, **__: standard([[1, 2], [3, 0]]), module, None, LOGITS)
    (tmp_path / ON).touch()
    recorder.hook(lambda *_, **__: standard([[1, 2], [3, 0]]), module, None, LOGITS)

    assert not (tmp_path / RECORD).exists()


def test_keep_eager__prefill_replays_no_graph_while_it_is_switched_on(tmp_path, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(expert_recorder.time, "monotonic", lambda: float(next(clock)))
    recorder = Recorder(folder=tmp_path)
    answers = []
    for is_on in (False, True, False):
        (tmp_path / ON).touch() if is_on else (tmp_path / ON).unlink(missing_ok=True)
        answers.append([recorder.keep_eager(lambda _batch, can=can: can, object()) for can in (True, False)])

    assert answers == [[True, False], [False, False], [True, False]]


def test_register__leaves_a_server_alone_that_names_no_folder(monkeypatch):
    monkeypatch.delenv(expert_recorder.VARIABLE, raising=False)
    monkeypatch.setitem(__import__("sys").modules, "sglang.srt.plugins.hook_registry", None)

    expert_recorder.register()
