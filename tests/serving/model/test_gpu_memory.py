"""What the servers of a block hold is computed before a start, and agrees with what was measured; what ships fits its cards."""

import json
import tomllib
from dataclasses import replace

import pytest

from benchmarks.h200.serving.make_model import CONFIG as GPT_OSS
from perfgate.core import Arm
from perfgate.errors import InputError
from perfgate.machine.accelerators import ACCELERATORS
from perfgate.results.records import ArmRecord, read_record
from perfgate.scenario.catalog import list_scenarios, load_scenario
from perfgate.scenario.schema import parse_scenario
from perfgate.serving.measure import measure
from perfgate.serving.model.gpu_memory import (
    GIB,
    Card,
    Serving,
    explain_misfit,
    measure_serving,
    read_card,
    read_sizes,
    require_memory,
)
from tests.fakes.recorded import ROOT, VOID, bring_fused, bring_unfused
from tests.fakes.requests import KeptProgress, build_request, use_fake_engine

QWEN3 = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
# Published configs of the models that shipped scenarios serve; fewer layers are the same shape cut off.
CONFIGS = {"GptOssForCausalLM": GPT_OSS, "Qwen3MoeForCausalLM": QWEN3, "DeepseekV3ForCausalLM": DEEPSEEK}
# Nominal names of the issue: H20 96 GB, H100 80 GB, H200 141 GB.
CARDS = {row.label: Card(name=row.label, gib=row.min_gib) for row in ACCELERATORS}
H100, H20, H200 = CARDS["h100"], CARDS["h20"], CARDS["h200"]
TOKENS = ("--max-total-tokens", "65536")


def serve(*args, quantization="none", engine="sglang", env=None):
    return Serving(engine=engine, args=args, env=env or {}, quantization=quantization)


def build_arms(scenario, card):
    facts = {"gpu": card.name, "gpu_memory_gib": f"{card.gib:.1f}"}
    record = ArmRecord(
        label="as installed", python="python", argv=("python", *scenario.server.args), env=scenario.server.env, facts=facts
    )
    return {"base": record, "candidate": record}


def find_config(scenario):
    """The config of a shipped scenario's model, by its architecture."""
    config = CONFIGS[scenario.model.architecture]
    first = min(config.get("first_k_dense_replace", 0), 1 if scenario.model.layers < 10 else 99)
    return {**config, "num_hidden_layers": scenario.model.layers, **({"first_k_dense_replace": first} if first else {})}


def list_gpu_scenarios():
    return [name for name in list_scenarios() if not load_scenario(name).server.engine.endswith("-cpu")]


@pytest.mark.parametrize("card", [H100, H20, H200], ids=lambda card: card.name)
@pytest.mark.parametrize("name", list_gpu_scenarios())
def test_require_memory__every_shipped_scenario_fits_the_cards_it_is_offered_for(name, card):
    scenario = load_scenario(name)
    least = scenario.server.min_gpu_memory_gib
    if least is None or least <= card.gib:
        require_memory(scenario, find_config(scenario), build_arms(scenario, card))
    else:
        with pytest.raises(InputError, match=r"server\.min_gpu_memory_gib: scenario .* is for cards of at least"):
            require_memory(scenario, find_config(scenario), build_arms(scenario, card))


@pytest.mark.parametrize("name", list_gpu_scenarios())
def test_require_memory__every_shipped_scenario_is_offered_for_some_card(name):
    scenario = load_scenario(name)
    cards = [card for card in CARDS.values() if card.gib >= (scenario.server.min_gpu_memory_gib or 0.0)]

    assert cards
    assert read_sizes(find_config(scenario)) is not None


def test_require_memory__what_this_repository_runs_fits_its_machines():
    hardware = tomllib.loads((ROOT / ".github" / "perfgate.toml").read_text())["hardware"]
    pairs = [(load_scenario(name), CARDS[label]) for label, told in hardware.items() for name in told["scenarios"]]

    assert pairs
    for scenario, card in pairs:
        require_memory(scenario, find_config(scenario), build_arms(scenario, card))


