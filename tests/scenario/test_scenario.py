from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path

import pytest

from perfgate.engines.table import ENGINES
from perfgate.errors import ScenarioError
from perfgate.metrics import METRICS
from perfgate.scenario.catalog import list_pairs, list_scenarios, load_scenario, read_part, read_scenario_text
from perfgate.scenario.load import Load
from perfgate.scenario.safeguards import Equivalence, Expect, Gsm8k
from perfgate.scenario.schema import Blocks, Gate, Model, Scenario, ServerOptions, Warmup, parse_scenario
from perfgate.scenario.toml import find_keys, find_line, suggest
from perfgate.verdict.policy import explain_not_gating

ROOT = Path(__file__).parents[2]
KNOWN = list(ENGINES)
TEXT = """\
schema = 1
name = "toy"
title = "A toy"

[model]
path = "generated:tiny-qwen3-moe"
architecture = "Qwen3MoeForCausalLM"
experts = 8
top_k = 2
layers = 4

[server]
engine = "sglang-cpu"
args = ["--dtype", "bfloat16"]
env = {OMP_NUM_THREADS = "1"}

[load]
num_prompts = 48
input_len = 32
output_len = 32
max_concurrency = 4

[blocks]
looks = [2, 3]

[gates.output_tok_per_s]
margin = 0.25
[gates.p99_itl_ms]
"""


def parse(text=TEXT):
    return parse_scenario(text, "toy.toml")


def explain(text):
    with pytest.raises(ScenarioError) as caught:
        parse(text)
    return str(caught.value)


def test_parse_scenario__defaults_and_given_values():
    scenario = parse()

    assert (scenario.load.num_prompts, scenario.load.is_closed_loop, scenario.alpha) == (48, True, 0.01)
    assert (scenario.blocks.looks, scenario.blocks.windows, scenario.warmup.max_discards) == ((2, 3), 3, 4)
    assert (scenario.server.args, scenario.model.weights) == (("--dtype", "bfloat16"), "checkpoint")


def test_workload_hash__does_not_depend_on_how_answers_are_compared():
    text = TEXT.replace("[blocks]", "[equivalence]\nprompts = 4\nmax_mean_drift = 0.2\n\n[blocks]")

    assert (parse(text).equivalence.prompts, parse().equivalence.prompts) == (4, 16)
    assert parse(text).workload_hash == parse().workload_hash


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max_mean_drift = 0.0", "equivalence.max_mean_drift: must be greater than 0"),
        ("min_agreement = 1.5", "equivalence.min_agreement: must be less than or equal to 1"),
        ("noise_factor = 0.5", "equivalence.noise_factor: must be greater than or equal to 1"),
        ("max_mean_drfit = 0.1", "equivalence.max_mean_drfit: no such key; did you mean max_mean_drift?"),
    ],
)
def test_parse_scenario__equivalence_that_would_say_nothing(line, words):
    assert words in explain(TEXT.replace("[blocks]", f"[equivalence]\n{line}\n\n[blocks]"))


def test_margin__the_scenarios_else_the_metrics_own():
    scenario = parse()

    assert scenario.margin_ratio("output_tok_per_s") == 0.25
    assert scenario.margin_ratio("p99_itl_ms") == METRICS["p99_itl_ms"].margin_ratio
    assert scenario.margin_ratio("median_itl_ms") == METRICS["median_itl_ms"].margin_ratio


