"""benchmarks/kernels/test_layers.py on the CPU: what pytest-benchmark stores is what the verdict reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

from perfgate.readers.layer_timings import find_timings, read_timings
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.data import build
from perfgate_moe.exam.mutants import MUTANTS
from tests.kernels.scripts import loaded

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "kernels" / "test_layers.py"


def test_layer_benchmark__stores_pairs_of_both_sides(tmp_path):
    argv = [sys.executable, "-m", "pytest", "-q", str(SCRIPT), "--benchmark-enable", "-p", "no:cacheprovider"]
    argv += [f"--benchmark-storage={tmp_path}", "--benchmark-save=block", "--shape=E=4,k=2,H=32,I=32", "--tokens=1,3"]
    argv += ["--base=torch-staged", "--candidate=torch-float32", "--rounds=10"]

    # pytest-benchmark times nothing where it believes that it runs beside other workers.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}

    done = subprocess.run(argv, cwd=ROOT, env=alone, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stdout[-2000:]
    (block,) = read_timings(find_timings(tmp_path))
    assert list(block.layers) == ["E=4,k=2,H=32,I=32 M=1", "E=4,k=2,H=32,I=32 M=3"]
    assert (block.facts["base"], block.facts["candidate"]) == ("torch-staged", "torch-float32")
    assert {len(side) for layer in block.layers.values() for side in (layer.samples_us.base, layer.samples_us.candidate)} == {
        10
    }


@pytest.fixture(scope="module")
def script():
    """The benchmark's own module."""
    with loaded("test_layers") as module:
        yield module


def test_require_right__a_wrong_kernel_is_not_timed(script):
    problem = build(LayerCase(M=3, dtype="bfloat16"))

    with pytest.raises(pytest.fail.Exception, match="relative error 1 >"):
        script.require_right(MUTANTS["zeros"].run, problem, "bfloat16")


def test_turns__controls_stand_before_the_candidate_in_even_rounds_and_after_it_in_odd_ones(script):
    calls = []

    class Side:
        def __init__(self, name):
            self.replay = lambda: calls.append(name)

    names = ("base", "again", "candidate")
    turns = script.Turns(
        sides={name: Side(name) for name in names}, replays=dict.fromkeys(names, 1), order=script.random.Random(1)
    )
    for _ in range(2):
        turns.before()
        turns.candidate()
        turns.after()

    assert [index for index, name in enumerate(calls) if name == "candidate"] == [2, 3]
    assert sorted(calls) == sorted(names * 2)
    assert {name: len(samples) for name, samples in turns.samples_us.items()} == {"base": 2, "again": 2}
    assert turns.round == 2
