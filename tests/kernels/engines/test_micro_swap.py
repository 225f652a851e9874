"""What our hooks make of calls of SGLang's runner of 4-bit weights, without SGLang; test_interpreter.py computes layers."""

from dataclasses import dataclass, make_dataclass, replace
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

import torch

from perfgate_moe.engines import micro_swap, plugin
from perfgate_moe.engines.counters import Counters
from perfgate_moe.engines.micro_swap import BRICKS, MicroSwap, RunnerCall, StandIn, Waiting, list_plans, read_layer
from perfgate_moe.engines.swap import ServerState
from perfgate_moe.errors import NotApplicableError
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.layer.tables import Tuned
from perfgate_moe.layer.tiles import DECODE

TABLES = ("a_ragged_metadata", "gather_indx", "scatter_indx", "gate_scal", "n_expts_act")
SERVER = ServerState(is_interpreted=True)
PROBLEM = build(LayerCase(E=4, k=2, H=64, I=64, M=3, dtype="float16", quant="mxfp4"))
Inputs = make_dataclass("Inputs", ["hidden_states", *TABLES], frozen=True)
Weights = make_dataclass("Weights", ["w13_weight", "w2_weight", "w13_bias", "w2_bias"])
CONFIG = {
    "activation": "silu", "is_gated": True, "apply_router_weight_on_input": False, "no_combine": False, "inplace": True,
    "gemm1_alpha": 1.702, "gemm1_clamp_limit": 7.0, "swiglu_limit": None,
}  # fmt: skip


@dataclass
class Weight:
    """What SGLang's runner reads: an object with the weight in a layout of its own."""

    data: torch.Tensor


@dataclass(frozen=True)
class Precision:
    """What SGLang makes of the other parts when it loads a model."""

    scale: object
    flex: object
    dtype: object = None


def swizzle(quant_tensor, scale, num_warps):
    return Weight(quant_tensor), "flex", Weight(scale + num_warps)


def routing(logits, n_expts_act, **words):
    return (*(f"table {place} for {len(logits)}, {words}" for place in range(4)), n_expts_act)


def theirs(_, inputs, *__):
    """SGLang's own runner: it says what it got."""
    return [getattr(inputs, name) for name in TABLES]


@pytest.fixture
def swap():
    return MicroSwap(
        mode="slots", counters=Counters(mode="slots", versions={}), server=lambda: SERVER, promised=lambda: SERVER,
        tables=TABLES, output=SimpleNamespace,
    )  # fmt: skip


def inputs_of(swap, **changes):
    """What a router's scores become on the way to the runner."""
    scores = torch.zeros(3, 4, dtype=torch.float16)
    tables = swap.put_off(routing, scores, 2, n_rows=None)
    return replace(Inputs(PROBLEM.hidden, *tables), **changes)


def weights_of(swap):
    weights = ((PROBLEM.gate_up, PROBLEM.scales.gate_up), (PROBLEM.down, PROBLEM.scales.down))
    first, second = (swap.lay_out(swizzle, *weight, 8)[0] for weight in weights)
    return Weights(first, second, PROBLEM.gate_up_bias, PROBLEM.down_bias)


def core_of(**changes):
    return SimpleNamespace(config=SimpleNamespace(**CONFIG | changes))


def test_put_off__stands_for_every_table_until_the_layer_is_sglangs(swap):
    inputs = inputs_of(swap)
    assert [isinstance(getattr(inputs, name), Waiting) for name in TABLES] == [True, True, True, True, False]

    found = swap.run(theirs, core_of(activation="gelu"), inputs, weights_of(swap), {})

    assert found == [*(f"table {place} for 3, {{'n_rows': None}}" for place in range(4)), 2]


def test_put_off__leaves_scores_that_are_normalised_first_to_sglang(swap):
    assert swap.put_off(routing, "abc", 2, sm_first=True) == routing("abc", 2, sm_first=True)