@pytest.mark.parametrize("bring", [lambda: VOID, bring_fused, bring_unfused], ids=["void", "fused", "unfused"])
def test_explain_misfit__agrees_with_what_was_measured(bring):
    """The computed sum is no less than what two servers held at most, and no more than 5 % above."""
    session = bring()
    record = read_record(session)
    lines = (session / "windows.jsonl").read_text().splitlines()
    held_gib = max(json.loads(line)["telemetry"]["gpu_memory_used_bytes"] for line in lines) / GIB
    arms = [serve(*arm.argv) for arm in record.arms.values()]
    card = read_card(next(iter(record.arms.values())).facts)
    sizes = read_sizes(GPT_OSS)
    needed_gib = sum(measure_serving(sizes, arm, card) for arm in arms)

    assert held_gib <= needed_gib <= 1.05 * held_gib
    assert explain_misfit(sizes, arms, card, is_both=True) is None
    assert f"would need {needed_gib:.1f} GiB of h20" in explain_misfit(
        sizes, arms, replace(H20, gib=min(H20.gib, held_gib)), is_both=True
    )


def test_explain_misfit__pull_request_scenario_of_old_on_an_h100():
    """MXFP4 widened to bf16, both servers resident: the line names the card, what is needed and what to do."""
    args = ("--moe-runner-backend", "triton", *TOKENS, "--mem-fraction-static", "0.9")
    both = [serve(*args, quantization="mxfp4")] * 2
    told = explain_misfit(read_sizes(GPT_OSS), both, H100, is_both=True)

    assert told.startswith("memory: both servers of a block would need 91.9 GiB of h100, which has 78.0 GiB: set resident =")
    assert "--max-total-tokens" in told
    assert "\n" not in told
    assert explain_misfit(read_sizes(GPT_OSS), both, H100, is_both=False) is None


def test_explain_misfit__model_that_no_setting_fits():
    told = explain_misfit(read_sizes(DEEPSEEK), [serve(*TOKENS, quantization="fp8")], H200, is_both=False)

    assert told.startswith("memory: one server would need 6")
    assert "resident" not in told


def test_explain_misfit__arms_on_different_gpus_do_not_meet():
    arms = [serve(*TOKENS, env={"CUDA_VISIBLE_DEVICES": str(index)}) for index in range(2)]

    assert explain_misfit(read_sizes(GPT_OSS), arms, H100, is_both=True) is None


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_explain_misfit__engines_that_fill_the_card_cannot_share_it(engine):
    arms = [serve(engine=engine)] * 2

    assert explain_misfit(read_sizes(GPT_OSS), arms, H200, is_both=False) is None
    assert "both servers" in explain_misfit(read_sizes(GPT_OSS), arms, H200, is_both=True)


def test_measure_serving__a_pool_in_bytes_is_as_large_as_it_says():
    sizes, one, two = read_sizes(GPT_OSS), *(str(count * 2**30) for count in (1, 2))
    needed = [measure_serving(sizes, serve("--kv-cache-memory-bytes", pool, engine="vllm"), H200) for pool in (one, two)]

    assert needed[1] - needed[0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("config", "billions"),
    [(GPT_OSS, 20.9), (QWEN3, 30.5), (DEEPSEEK, 671.0)],
    ids=["gpt-oss-20b", "Qwen3-30B-A3B", "DeepSeek-V3"],
)
def test_read_sizes__parameters_as_published(config, billions):
    sizes = read_sizes(config)
    total = sizes.expert_numbers + sizes.other_numbers + sizes.embedding_numbers

    assert total / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("serving", "weights_gib"),
    [
        (serve(*TOKENS), 38.9),
        (serve(*TOKENS, quantization="mxfp4"), 12.8),
        (serve(*TOKENS, "--moe-runner-backend=triton", quantization="mxfp4"), 38.9),
        (serve(*TOKENS, "--quantization", "fp8"), 20.5),
        (serve(*TOKENS, "--tp", "2"), 19.45),
    ],
)
def test_measure_serving__weights_by_format(serving, weights_gib):
    """Tokens take 3.0 GiB in bf16, divided as weights are."""
    ranks = 2 if "--tp" in serving.args else 1

    assert measure_serving(read_sizes(GPT_OSS), serving, H200) - 3.0 / ranks - 4.0 == pytest.approx(weights_gib, abs=0.1)


