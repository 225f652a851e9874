"""A version from the future: real processes over a package tree of an SGLang that does not exist, in which things moved."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfgate_moe.engines.sglang_layer import LAYER, MODULE, SEQUENCE, TAKEN
from perfgate_moe.engines.switch import VARIABLE
from tests.fakes.engine.engine_tree import write_engine, write_metadata

REPOSITORY = Path(__file__).parents[2]
PLUGIN = "from perfgate_moe.engines.plugin import register; register()"


def run(folder, *words, **variables):
    """A process that finds the packages of `folder` before any other, and ends by itself."""
    env = os.environ | {"PYTHONPATH": f"{folder}:{REPOSITORY}"} | variables
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """An SGLang 0.6 with a renamed option, a moved load generator, and hooked functions with other parameters."""
    without = ("--max-total-tokens", "sglang.benchmark.serving")
    folder = write_engine(tmp_path_factory.mktemp("site"), without=without, renamed=("batch", "router_logits"))
    return write_metadata(folder, "0.6.0")


def test_run__names_all_that_moved_in_one_line_and_measures_nothing(moved, tmp_path):
    done = run(moved, "-m", "perfgate", "run", "cpu-moe", "--candidate-inject", "host:200", "--out", str(tmp_path / "out"))

    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("perfgate: sglang 0.6.0 has no ")
    assert last.endswith("; use 0.5.15.post1 to 0.5.23, or a newer perfgate")
    assert "--max-total-tokens, which the pool of tokens needs" in last
    assert "sglang.bench_serving:run_benchmark, which the load generator needs" in last
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


LAYERS = {name: ", ".join(sorted(TAKEN[name])) for name in (LAYER, SEQUENCE)}


@pytest.fixture
def write_layer(tmp_path):
    """An SGLang 0.6 that can be imported, and whose MoE layer has functions with these parameters; None: no such module."""

    def write(layer, sequence):
        texts = {
            "sglang": "__version__ = '0.6.0'\n",
            "sglang.srt.distributed.device_communicators.pynccl_allocator": "def is_symmetric_memory_enabled(): ...\n",
        }
        if layer is not None:
            functions = f"def {LAYER}({layer}): ...\ndef {SEQUENCE}({sequence}): ...\n"
            texts[MODULE] = f"def is_batch_invariant_mode_enabled(): ...\n{functions}"
        for module, text in texts.items():
            base = tmp_path.joinpath(*module.split("."))
            path = base / "__init__.py" if module == "sglang" else base.with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("layer", "sequence", "words"),
    [
        (f"{LAYERS[LAYER]}, next_q=None", LAYERS[SEQUENCE], f"{LAYER} takes the unknown next_q"),
        (LAYERS[LAYER], "hidden_states, *args, **kwargs", f"{SEQUENCE} takes the unknown args, kwargs and no "),
        (None, None, f"{MODULE}: No module named 'sglang.srt.layers'"),
    ],
)
def test_register__of_another_layer_ends_the_server_with_one_line(write_layer, layer, sequence, words):
    done = run(write_layer(layer, sequence), "-c", PLUGIN, **{VARIABLE: "slots"})

    assert done.returncode == 1
    assert done.stderr.startswith(f"perfgate: {VARIABLE}: SGLang 0.6.0: {words}")
    assert done.stderr.count("\n") == 1
    assert "use 0.5.15.post1 to 0.5.23" in done.stderr