def test_is_closed_loop__false_at_a_rate():
    assert not parse(TEXT.replace("[load]", "[load]\nrequest_rate = 20.0")).load.is_closed_loop


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_prompts", "num_promts", "toy.toml:18: load.num_promts: no such key; did you mean num_prompts? (and 1 more)"),
        (
            "[blocks]",
            '[blocks]\ncalibration_injections = ["step:0.5", "nap:1"]',
            "toy.toml:24: blocks.calibration_injections: 'nap:1' is no injection: give step:RATIO or tail:RATIO",
        ),
        (
            "[blocks]",
            '[blocks]\ncalibration_injections = ["request:80000"]',
            "toy.toml:24: blocks.calibration_injections: request:80000 makes requests wait and no step longer",
        ),
        ("[blocks]", "[bloks]", "toy.toml:23: bloks: no such key; did you mean blocks?"),
        ("margin = 0.25", "margn = 0.25", "toy.toml:27: gates.output_tok_per_s.margn: no such key; did you mean margin?"),
        ("margin = 0.25", "x = 1", "toy.toml:27: gates.output_tok_per_s.x: no such key; choose from margin, advisory"),
        ("[gates.p99_itl_ms]", "[gates.p99_it_ms]", "toy.toml:28: gates.p99_it_ms: no such metric; did you mean p99_itl_ms?"),
        ("num_prompts = 48", "num_prompts = -3", "toy.toml:18: load.num_prompts: must be greater than 0, not -3"),
        ("num_prompts = 48", 'num_prompts = "48"', "toy.toml:18: load.num_prompts: must be a valid integer, not '48'"),
        ("num_prompts = 48", "num_prompts = true", "toy.toml:18: load.num_prompts: must be a valid integer, not True"),
        ("output_len = 32", "output_len = 1", "toy.toml:20: load.output_len: must be greater than 1, not 1"),
        ("experts = 8\n", "", "toy.toml:5: model.experts: is missing; add it"),
        ("[load]", "load = 3\n[other]", "toy.toml:17: server.load: no such key; choose from engine, args, env"),
        ("margin = 0.25", "margin = nan", "toy.toml:27: gates.output_tok_per_s.margin: must be"),
        (
            "margin = 0.25",
            "margin = 5.0",
            "toy.toml:27: gates.output_tok_per_s.margin: must be a ratio below 1, not 5; write 5 % as 0.05",
        ),
        ("schema = 1", "schema = 1\nwarmup.steady_ratio = 30.0", "toy.toml:2: warmup.steady_ratio: must be"),
        (
            "looks = [2, 3]",
            "looks = [3, 2]",
            "toy.toml:24: blocks.looks: must be increasing block counts, for example [2, 3, 4, 6]",
        ),
        ("looks = [2, 3]", "looks = [1]", "toy.toml:24: blocks.looks: must be greater than or equal to 2, not 1"),
        ("looks = [2, 3]", "looks = 2", "toy.toml:24: blocks.looks: must be a list, not 2"),
        (
            'engine = "sglang-cpu"',
            'engine = "trtllm"',
            f"toy.toml:13: server.engine: must be {', '.join(map(repr, KNOWN[:-1]))} or {KNOWN[-1]!r}, not 'trtllm'",
        ),
        ("schema = 1", "schema = 2", "toy.toml:1: schema: must be 1, not 2"),
        ('name = "toy"', 'name = "../toy"', "toy.toml:2: name: String should match pattern"),
        ("schema = 1", "schema = 1\nalpha = 0.2", "toy.toml:2: alpha: must be less than or equal to 0.05, not 0.2"),
    ],
)
def test_parse_scenario__names_line_and_key(old, new, message):
    assert explain(TEXT.replace(old, new, 1)).startswith(message)


def test_parse_scenario__table_that_is_none():
    text = "load = 3\n" + TEXT.replace("[load]", "[other]")

    assert "other: no such key" in explain(text)
    assert "toy.toml:1: load: must be a table, not 3" in explain(
        "load = 3\n" + TEXT[: TEXT.index("[load]")] + "[gates.p99_itl_ms]\n"
    )


def test_parse_scenario__no_gates():
    text = TEXT[: TEXT.index("[gates")] + "[gates]\n"

    assert explain(text) == "toy.toml:26: gates: is empty; name at least one metric"


def test_parse_scenario__long_values_are_cut():
    message = explain(TEXT.replace('"sglang-cpu"', f'"{"x" * 500}"'))

    assert len(message) < 200


@pytest.mark.parametrize("text", ["", "[", "name = ", TEXT + "\n[load]\n", "a = 1\na = 2"])
def test_parse_scenario__broken_text_is_one_line(text):
    message = explain(text)

    assert message.startswith("toy.toml")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema = 1\nname =", "toy.toml:2: name: not valid TOML: Invalid value"),
        ("schema = 1\nname = toy\nx = 1", "toy.toml:2: name: not valid TOML: Invalid value"),
        ("schema = 1\n[load\n", "toy.toml:2: not valid TOML: Expected ']' at the end of a table declaration"),
        ("x = [1,\n\n", "toy.toml:2: not valid TOML"),
    ],
)
def test_parse_scenario__broken_toml_names_line_and_key(text, message):
    assert explain(text).startswith(message)


