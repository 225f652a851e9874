from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest

from perfgate.errors import ServerError
from perfgate.serving.model.location import write_model
from perfgate.serving.model.served_model import require_routed

DUMMY = ("--load-format", "dummy")


@pytest.fixture(scope="module")
def shape(tmp_path_factory):
    """A model as it is written; one for all, since its popularities take a second to choose."""
    return write_model(tmp_path_factory.mktemp("shape") / "model", "deepseek-fp8-shape")


@pytest.fixture
def server(shape, tmp_path):
    """A server that is ready: only what it was launched with and its log are read."""
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(shape / "config.json", folder)
    log = tmp_path / "server.log"
    log.write_text("Load weight end. elapsed=3.2 s\n")
    return SimpleNamespace(launch=SimpleNamespace(args=DUMMY, model=folder, python="python"), log=log)


def test_require_routed__the_log_says_that_the_recipe_was_followed(server):
    server.log.write_text("loading\nperfgate: routed weights v1 seed 20: 89 tensors\nready\n")

    assert require_routed(server) is None


@pytest.mark.parametrize(
    "line", ["", "perfgate: routed weights v1 seed 21: 89 tensors", "perfgate: routed weights v2 seed 20: 1"]
)
def test_require_routed__a_log_without_the_line_is_another_model(server, line):
    server.log.write_text(line)

    with pytest.raises(ServerError, match=r"no line 'perfgate: routed weights v1 seed 20:'.*perfgate kernels plug-in"):
        require_routed(server)


def test_require_routed__a_server_that_reads_weights_needs_no_line(server):
    server.launch.args = ("--load-format", "safetensors")

    assert require_routed(server) is None


def test_require_routed__a_model_without_a_recipe_needs_no_line(server):
    (server.launch.model / "config.json").write_text(json.dumps({"perfgate_weights": "random"}))

    assert require_routed(server) is None


def test_require_routed__a_recipe_that_cannot_be_read(server):
    (server.launch.model / "config.json").write_text(json.dumps({"perfgate_weights": "routed"}))

    with pytest.raises(ServerError, match="make the model again"):
        require_routed(server)
