from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from perfgate.errors import InputError
from perfgate.scenario.catalog import load_scenario
from perfgate.serving.model import tiny_model
from perfgate.serving.model.model_guard import read_config, read_model_facts, verify_model
from perfgate.serving.model.tiny_model import main, vocabulary, write_tiny, write_tiny_model
from perfgate.serving.model.tiny_routed import route
from perfgate.serving.model.tiny_shapes import MODELS, SPECIAL, VOCAB

FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
# The same bytes on every machine: baselines hash the workload, and a model that drifts would be another workload.
DIGESTS = {"tiny-qwen3-moe": "5ac2eac882bbe4e2", "tiny-gpt-oss": "45406eb5687df9fe"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: write_tiny_model(tmp_path_factory.mktemp("models") / name, f"generated:{name}") for name in MODELS}


def read_tensors(path):
    """Read a safetensors file by its specification, independently of the code that wrote it."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__")
    return {name: (entry, content[8 + size :][slice(*entry["data_offsets"])]) for name, entry in header.items()}


@pytest.mark.parametrize("name", MODELS)
def test_write_tiny_model__same_bytes_everywhere(folders, name):
    weights = (folders[name] / "model.safetensors").read_bytes()

    assert hashlib.sha256(weights).hexdigest()[:16] == DIGESTS[name]
    assert sorted(path.name for path in folders[name].iterdir()) == FILES
    assert 5e6 < len(weights) < 2e7


def test_write_tiny_model__is_the_cpu_scenarios_model(folders):
    facts = verify_model(folders["tiny-qwen3-moe"], load_scenario("cpu-moe").model)

    assert (facts.experts, facts.top_k, facts.hidden, facts.weights) == (8, 2, 256, "random")


@pytest.mark.parametrize(("name", "dtype", "width"), [("tiny-qwen3-moe", "BF16", 2), ("tiny-gpt-oss", "F32", 4)])
def test_write_tiny_model__tensors_fill_the_file_without_gaps(folders, name, dtype, width):
    tensors = read_tensors(folders[name] / "model.safetensors")

    end = 0
    for entry, data in tensors.values():
        assert (entry["dtype"], entry["data_offsets"][0]) == (dtype, end)
        assert len(data) == width * int(np.prod(entry["shape"]))
        end = entry["data_offsets"][1]


def test_write_tiny_model__special_tokens_cannot_be_generated(folders):
    entry, data = read_tensors(folders["tiny-gpt-oss"] / "model.safetensors")["lm_head.weight"]

    head = np.frombuffer(data, "<f4").reshape(entry["shape"])

    assert not head[: len(SPECIAL)].any()
    assert head[len(SPECIAL) :].any(axis=1).all()


def test_write_tiny_model__linear_layers_keep_the_variance(folders):
    entry, data = read_tensors(folders["tiny-gpt-oss"] / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]

    weights = np.frombuffer(data, "<f4").reshape(entry["shape"])

    assert abs(float(weights.std()) * 256**0.5 - 1) < 0.02
    assert abs(float(weights.mean())) < 0.001


ROUTED_DIGESTS = {"tiny-qwen3-moe-routed": "ad17a9a85dc85ad5", "tiny-gpt-oss-routed": "75faa2d93ccebdd7"}


@pytest.mark.parametrize("name", ROUTED_DIGESTS)
def test_write_tiny_model__routed_twin_has_the_same_bytes_everywhere(tmp_path, name):
    folder = write_tiny_model(tmp_path, name)

    facts = read_model_facts(read_config(folder))
    assert (facts.weights, facts.experts, facts.top_k) == ("routed", 8, 2)
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16] == ROUTED_DIGESTS[name]


def test_write_tiny__collapsed_twin_prefers_the_same_experts(tmp_path):
    folder = write_tiny(tmp_path, route(MODELS["tiny-gpt-oss"], collapsed=True))

    entry, data = read_tensors(folder / "model.safetensors")["model.layers.0.mlp.router.bias"]

    assert sorted(np.frombuffer(data, "<f4").reshape(entry["shape"])) == [0.0] * 6 + [40.0] * 2


def test_encode__bfloat16_rounds_to_nearest_even():
    # 1 + 2^-8 lies half way between two bfloat16 values, 1 + 3 * 2^-8 too; both go to the even one.
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-16, -2.5], np.float32)

    bits = np.frombuffer(tiny_model._encode(values, "bfloat16"), "<u2").astype(np.uint32) << 16

    assert bits.view(np.float32).tolist() == [1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -2.5]


def test_vocabulary__distinct_ascii_words():
    words = vocabulary()

    assert (len(words), len(set(words))) == (VOCAB, VOCAB)
    assert all(word.isascii() and " " not in word for word in words)


def test_tokenizer__every_id_is_one_word_and_counts_are_exact(folders):
    tokenizers = pytest.importorskip("tokenizers", reason="the engine's tokenizer library is not installed")
    tokenizer = tokenizers.Tokenizer.from_file(str(folders["tiny-qwen3-moe"] / "tokenizer.json"))
    ids = list(range(VOCAB))

    text = tokenizer.decode(ids, skip_special_tokens=False)

    assert tokenizer.encode(text).ids == ids
    assert text.split(" ") == list(vocabulary())


def test_write_tiny_model__a_second_time_changes_nothing(folders):
    path = folders["tiny-qwen3-moe"] / "model.safetensors"
    before = path.stat().st_mtime_ns

    write_tiny_model(path.parent, "tiny-qwen3-moe")

    assert path.stat().st_mtime_ns == before


def test_write_tiny_model__an_interrupted_folder_is_completed(folders, tmp_path):
    (tmp_path / "tokenizer.json").write_text("half")

    write_tiny_model(tmp_path, "tiny-qwen3-moe")

    assert [(tmp_path / name).read_bytes() for name in FILES] == [
        (folders["tiny-qwen3-moe"] / name).read_bytes() for name in FILES
    ]


def test_write_tiny_model__a_model_of_an_older_perfgate_is_renewed(folders, tmp_path):
    (tmp_path / "config.json").write_text('{"layers": 1, "perfgate_weights": "random"}')

    write_tiny_model(tmp_path, "tiny-qwen3-moe")

    assert (tmp_path / "config.json").read_bytes() == (folders["tiny-qwen3-moe"] / "config.json").read_bytes()


def test_write_tiny_model__another_model_is_not_overwritten(tmp_path):
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(InputError, match="holds another model; give an empty folder"):
        write_tiny_model(tmp_path, "tiny-qwen3-moe")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_write_tiny_model__unknown_name(tmp_path):
    with pytest.raises(InputError, match=r"model 'tiny': perfgate generates only tiny-gpt-oss, tiny-qwen3-moe"):
        write_tiny_model(tmp_path / "new", "generated:tiny")
    assert not (tmp_path / "new").exists()


def test_write_tiny_model__disk_that_is_full_keeps_no_half_of_a_file(tmp_path):
    command = f"ulimit -f 100; {sys.executable} -m perfgate model make tiny-qwen3-moe {tmp_path}/made"
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "made: cannot write the model there (File too large)" in done.stderr
    assert "model.safetensors" not in "".join(path.name for path in (tmp_path / "made").iterdir())


def test_write_tiny_model__folder_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(InputError, match="give a writable folder"):
        write_tiny_model(tmp_path / "file", "tiny-qwen3-moe")


@pytest.mark.parametrize("argv", [[], ["tiny-qwen3-moe"], ["nothing", "folder"]])
def test_main__wrong_use_is_exit_2_and_one_line(argv, capsys):
    assert main(argv) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_main__runs_as_a_module_without_any_engine(tmp_path):
    """Torch and the tokenizer library are hidden, as in an environment of perfgate alone."""
    hide = "import sys; sys.modules.update(dict.fromkeys(['torch', 'tokenizers', 'safetensors', 'transformers']))"
    code = f"{hide}; from perfgate.serving.model.tiny_model import main; sys.exit(main(['tiny-qwen3-moe', {str(tmp_path)!r}]))"

    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(tmp_path), "")
