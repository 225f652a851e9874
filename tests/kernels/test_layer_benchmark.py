"""benchmarks/kernels/test_layers.py on the CPU: what pytest-benchmark stores is what the verdict reads."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need triton: install the extra cpu-engine or gpu")

from perfgate.evidence.layer_timings import find_timings, read_timings

ROOT = Path(__file__).parents[2]


def run(candidate, *options):
    argv = [sys.executable, "-m", "pytest", "-q", "benchmarks/kernels/test_layers.py", "--benchmark-enable"]
    argv += ["--shape=E=4,k=2,H=32,I=32", "--tokens=1,3", "--base=torch-staged", f"--candidate={candidate}", "--rounds=10"]
    argv += ["-p", "no:cacheprovider", *options]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_layer_benchmark__stores_pairs_of_both_sides(tmp_path):
    done = run("torch-float32", f"--benchmark-storage={tmp_path}", "--benchmark-save=block")

    assert done.returncode == 0, done.stdout[-2000:]
    (block,) = read_timings(find_timings(tmp_path))
    assert list(block.layers) == ["E=4,k=2,H=32,I=32 M=1", "E=4,k=2,H=32,I=32 M=3"]
    assert (block.facts["base"], block.facts["candidate"]) == ("torch-staged", "torch-float32")
    assert {len(side) for layer in block.layers.values() for side in (layer.samples_us.base, layer.samples_us.candidate)} == {
        10
    }


def test_layer_benchmark__a_wrong_kernel_is_not_timed():
    done = run("perfgate.kernels.mutants.memory:zeros")

    assert done.returncode == 1
    assert "relative error 1 >" in done.stdout
    assert "Rounds" not in done.stdout
