"""A hub id names a snapshot in the cache of this machine, or an error that says what to do."""

import json
from dataclasses import replace

import pytest

from perfgate.cli import main
from perfgate.errors import InputError, ModelError
from perfgate.scenario.catalog import load_scenario
from perfgate.scenario.schema import Model
from perfgate.serving.model.location import find_cache, find_snapshot, is_hub_id, locate_model
from perfgate.serving.model.model_guard import verify_model
from perfgate.serving.model.served_model import describe_model, digest_weights, verify_served
from tests.fakes.hub import QUANTISED_GPT_OSS
from tests.fakes.requests import KeptProgress

COMMIT = "6cee5e81ee83917806bbde320786a8fb61efebee"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache as `hf download openai/gpt-oss-20b` leaves it: links into blobs, and the branch's commit."""
    place = tmp_path / "hub" / "models--openai--gpt-oss-20b"
    snapshot = place / "snapshots" / COMMIT
    for folder in (snapshot, place / "blobs", place / "refs"):
        folder.mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    contents = {"config.json": json.dumps(QUANTISED_GPT_OSS).encode(), "model-00000-of-00001.safetensors": bytes(range(256))}
    for name, content in contents.items():
        (place / "blobs" / f"blob-{name}").write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/blob-{name}")
    for name in ("HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def find_place(cache):
    return cache / "models--openai--gpt-oss-20b"


def test_locate_model__hub_id_is_its_snapshot(cache):
    model = load_scenario("gpt-oss-20b-mxfp4-closed-c16").model
    folder = locate_model(model, None, KeptProgress())
    facts = verify_model(folder, model)

    assert folder == find_place(cache) / "snapshots" / COMMIT
    assert (facts.architecture, facts.experts, facts.quantization) == ("GptOssForCausalLM", 32, "mxfp4")
    assert verify_served("base", (), folder, model) == facts
    assert describe_model(folder, model)["weights_digest"] == digest_weights(folder) != "none"


@pytest.mark.usefixtures("cache")
def test_locate_model__another_models_snapshot_is_refused_like_any_folder():
    model = replace(load_scenario("gpt-oss-20b-mxfp4-closed-c16").model, experts=64)
    folder = locate_model(model, None, KeptProgress())

    with pytest.raises(ModelError, match="experts is 32, the scenario wants 64"):
        verify_model(folder, model)


@pytest.mark.usefixtures("cache")
def test_locate_model__given_folder_wins(tmp_path):
    assert locate_model(load_scenario("gpt-oss-20b-mxfp4-closed-c16").model, tmp_path, KeptProgress()) == tmp_path


@pytest.mark.usefixtures("cache")
def test_locate_model__folder_of_the_same_name_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "openai" / "gpt-oss-20b").mkdir(parents=True)
    model = Model(path="openai/gpt-oss-20b", architecture="GptOssForCausalLM", experts=32, top_k=4, layers=24)

    assert str(locate_model(model, None, KeptProgress())) == "openai/gpt-oss-20b"


def test_find_snapshot__is_what_the_hubs_own_package_finds(cache):
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub comes with an engine")
    found = hub.snapshot_download("openai/gpt-oss-20b", cache_dir=cache, local_files_only=True)

    assert str(find_snapshot("openai/gpt-oss-20b", cache)) == found


@pytest.mark.parametrize("missing", ["refs/main", f"snapshots/{COMMIT}/config.json", "blobs/blob-config.json"])
def test_find_snapshot__incomplete_one_is_not_there(cache, missing):
    (find_place(cache) / missing).unlink()

    with pytest.raises(InputError, match=r"^model\.path: openai/gpt-oss-20b: no such folder, and .* run `hf download openai/"):
        find_snapshot("openai/gpt-oss-20b", cache)


def test_digest_weights__link_whose_file_is_gone(cache):
    (find_place(cache) / "blobs" / "blob-model-00000-of-00001.safetensors").unlink()

    with pytest.raises(InputError, match=r"safetensors: cannot be read \(No such file or directory\); fetch or make"):
        digest_weights(find_place(cache) / "snapshots" / COMMIT)


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/b"}, "/c"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/d"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        ({"HF_HUB_CACHE": ""}, "/home/me/.cache/huggingface/hub"),
    ],
)
def test_find_cache__as_the_hubs_tools_do(variables, place, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")

    assert str(find_cache(variables)) == place


@pytest.mark.parametrize("path", ["/models/gpt-oss-20b", "./gpt-oss-20b", "../models", "gpt-oss-20b", "a/b/c", "generated:x"])
def test_is_hub_id__paths_are_none(path):
    assert not is_hub_id(path)


def test_ab__the_one_line_says_what_is_missing(tmp_path, monkeypatch, capsys):
    """Nothing but the model is missing: no server starts, nothing is written."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("perfgate.serving.watch.telemetry.lacks_gpu", lambda: False)
    line = ["ab", "gpt-oss-20b-mxfp4-closed-c16", "--env", "SGLANG_MOE_FUSE_DOWN_SUM_REDUCE=1", "--out", str(tmp_path / "out")]
    code = main(line)
    told = capsys.readouterr().err.splitlines()

    assert code == 2
    assert f"model.path: openai/gpt-oss-20b: no such folder, and {tmp_path / 'empty'} holds no snapshot of it" in told[-1]
    assert told[-1].endswith("run `hf download openai/gpt-oss-20b` or give --model FOLDER")
    assert not (tmp_path / "out").exists()
