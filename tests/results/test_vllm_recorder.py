"""vLLM's plug-in sees what a layer's router chooses; vLLM is not installed here: its layer and its graphs are made up."""

import base64
import importlib.machinery
import json
import sys
import types
from array import array

import pytest

from perfgate.serving.experts import expert_recorder, vllm_recorder
from perfgate.serving.experts.expert_probe import Completions
from perfgate.serving.experts.expert_recorder import HOOKED, ON, RECORD

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

LOGITS = torch.tensor([[0.1, 0.9, 0.5, 0.2], [2.0, 1.0, 0.0, 3.0]])
CHOSEN = [[2, 1], [0, 3]]


class Router:
    def __init__(self, method):
        self.routing_method_type = types.SimpleNamespace(name=method)

    def select_experts(self, hidden_states, router_logits, input_ids=None):
        assert (hidden_states, router_logits is LOGITS, input_ids) == ("hidden", True, None)
        return None, torch.tensor(CHOSEN)


@pytest.fixture
def server(monkeypatch, tmp_path):
    """The process of a server with the plug-in in it, whose recorder is switched on."""

    class MoERunner:
        def __init__(self, *, is_monolithic=False, method="Renormalize", has_eplb=False):
            parallel = types.SimpleNamespace(enable_eplb=has_eplb)
            self.moe_config = types.SimpleNamespace(experts_per_token=2, moe_parallel_config=parallel)
            self.is_monolithic, self.router = is_monolithic, Router(method)

        def _apply_quant_method(self, hidden_states, **_):
            return f"{hidden_states}, computed"

        def run(self):
            return self._apply_quant_method(hidden_states="hidden", router_logits=LOGITS, input_ids=None)

    class CudagraphDispatcher:
        def dispatch(self, _, valid_modes=None):
            return valid_modes

    modules = {"vllm": {}, vllm_recorder.RUNNER.rpartition(".")[0]: {}, vllm_recorder.RUNNER: {"MoERunner": MoERunner}}
    modules |= {vllm_recorder.GRAPHS: {"CudagraphDispatcher": CudagraphDispatcher}}
    modules |= {"vllm.config": {"CUDAGraphMode": types.SimpleNamespace(NONE="no graph")}}
    for name, content in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(content, __spec__=importlib.machinery.ModuleSpec(name, None))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv(expert_recorder.VARIABLE, str(tmp_path))
    clock = iter(range(1000))
    monkeypatch.setattr(expert_recorder.time, "monotonic", lambda: float(next(clock)))
    vllm_recorder.register()
    (tmp_path / ON).touch()
    return types.SimpleNamespace(layer=MoERunner, graphs=CudagraphDispatcher(), folder=tmp_path)


def read_lines(folder):
    path = folder / RECORD
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(line["layer"], line["experts"], line["placed"], list(array("H", base64.b64decode(line["ids"])))) for line in lines]


def test_register__each_layer_writes_what_its_router_chooses(server):
    layers = [server.layer(), server.layer(has_eplb=True)]

    assert [layer.run() for layer in layers] == ["hidden, computed"] * 2
    assert read_lines(server.folder) == [(0, 4, False, [2, 1, 0, 3]), (1, 4, True, [2, 1, 0, 3])]


@pytest.mark.parametrize(("method", "seen"), [("Renormalize", [(0, 4, False, [1, 2, 3, 0])]), ("DeepSeekV3", [])])
def test_register__a_kernel_that_chooses_by_itself(server, method, seen):
    server.layer(is_monolithic=True, method=method).run()

    assert read_lines(server.folder) == seen


def test_register__is_switched_off(server):
    (server.folder / ON).unlink()
    server.layer().run()

    assert (server.folder / HOOKED).exists()
    assert read_lines(server.folder) == []
    assert server.graphs.dispatch(8) is None


def test_register__no_graph_is_replayed_while_it_is_on(server):
    assert server.graphs.dispatch(8) == {"no graph"}


def test_register__leaves_a_server_alone_that_names_no_folder(monkeypatch):
    monkeypatch.delenv(expert_recorder.VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)

    vllm_recorder.register()


def test_register__leaves_a_release_alone_that_has_no_such_layer(monkeypatch, tmp_path):
    monkeypatch.setenv(expert_recorder.VARIABLE, str(tmp_path))
    for name in ("vllm", "vllm.model_executor", "vllm.model_executor.layers", "vllm.model_executor.layers.fused_moe"):
        module = types.ModuleType(name)
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)

    vllm_recorder.register()


def test_completions__ids_of_each_prompt_in_its_place():
    asked = Completions(model="a model").write([[5, 6], [7, 8]], 2)
    reply = {"choices": [{"index": 1, "token_ids": [3, 4]}, {"index": 0, "token_ids": [1, 2]}]}

    assert asked["prompt"] == [[5, 6], [7, 8]]
    assert (asked["model"], asked["max_tokens"], asked["return_token_ids"]) == ("a model", 2, True)
    assert Completions(model="a model").read(reply) == [[1, 2], [3, 4]]