def test_run__leaves_tables_that_another_router_made(swap):
    inputs = Inputs(PROBLEM.hidden, *routing("abc", 2))

    assert swap.run(theirs, core_of(), inputs, weights_of(swap), {}) == [*routing("abc", 2)]
    assert swap.counters.fallbacks == {"a router whose scores did not wait": 1}


def test_hooks__leave_a_graph_that_is_traced_as_a_whole(swap):
    def layer(hidden, scores):
        tables = swap.put_off(lambda logits, count, **_: (logits, logits, logits, logits, count), scores, 2, n_rows=None)
        return swap.run(lambda _, inputs, *__: inputs.hidden_states + inputs.gate_scal, core, Inputs(hidden, *tables), None, {})

    core = core_of()

    assert torch.compile(layer, fullgraph=True, backend="eager")(torch.ones(3, 4), torch.ones(3, 4)).tolist() == [[2.0] * 4] * 3
    assert not swap.counters.fallbacks


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"activation": "gelu"}, "activation='gelu'"),
        ({"is_gated": False}, "is_gated=False"),
        ({"apply_router_weight_on_input": True}, "apply_router_weight_on_input=True"),
        ({"no_combine": True}, "no_combine=True"),
        ({"gemm1_beta": 2.0}, "gemm1_beta=2.0"),
        ({"swiglu_limit": 10.0}, "swiglu_limit=10.0"),
        ({"gate_up_interleaved": False}, "gate_up_interleaved=False"),
        ({"gemm1_alpha": None}, "another activation than gpt-oss'"),
    ],
)
def test_run__leaves_what_the_configuration_asks_for_to_sglang(swap, config, reason):
    assert swap.run(theirs, core_of(**config), inputs_of(swap), weights_of(swap), {})[-1] == 2
    assert swap.counters.fallbacks == {reason: 1}


@pytest.mark.parametrize(
    ("hidden", "reason"),
    [
        (PROBLEM.hidden.float(), "hidden states of another type or width"),
        (PROBLEM.hidden[:, :32], "hidden states of another type or width"),
        (PROBLEM.hidden.T.contiguous().T, "hidden states or scores not contiguous"),
        (PROBLEM.hidden[:0], "no tokens"),
        (PROBLEM.hidden[:2], "experts that are not all at hand"),
    ],
)
def test_run__leaves_hidden_states_that_our_kernels_do_not_cover(swap, hidden, reason):
    assert swap.run(theirs, core_of(), inputs_of(swap, hidden_states=hidden), weights_of(swap), {})[-1] == 2
    assert swap.counters.fallbacks == {reason: 1}


def test_run__leaves_weights_without_bricks_and_parts_that_are_not_known(swap):
    weights = weights_of(swap)
    swap.run(theirs, core_of(), inputs_of(swap), replace(weights, w2_weight=Weight(None)), {})
    more = make_dataclass("More", ["w2_zero_point"], bases=(Weights,))
    swap.run(theirs, core_of(), inputs_of(swap), more(*vars(weights).values(), None), {})

    reasons = {"weights that were not laid out in bricks": 1, "the unknown w2_zero_point": 1}
    assert swap.counters.fallbacks == reasons


def test_run__leaves_a_layer_whose_kernel_is_refused_when_it_runs(swap, monkeypatch):
    def refuse(*_):
        raise NotApplicableError("bricks: bytes of a word lie apart")

    monkeypatch.setattr(micro_swap, "choose_by_score", lambda *_: None)
    monkeypatch.setattr(micro_swap, "fused_moe", refuse)
    found = swap.run(theirs, core_of(), inputs_of(swap), weights_of(swap), {})

    assert found[-1] == 2
    assert swap.counters.fallbacks == {"bricks: bytes of a word lie apart": 1}