def test_workload_hash__depends_on_the_work_alone():
    scenario = parse()
    same = replace(
        scenario,
        title="Another",
        alpha=0.02,
        load=replace(scenario.load, timeout_s=1.0, answer_form="[a-z]+"),
        server=replace(scenario.server, ready_timeout_s=1.0, stop_timeout_s=1.0),
        blocks=replace(scenario.blocks, windows=5),
    )
    others = [
        replace(scenario, load=replace(scenario.load, num_prompts=49)),
        replace(scenario, load=replace(scenario.load, request_rate=20.0)),
        replace(scenario, load=replace(scenario.load, keep_cache=True)),
        replace(scenario, server=replace(scenario.server, args=("--dtype", "float32"))),
        replace(scenario, model=replace(scenario.model, weights="random")),
    ]

    hashes = {other.workload_hash for other in others}

    assert same.workload_hash == scenario.workload_hash
    assert len(hashes | {scenario.workload_hash}) == 6


def test_workload_hash__is_the_same_in_every_release():
    """Stored baselines carry it; if this fails, every baseline in the world is void."""
    assert parse().workload_hash == "06fca2c973c5"


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("cpu-moe", "c7f93e6572f9"),
        (str(ROOT / "benchmarks" / "h200" / "serving" / "closed-c16.toml"), "f30de354767a"),
    ],
)
def test_workload_hash__of_what_was_measured(scenario, expected):
    assert load_scenario(scenario).workload_hash == expected


SHAREGPT = """num_prompts = 100
dataset = "sharegpt"
dataset_path = "chat.json"
dataset_sha256 = "{digest}"
max_concurrency = 16
"""


def parse_load(text):
    """The scenario of the tests with another load."""
    before, after = TEXT.split("[load]\n")
    rest = after[after.index("[") :]
    return parse(f"{before}[load]\n{text}\n{rest}")


def test_workload_hash__of_a_data_set_is_its_digest():
    text = SHAREGPT.format(digest="a" * 64)
    here = parse_load(text)

    assert here.workload_hash == parse_load(text.replace("chat.json", "/elsewhere/chat.json")).workload_hash
    assert here.workload_hash != parse_load(SHAREGPT.format(digest="b" * 64)).workload_hash
    assert here.workload_hash != parse_load(text + 'args = ["--apply-chat-template"]').workload_hash
    assert here.workload_hash != parse_load(text + "warmup_requests = 4").workload_hash


TRACE = """num_prompts = 4
dataset = "trace"
dataset_path = "trace.jsonl"
dataset_sha256 = "{digest}"
max_concurrency = 4
""".format(digest="a" * 64)


def test_load__a_trace_is_no_closed_loop_and_its_slice_is_part_of_the_work():
    scenario = parse_load(TRACE)
    others = [parse_load(TRACE + line).workload_hash for line in ("trace_from_s = 1.0", "trace_slowdown = 2.0")]

    assert not scenario.load.is_closed_loop
    assert len({scenario.workload_hash, *others}) == 3
    assert parse_load(TRACE + "trace_slowdown = 1.0").workload_hash == scenario.workload_hash


RANDOM = "num_prompts = 4\nmax_concurrency = 1\ninput_len = 8\noutput_len = 8\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RANDOM.replace("input_len = 8\n", ""), "load.input_len: is missing; random prompts need it"),
        (RANDOM.replace("output_len = 8\n", ""), "load.output_len: is missing; random prompts need it"),
        (SHAREGPT.format(digest="a" * 64) + "input_len = 8", "load.input_len: data set sharegpt has its own lengths"),
        (RANDOM.replace("input_len = 8\n", 'dataset = "mmmu"\n'), "load.output_len: data set mmmu has its own lengths"),
        (RANDOM + 'dataset = "random"', "load.dataset_path: is missing; data set random is read from a file"),
        (SHAREGPT.format(digest=""), "load.dataset_sha256: goes with dataset_path"),
        (RANDOM + 'dataset_sha256 = "A"', "load.dataset_sha256: "),
        (RANDOM + 'args = ["--seed", "2"]', "load.args: --seed is perfgate's own; say it by load.seed"),
        (RANDOM + 'answer_form = "["', "load.answer_form: '[' is no regular expression"),
        (TRACE + "request_rate = 2.0", "load.request_rate: a trace has its own times; leave it out"),
        (TRACE + "output_len = 8", "load.output_len: data set trace has its own lengths"),
        (TRACE.replace("concurrency = 4", "concurrency = 3"), "load.max_concurrency: is below num_prompts"),
        (TRACE + 'backend = "sglang-oai-chat"', "load.backend: sglang-oai-chat takes text"),
        (TRACE.replace('"trace"', '"mooncake"'), "load.dataset: bench_serving's mooncake gives a trace's prompts other"),
        (RANDOM + "trace_from_s = 1.0", 'load.trace_from_s: is for dataset = "trace"'),
        (RANDOM + "trace_slowdown = 0.5", 'load.trace_slowdown: is for dataset = "trace"'),
        (TRACE + 'args = ["--mooncake-slowdown-factor", "2"]', "perfgate's own; say it by load.trace_slowdown"),
        (RANDOM + 'args = ["--port=1"]', "load.args: --port is perfgate's own; leave it out"),
    ],
)
def test_load__what_would_be_ignored_is_refused(text, message):
    with pytest.raises(ScenarioError) as caught:
        parse_load(text)

    assert message in str(caught.value)


