from __future__ import annotations

import json
from dataclasses import replace

import pytest

from perfgate.errors import InputError
from perfgate.scenario.catalog import load_scenario
from perfgate.serving.model.location import locate_model, write_chosen, write_model
from perfgate.serving.model.model_guard import read_config, read_model_facts
from perfgate.serving.model.routed_recipe import read_recipe
from perfgate.serving.model.routed_shapes import SHAPES, Choice, write_shape
from tests.fakes.requests import KeptProgress

FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("gpt-oss-20b-shape", ("GptOssForCausalLM", 32, 4, 24, 2880, "mxfp4")),
        ("gpt-oss-20b-shape-bf16", ("GptOssForCausalLM", 32, 4, 24, 2880, "none")),
        ("qwen3-30b-a3b-shape", ("Qwen3MoeForCausalLM", 128, 8, 48, 2048, "none")),
        ("qwen3-30b-a3b-shape-fp8", ("Qwen3MoeForCausalLM", 128, 8, 48, 2048, "fp8")),
        ("deepseek-fp8-shape", ("DeepseekV3ForCausalLM", 256, 8, 5, 7168, "fp8")),
    ],
)
def test_write_model__published_sizes_without_weights(tmp_path, name, facts):
    folder = write_model(tmp_path / "model", f"generated:{name}")

    found = read_model_facts(read_config(folder))
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert (found.architecture, found.experts, found.top_k, found.layers, found.hidden, found.quantization) == facts
    assert found.weights == "routed"
    assert "DRAWN" in str(found.warning)


@pytest.mark.parametrize("name", SHAPES)
def test_write_shape__the_whole_vocabulary_is_words(tmp_path, name):
    folder = write_shape(tmp_path, name, Choice(layers=2))

    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    config = read_config(folder)
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    recipe = read_recipe(config, "config.json")
    assert recipe is not None
    assert config["eos_token_id"] in recipe.never_generated


@pytest.mark.parametrize("name", SHAPES)
def test_write_shape__a_special_word_begins_no_other(tmp_path, name):
    """A tokenizer finds special words anywhere: with `w1` among them `w129279` became two tokens, and prompts became alike."""
    folder = write_shape(tmp_path, name, Choice(layers=2))

    tokens = json.loads((folder / "tokenizer_config.json").read_text())
    special = {word for key, word in tokens.items() if key.endswith("_token")}
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert vocabulary[tokens["eos_token"]] == read_config(folder)["eos_token_id"]
    assert {word for word in vocabulary if word.startswith(tuple(special))} == special


@pytest.mark.parametrize("name", SHAPES)
def test_write_shape__a_grammar_can_have_it_write_json(tmp_path, name):
    xgrammar = pytest.importorskip("xgrammar", reason="xgrammar comes with an engine")
    folder = write_shape(tmp_path, name, Choice(layers=2))
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.__getitem__)

    grammar = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(words)).compile_json_schema('{"type": "object"}')
    matcher = xgrammar.GrammarMatcher(grammar)
    assert all(matcher.accept_token(vocabulary[letter]) for letter in '{"Key":[-12.5,null]}')
    assert not xgrammar.GrammarMatcher(grammar).accept_token(vocabulary["w7"])


def test_write_shape__a_chat_is_its_messages_in_a_row(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers come with an engine")
    tokenizer = transformers.AutoTokenizer.from_pretrained(write_shape(tmp_path, "deepseek-fp8-shape"))
    chat = [{"role": "system", "content": "w7 w8"}, {"role": "user", "content": "w9"}]

    assert tokenizer.apply_chat_template(chat)["input_ids"] == [7, 8, 9]


def test_write_shape__what_was_chosen_stands_in_the_config(tmp_path):
    folder = write_shape(tmp_path, "gpt-oss-20b-shape", Choice(format="bf16", layers=3, seed=7, imbalance=3.0))

    config = read_config(folder)
    recipe = read_recipe(config, "config.json")
    assert (config["num_hidden_layers"], len(config["layer_types"]), "quantization_config" in config) == (3, 3, False)
    assert recipe is not None
    assert (recipe.seed, recipe.imbalance) == (7, 3.0)


def test_write_shape__a_second_time_changes_nothing_and_another_choice_renews(tmp_path):
    config = write_shape(tmp_path, "deepseek-fp8-shape") / "config.json"
    before = config.stat().st_mtime_ns

    write_shape(tmp_path, "deepseek-fp8-shape")
    unchanged = config.stat().st_mtime_ns
    write_shape(tmp_path, "deepseek-fp8-shape", Choice(seed=21))

    assert unchanged == before
    assert json.loads(config.read_text())["perfgate_recipe"]["seed"] == 21


@pytest.mark.parametrize(
    ("name", "weights", "choice", "words"),
    [
        ("gpt-oss-20b-shape", "random", Choice(), "has no plain random weights"),
        ("gpt-oss-20b-shape", None, Choice(format="fp8"), "format fp8 is not one of mxfp4, bf16"),
        ("gpt-oss-20b-shape-bf16", None, Choice(format="mxfp4"), "its name says bf16"),
        ("gpt-oss-20b-shape", None, Choice(imbalance=9.0), "reach at most"),
        ("deepseek-fp8-shape", None, Choice(layers=5000), "5000 layers"),
        ("tiny-gpt-oss", None, Choice(seed=3), "need --weights routed"),
        ("tiny-gpt-oss", "routed", Choice(layers=3), "its own layers"),
        ("tiny-gpt-oss-routed", "random", Choice(), "its name says routed"),
        ("nothing", "routed", Choice(), "perfgate generates only"),
        ("nothing", None, Choice(), "perfgate generates only"),
    ],
)
def test_write_chosen__what_a_model_does_not_have(tmp_path, name, weights, choice, words):
    with pytest.raises(InputError, match=words):
        write_chosen(tmp_path / "new", name, weights, choice)
    assert not (tmp_path / "new").exists()


def test_locate_model__makes_a_shape_on_first_use(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path))
    model = replace(load_scenario("cpu-moe").model, path="generated:deepseek-fp8-shape")

    folder = locate_model(model, None, KeptProgress())

    assert read_model_facts(read_config(folder)).experts == 256
