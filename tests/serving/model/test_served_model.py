"""Arguments that turn the right folder into another model, and weights that are not there."""

import json
from dataclasses import replace

import pytest

from perfgate.core import Arm
from perfgate.errors import InputError, ModelError
from perfgate.results.records import read_record
from perfgate.results.results import load_results
from perfgate.scenario.schema import Model
from perfgate.serving.engine.arms import ArmSpec
from perfgate.serving.measure import measure
from perfgate.serving.model.served_model import describe_model, digest_weights, verify_served
from tests.fakes.hub import GPT_OSS
from tests.fakes.requests import KeptProgress, build_request, list_problems, use_fake_engine

EXPECTED = Model(path="openai/gpt-oss-20b", architecture="GptOssForCausalLM", experts=32, top_k=4, layers=24)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(GPT_OSS))
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(bytes(range(256)) * 16)
    return tmp_path


def test_verify_served__the_scenarios_model(folder):
    facts = verify_served("base", ["--attention-backend", "triton"], folder, EXPECTED)

    assert (facts.experts, facts.top_k, facts.quantization) == (32, 4, "none")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--json-model-override-args", '{"num_experts_per_tok": 2}'], "top_k is 2, the scenario wants 4"),
        (['--json-model-override-args={"num_hidden_layers": 2}'], "layers is 2, the scenario wants 24"),
        (["--quantization", "fp8"], "quantization is fp8, the scenario wants none"),
        (["--load-format=dummy"], "weights is random, the scenario wants checkpoint"),
        (["--model-path", "/elsewhere"], "its arguments serve /elsewhere instead of"),
        (["--model=/elsewhere"], "its arguments serve /elsewhere instead of"),
    ],
)
def test_verify_served__arguments_that_serve_another_model(folder, args, words):
    with pytest.raises(ModelError) as caught:
        verify_served("candidate", args, folder, EXPECTED)

    assert str(caught.value).startswith("candidate: ")
    assert words in str(caught.value)
    assert (caught.value.exit_code, "\n" in str(caught.value)) == (3, False)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_verify_served__override_that_is_no_object(folder, text):
    with pytest.raises(InputError, match="candidate: --json-model-override-args"):
        verify_served("candidate", ["--json-model-override-args", text], folder, EXPECTED)


def test_verify_served__dummy_weights_that_the_scenario_knows_of(folder):
    expected = replace(EXPECTED, weights="random", weights_digest="0" * 12)

    assert verify_served("base", ["--load-format", "dummy"], folder, expected).weights == "random"


def test_verify_served__routed_weights_are_drawn_by_the_server_or_lie_there(folder):
    expected = replace(EXPECTED, weights="routed")
    (folder / "config.json").write_text(json.dumps(GPT_OSS | {"perfgate_weights": "routed"}))

    drawn = verify_served("base", ["--load-format", "dummy"], folder, expected)
    read = verify_served("base", [], folder, expected)

    assert (drawn.weights, read.weights) == ("routed", "routed")
    (folder / "model-00001-of-00001.safetensors").unlink()
    with pytest.raises(ModelError, match="holds no weights and --load-format is not dummy"):
        verify_served("base", [], folder, expected)


def test_verify_served__plain_dummy_weights_are_not_routed_ones(folder):
    with pytest.raises(ModelError, match="weights is random, the scenario wants routed"):
        verify_served("base", ["--load-format", "dummy"], folder, replace(EXPECTED, weights="routed"))


def test_verify_served__checkpoint_without_weights(folder):
    (folder / "model-00001-of-00001.safetensors").unlink()

    with pytest.raises(ModelError, match=r"holds no weights \(\*\.safetensors"):
        verify_served("base", [], folder, EXPECTED)


def test_verify_served__digests_that_the_scenario_pins(folder):
    right = {name: value for name, value in describe_model(folder, EXPECTED).items() if name.endswith("_digest")}
    wrong = replace(EXPECTED, config_digest="0" * 12, weights_digest="f" * 12)

    assert verify_served("base", [], folder, replace(EXPECTED, **right)).digest == right["config_digest"]
    with pytest.raises(ModelError) as caught:
        verify_served("base", [], folder, wrong)
    assert f"config_digest is {right['config_digest']}, the scenario wants 000000000000" in str(caught.value)
    assert f"weights_digest is {right['weights_digest']}, the scenario wants ffffffffffff" in str(caught.value)


def test_digest_weights__names_sizes_and_both_ends_count(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"x" * 2**22)
    digests = [digest_weights(tmp_path)]
    for place in (0, 2**22 - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"y")
        digests.append(digest_weights(tmp_path))
    path.rename(tmp_path / "b.safetensors")
    digests.append(digest_weights(tmp_path))

    assert len(set(digests)) == 4
    assert digest_weights(tmp_path / "nowhere") == "none"


def test_measure__candidate_that_would_serve_another_model_starts_nothing(tmp_path, monkeypatch):
    use_fake_engine(monkeypatch, tmp_path)
    fewer = ArmSpec(args=("--json-model-override-args", '{"num_experts_per_tok": 1}'))
    measure(build_request(tmp_path / "out", candidate=fewer), KeptProgress())
    _, session = load_results(tmp_path / "out")

    [problem] = list_problems(session)
    assert problem.startswith(
        "candidate: with its arguments it serves not the scenario's model: top_k is 1, the scenario wants 2"
    )
    assert list((tmp_path / "out" / "logs").iterdir()) == []


def test_measure__writes_down_which_model_it_was(tmp_path, monkeypatch):
    use_fake_engine(monkeypatch, tmp_path)
    measure(build_request(tmp_path / "out"), KeptProgress())
    record = read_record(tmp_path / "out")

    assert record.model["weights"] == "random"
    assert len(record.model["config_digest"]) == len(record.model["weights_digest"]) == 12
    assert record.arms[Arm.BASE].argv