def test_parse_scenario__a_cache_is_kept_where_there_is_one():
    text = TEXT.replace('"sglang-cpu"', '"vllm-cpu"').replace("max_concurrency = 4", 'max_concurrency = 4\nbackend = "vllm"')

    assert parse(text).server.engine == "vllm-cpu"
    assert "load.keep_cache: vllm-cpu is served without a prefix cache" in explain(
        text.replace('backend = "vllm"', 'backend = "vllm"\nkeep_cache = true')
    )


def test_parse_scenario__a_warm_up_in_which_no_two_windows_can_agree():
    once = f"{TEXT}\n[warmup]\nmax_discards = 1\n"
    kept = TEXT.replace("max_concurrency = 4", "max_concurrency = 4\nkeep_cache = true") + "\n[warmup]\nmax_discards = 2\n"

    assert "warmup.max_discards: is 1; no start is warm before 2: raise it" in explain(once)
    assert "warmup.max_discards: is 2; no start is warm before 3: raise it" in explain(kept)


def test_list_scenarios__all_that_ship_can_be_read():
    assert [load_scenario(name).name for name in list_scenarios()] == list(list_scenarios())


def test_load_scenario__by_path(tmp_path):
    (tmp_path / "toy.toml").write_text(TEXT)

    assert load_scenario(str(tmp_path / "toy.toml")) == parse()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpu-mo", "unknown scenario 'cpu-mo': did you mean cpu-moe? `perfgate scenarios` lists those that ship"),
        ("nowhere/x.toml", "nowhere/x.toml: no such scenario file"),
        ("{tmp}", "is a directory; give the .toml file itself"),
        ("{tmp}/bytes.toml", "cannot be read as text"),
    ],
)
def test_load_scenario__what_is_no_scenario(tmp_path, name, words):
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")

    with pytest.raises(ScenarioError) as caught:
        load_scenario(name.replace("{tmp}", str(tmp_path)))

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ([], "schema"),
        (["load"], "num_prompts"),
        (["gates", "p99_itl_ms"], "margin"),
    ],
)
def test_find_keys__of_each_table(path, keys):
    assert keys in find_keys(Scenario, path)


@pytest.mark.parametrize("path", [["gates"], ["nowhere"], ["nowhere", "deeper"], ["load", "num_prompts", "x"]])
def test_find_keys__what_is_no_table_has_none(path):
    assert find_keys(Scenario, path) == []


@pytest.mark.parametrize(
    ("keys", "line"),
    [(["load", "output_len"], 20), (["load", "missing"], 17), (["gates", "p99_itl_ms"], 28), (["nowhere"], None)],
)
def test_find_line__nearest_that_the_text_names(keys, line):
    assert find_line(TEXT, keys) == line


def test_find_line__quoted_and_dotted_keys():
    assert find_line('a = 1\n"b".c = 2', ["b", "c"]) == 2


def test_suggest__near_and_far():
    assert suggest("layer", ["layers", "experts"]) == "did you mean layers?"
    assert suggest("zzz", ["layers", "experts"]) == "choose from layers, experts"


DOCS = (ROOT / "docs" / "reference" / "scenarios.md").read_text(encoding="utf-8")
TABLES = {"Top level": Scenario, "`[model]`": Model, "`[server]`": ServerOptions, "`[load]`": Load, "`[warmup]`": Warmup}
TABLES |= {"`[blocks]`": Blocks, "`[equivalence]`": Equivalence, "`[expect]`": Expect, "`[gates.METRIC]`": Gate}
TABLES |= {"`[equivalence.gsm8k]`": Gsm8k}