@pytest.mark.parametrize(("rest", "words"), [(({}, "adapters"), {}), (({},), {"hooks": "adapters"})])
def test_run__leaves_lora_to_sglang(swap, rest, words):
    swap.run(lambda *_, **__: None, core_of(), inputs_of(swap), weights_of(swap), *rest, **words)

    assert swap.counters.fallbacks == {"LoRA hooks": 1}


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (ServerState(is_interpreted=True, is_deterministic=True), "deterministic inference: tiles depend on the batch"),
        (ServerState(is_interpreted=True, is_symmetric=True), "answer in symmetric memory"),
        (ServerState(), "device cpu"),
    ],
)
def test_run__leaves_what_the_server_asks_for_besides(swap, server, reason):
    other = replace(swap, server=lambda: server)

    assert other.run(theirs, core_of(), inputs_of(swap), weights_of(swap), {})[-1] == 2
    assert swap.counters.fallbacks == {reason: 1}


def test_read_layer__poses_what_the_bricks_hold(swap):
    asked = RunnerCall(
        inputs=inputs_of(swap), weights=weights_of(swap), config=core_of(gemm1_alpha=1.5).config, hooks=None, tables=TABLES
    )
    problem, scores = read_layer(asked, SERVER)

    assert (problem.quant, problem.hidden_size, problem.intermediate_size, problem.top_k) == ("mxfp4", 64, 64, 2)
    assert (problem.activation.alpha, problem.activation.limit, scores.shape) == (1.5, 7.0, (3, 4))


def found_plans(*gains):
    """What is found stored for a weight with plans of these gains."""
    return lambda *_: [Tuned(plan=DECODE, gain=gain) for gain in gains]


def lay_down(swap):
    """SGLang's parts of the second product's weight, after our hook."""
    return swap.lay_out(swizzle, PROBLEM.down, PROBLEM.scales.down, 8)


def is_sglangs(parts):
    """Whether they are SGLang's own, and nothing else is held."""
    weight, flex, scale = parts
    own = torch.equal(weight.data, PROBLEM.down) and torch.equal(scale.data, PROBLEM.scales.down + 8)
    return own and flex == "flex" and not hasattr(weight, BRICKS)


def test_lay_out__keeps_bricks_alone(swap):
    def refuse(*_):
        raise AssertionError("SGLang's own layout was made")

    parts = swap.lay_out(refuse, PROBLEM.down, PROBLEM.scales.down, 8)

    assert [type(part) for part in parts] == [StandIn, StandIn, StandIn]
    assert len({id(part.perfgate_bricks) for part in parts}) == 1


@pytest.mark.parametrize("mode", ["owner", "atomic32", "auto"])
def test_lay_out__leaves_weights_that_its_mode_computes_nothing_of(swap, mode):
    assert is_sglangs(lay_down(replace(swap, mode=mode)))


@pytest.mark.parametrize(
    ("gains", "types"),
    [((1.2, None, 1.0), [StandIn, StandIn, StandIn]), ((1.2, 0.9), [Weight, str, Weight]), ((), [Weight, str, Weight])],
)
def test_lay_out__auto_keeps_what_its_plans_take(swap, monkeypatch, gains, types):
    monkeypatch.setattr(micro_swap, "list_plans", found_plans(*gains))
    parts = lay_down(replace(swap, mode="auto"))

    assert [type(part) for part in parts] == types
    assert hasattr(parts[0], BRICKS) == bool(gains)


@pytest.mark.parametrize("promise", ["is_deterministic", "is_symmetric"])
def test_lay_out__leaves_weights_of_a_server_whose_layers_are_all_sglangs(swap, promise):
    assert is_sglangs(lay_down(replace(swap, promised=lambda: replace(SERVER, **{promise: True}))))


def test_lay_out__keeps_both_where_layers_are_traced(swap):
    weight, *rest = lay_down(replace(swap, promised=lambda: replace(SERVER, is_traced=True)))

    assert isinstance(weight, Weight)
    assert hasattr(weight, BRICKS)
    assert rest[0] == "flex"


@pytest.mark.parametrize(("capability", "is_kept"), [((8, 0), False), ((9, 0), True), ((10, 0), False)])
def test_is_useful__on_hopper_alone(monkeypatch, capability, is_kept):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)

    assert micro_swap.is_useful("slots", SimpleNamespace(type="cuda"), ServerState(), []) is is_kept