def measure_pool(config, *args):
    """GiB that a pool of 65,536 more tokens takes of each GPU."""
    sizes = read_sizes(config)
    small, large = (serve("--max-total-tokens", str(tokens), *args, quantization="fp8") for tokens in (65536, 131072))
    return measure_serving(sizes, large, H200) - measure_serving(sizes, small, H200)


def test_measure_serving__heads_of_keys_and_values_are_divided_as_far_as_there_are_some():
    assert measure_pool(QWEN3, "--tp", "4") == pytest.approx(measure_pool(QWEN3) / 4)
    assert measure_pool(QWEN3, "--tp", "8") == pytest.approx(measure_pool(QWEN3) / 4)
    assert measure_pool(QWEN3, "--tp", "4", "--dp", "2", "--enable-dp-attention") == pytest.approx(measure_pool(QWEN3) / 2)


def test_measure_serving__compressed_keys_and_values_are_not_divided():
    assert measure_pool(DEEPSEEK, "--tp", "8") == pytest.approx(measure_pool(DEEPSEEK))


def test_measure_serving__expert_ranks_hold_as_much_as_tensor_ranks():
    tensor, expert = (serve(*TOKENS, "--tp", "2", *more) for more in ((), ("--ep-size", "2")))

    assert measure_serving(read_sizes(GPT_OSS), tensor, H200) == measure_serving(read_sizes(GPT_OSS), expert, H200)


def test_measure_serving__with_dp_attention_each_data_rank_holds_the_attention():
    sizes = read_sizes(DEEPSEEK)
    args = (*TOKENS, "--tp", "8")
    plain, shared = (serve(*args, *more, quantization="fp8") for more in ((), ("--dp", "8", "--enable-dp-attention")))
    more_gib = measure_serving(sizes, shared, H200) - measure_serving(sizes, plain, H200)

    assert more_gib == pytest.approx(sizes.other_numbers * (1 - 1 / 8) / GIB)


def test_explain_misfit__what_cannot_be_counted_is_let_through():
    assert read_sizes({"architectures": ["BrandNewForCausalLM"]}) is None
    assert explain_misfit(None, [serve(*TOKENS)], H100, is_both=True) is None
    assert explain_misfit(read_sizes(GPT_OSS), [serve(*TOKENS, quantization="awq")], H100, is_both=True) is None
    assert read_card({"gpu": "absent", "gpu_memory_gib": "absent"}) is None


def test_min_gpu_memory_gib__changes_no_work():
    text = (ROOT / "benchmarks/h200/serving/closed-c16.toml").read_text()
    scenario = parse_scenario(text, "old")
    other = parse_scenario(text.replace("ready_timeout_s", "min_gpu_memory_gib = 100.0\nready_timeout_s"), "new")

    assert other.server.min_gpu_memory_gib == 100.0
    assert other.workload_hash == scenario.workload_hash == "f30de354767a"


def test_measure__servers_that_do_not_fit_leave_no_session(monkeypatch, tmp_path):
    """The sum is asked before anything is started, with what both arms will run."""
    use_fake_engine(monkeypatch, tmp_path)
    asked = []

    def refuse(scenario, config, arms):
        asked.append((scenario.name, config["num_hidden_layers"], set(arms)))
        raise InputError("memory: both servers of a block would need too much")

    monkeypatch.setattr("perfgate.serving.measure.require_memory", refuse)
    request = build_request(tmp_path / "out")

    with pytest.raises(InputError, match=r"^memory: "):
        measure(request, KeptProgress())
    assert asked == [(request.scenario.name, request.scenario.model.layers, set(Arm))]
    assert not (tmp_path / "out").exists()