def read_reference(heading):
    """Read the keys and defaults that the reference gives below a heading."""
    section = re.split(r"\n##+ ", DOCS.split(f"## {heading}\n")[1])[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section, re.MULTILINE))


def show_default(found):
    """Write a field's default as TOML, or as the reference words it."""
    if found.default is MISSING and found.default_factory is MISSING:
        return "required"
    value = found.default if found.default is not MISSING else found.default_factory()
    if is_dataclass(value):
        return "all defaults"
    if value is None:
        own = {"margin": "the metric's own", "config_digest": "not pinned", "weights_digest": "not pinned"}
        own |= {"min_gpu_memory_gib": "any card", "path": "not asked", "sha256": "required with `path`"}
        return own.get(found.name, "the data's own")
    return f"`{str(value) if isinstance(value, float) else json.dumps(value)}`"


@pytest.mark.parametrize("heading", TABLES)
def test_docs__every_key_with_its_default(heading):
    expected = {found.name: show_default(found) for found in fields(TABLES[heading])}

    assert read_reference(heading) == expected


def test_docs__names_every_model_and_load_that_ships():
    tables = DOCS.split("A complete scenario:")[0]
    named = {name for row in re.findall(r"^\| (`[^|]+) \|", tables, re.MULTILINE) for name in re.findall(r"`([\w.-]+)`", row)}
    pairs = list_pairs().values()

    whole = {name for name in named if name.startswith("cpu-moe")}
    assert named - whole == {pair.model for pair in pairs} | {pair.load for pair in pairs}
    assert set(list_scenarios()) == {*whole, *list_pairs()}


@pytest.mark.parametrize("name", [name for name in list_scenarios() if name.startswith("cpu-moe-")])
def test_list_scenarios__those_of_the_cpu_serve_what_cpu_moe_serves(name):
    here, plain = load_scenario(name), load_scenario("cpu-moe")
    pool = here.server.args.index("--max-total-tokens") + 1

    # The tiny model has no chat template of its own.
    added = ("--chat-template", "chatml") if name == "cpu-moe-chat" else ()

    assert here.model == plain.model
    args = (*here.server.args[:pool], "16384", *here.server.args[pool + 1 :])
    assert replace(here.server, args=args) == replace(plain.server, args=(*plain.server.args, *added))
    assert here.blocks.calibrate_first
    assert any(explain_not_gating(metric, here, None) is None for metric in here.gates)


SPREAD = {
    "gpt-oss-20b-shape-mxfp4-tp2": ("--tp-size", "2", "--enforce-disable-flashinfer-allreduce-fusion"),
    "gpt-oss-20b-shape-mxfp4-pd": ("--disaggregation-transfer-backend", "nixl"),
    "gpt-oss-20b-shape-bf16-ep2": ("--tp-size", "2", "--ep-size", "2", "--enforce-disable-flashinfer-allreduce-fusion"),
    "gpt-oss-20b-shape-bf16-dpa2": (
        *("--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"),
        "--enforce-disable-flashinfer-allreduce-fusion",
    ),
}


def test_list_pairs__differ_in_the_model_alone():
    loads = {
        pair.model: {other.load for other in list_pairs().values() if other.model == pair.model}
        for pair in list_pairs().values()
    }
    alone = {"deepseek-shape-fp8", *SPREAD}
    shapes = {name: name.replace("-shape", "") for name in loads.keys() - alone if "-shape" in name}

    assert set(loads) == alone | shapes.keys() | set(shapes.values())
    for shape, real in shapes.items():
        assert loads[real] - loads[shape] == {"replay"} & loads[real]
        for load in loads[shape]:
            here, there = load_scenario(f"{shape}-{load}"), load_scenario(f"{real}-{load}")
            model = replace(here.model, path=there.model.path, weights="checkpoint")
            server = replace(here.server, args=here.server.args[2:])
            there = replace(there, equivalence=here.equivalence)
            assert replace(here, name=there.name, title=there.title, model=model, server=server) == there
            assert (here.model.path, here.model.weights) == (f"generated:{shape}", "routed")
            assert here.server.args[:2] == ("--load-format", "dummy")