def test_run__makes_sglangs_weights_for_a_call_that_is_left_to_it(swap):
    made = []

    def lay(*given):
        made.append(given)
        return swizzle(*given)

    weights = ((PROBLEM.gate_up, PROBLEM.scales.gate_up), (PROBLEM.down, PROBLEM.scales.down))
    (first, flex, scale), (second, *_) = (swap.lay_out(lay, *weight, 8) for weight in weights)
    more = make_dataclass("More", ["w13_precision_config"], bases=(Weights,))
    held = more(first, second, PROBLEM.gate_up_bias, PROBLEM.down_bias, Precision(scale, flex, torch.float16))
    found = swap.run(lambda _, __, own, *___: own, core_of(activation="gelu"), inputs_of(swap), held, {})

    assert torch.equal(found.w13_weight.data, PROBLEM.gate_up)
    assert torch.equal(found.w2_weight.data, PROBLEM.down)
    assert torch.equal(found.w13_precision_config.scale.data, PROBLEM.scales.gate_up + 8)
    assert found.w13_precision_config.flex == "flex"
    assert found.w13_precision_config.dtype is torch.float16
    assert found.w2_bias is PROBLEM.down_bias
    assert len(made) == 2
    assert held.w13_weight is first


def test_hook_micro__leaves_a_server_that_cannot_load_its_runner(monkeypatch, capsys):
    monkeypatch.setattr(plugin, "find_spec", lambda _: "found")
    monkeypatch.setattr(plugin, "_installed_version", lambda: "0.5.21")
    # SGLang catches that names of triton_kernels are missing, and defines no `routing` then.
    monkeypatch.setattr(plugin, "_import", lambda name: SimpleNamespace(__name__=name, TritonKernelTopKOutput=tuple))

    assert plugin._hook_micro(SimpleNamespace()) == {}
    assert "no runner of 4-bit weights: SGLang 0.5.21 has no sglang.srt.layers.moe.topk.routing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "is_pieces", "found"),
    [
        ((False, False), False, (False, False)),
        ((True, False), False, (True, False)),
        ((False, True), False, (False, True)),
        ((False, False), True, (False, True)),
    ],
)
def test_promised__by_the_options_of_a_server_that_loads(monkeypatch, options, is_pieces, found):
    named = dict(zip(("enable_deterministic_inference", "enable_torch_compile"), options, strict=True))
    asked = ("prefill", "tc_piecewise")
    modules = {
        plugin.ALLOCATOR: SimpleNamespace(is_symmetric_memory_enabled=lambda: False),
        plugin.OPTIONS: SimpleNamespace(get_server_args=lambda: SimpleNamespace(**named)),
        plugin.GRAPHS: SimpleNamespace(check_cuda_graph_backend=lambda *given: is_pieces and given == asked),
    }
    monkeypatch.setattr(plugin, "import_module", modules.__getitem__)
    layer = SimpleNamespace(is_batch_invariant_mode_enabled=lambda: False)
    state = plugin.Swap(module=layer, counters=None).promised()

    assert (state.is_deterministic, state.is_traced) == found


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((32, 5760, 1440), [1, 64]),  # gate and up
        ((32, 2880, 1440), [1, 64]),  # down
        ((128, 5760, 1440), []),
        ((32, 2880, 720), []),
    ],
)
def test_list_plans__of_a_layer_that_a_weight_is_part_of(monkeypatch, shape, found):
    entries = {tokens: Tuned(plan=DECODE, gain=float(tokens)) for tokens in (1, 64)}
    table = {"E=32,k=4,H=2880,I=2880,swiglu,mxfp4": entries, "E=128,k=4,H=2880,I=2880,swiglu": entries}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(micro_swap, "stored", lambda _: table)

    assert [each.gain for each in list_plans(SimpleNamespace(type="cuda"), shape)] == found
    assert list_plans(SimpleNamespace(type="cpu"), shape) == []


def test_list_plans__of_gpt_oss_on_an_h200_all_gained(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    plans = list_plans(SimpleNamespace(type="cuda"), (32, 5760, 1440))

    assert plans
    assert all(micro_swap.is_taken(plan) for plan in plans)