def test_list_pairs__drawn_weights_of_many_layers_may_drift_by_a_rounding():
    def allow(model):
        return {load_scenario(name).equivalence for name, pair in list_pairs().items() if pair.model == model}

    drawn = Equivalence(max_mean_drift=0.4, max_prompt_drift=0.7)
    assert all(allow(model) == {drawn} for model in ("gpt-oss-20b-shape-mxfp4", "qwen3-30b-a3b-shape-bf16", *SPREAD))
    assert all(allow(model) == {Equivalence()} for model in ("gpt-oss-20b-mxfp4", "qwen3-30b-a3b-bf16"))


@pytest.mark.parametrize("model", SPREAD)
def test_list_pairs__what_takes_two_gpus_differs_in_how_it_is_spread_alone(model):
    loads = [pair.load for pair in list_pairs().values() if pair.model == model]
    plain = model.rpartition("-")[0]

    assert loads == ["closed-c16"]
    for load in loads:
        one, two = load_scenario(f"{plain}-{load}"), load_scenario(f"{model}-{load}")
        assert (one.server.gpus, two.server.gpus) == (1, 2)
        server = replace(one.server, args=(*one.server.args, *SPREAD[model]), env=two.server.env, min_gpu_memory_gib=60.0)
        # Twice the GPU-minutes are as long by the clock.
        budget = 2 * one.budget_minutes
        assert replace(one, name=two.name, title=two.title, server=server, budget_minutes=budget) == two


@pytest.mark.parametrize("name", list_pairs())
def test_list_pairs__what_a_load_has_in_flight_fits_the_pool(name):
    scenario, args = load_scenario(name), load_scenario(name).server.args
    load, pool = scenario.load, int(args[args.index("--max-total-tokens") + 1])

    assert load.max_concurrency * ((load.input_len or 0) + (load.output_len or 0)) <= pool
    assert not load.keep_cache or load.num_prompts * (load.input_len + load.output_len) * (1 + load.range_ratio) / 2 > pool


def test_compose__a_load_brings_arguments_behind_the_models():
    plain, drafted = (load_scenario(f"gpt-oss-20b-shape-mxfp4-{load}") for load in ("c1", "ngram-c1"))
    brought = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "12", "--max-running-requests", "48")

    assert replace(drafted.server, args=plain.server.args) == plain.server
    assert drafted.server.args == (*plain.server.args, *brought)
    assert [table for table in read_scenario_text(drafted.name)[0].splitlines() if table == "[server]"] == ["[server]"]


def test_gpus__an_engine_on_the_cpu_takes_none():
    assert load_scenario("cpu-moe").server.gpus == 0


def test_compose__is_a_complete_file_that_tells_its_reasons():
    text, source = read_scenario_text("gpt-oss-20b-shape-mxfp4-mixed-c16")

    assert source == "gpt-oss-20b-shape-mxfp4-mixed-c16"
    reasons = [read_part("loads", "mixed-c16").reason, read_part("models", "gpt-oss-20b-shape-mxfp4").reason]
    assert text.splitlines()[:2] == [f"# {reason}" for reason in reasons]
    assert parse_scenario(text, source).title == "gpt-oss-20b's shape, MXFP4: 16 at a time, 64 to 512 in / 24 to 192 out"


@pytest.mark.parametrize("load", ["mixed-c16", "mixed-c64"])
def test_load_scenario__mixed_loads_gate_throughput_and_the_tail(load):
    scenario = load_scenario(f"gpt-oss-20b-shape-mxfp4-{load}")

    assert scenario.load.num_prompts * scenario.blocks.windows >= METRICS["p99_itl_ms"].min_requests
    assert [explain_not_gating(name, scenario, None) for name in ("output_tok_per_s", "p99_itl_ms")] == [None, None]


def test_docs__example_is_a_scenario():
    example = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)[0]

    scenario = parse(example)

    assert (scenario.margin_ratio("median_itl_ms"), scenario.gates["mean_ttft_ms"].advisory) == (0.02, True)
    assert explain(example.replace("num_prompts", "num_promts")).removeprefix("toy") in DOCS.replace("scenario.toml", ".toml")


def test_docs__names_the_metrics_that_gate():
    listed = re.findall(r"The metrics that may gate are (.+?)\.\n", DOCS)[0]

    assert re.findall(r"`(\w+)`", listed) == [name for name, metric in METRICS.items() if metric.gates]
