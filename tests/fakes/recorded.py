"""Sessions measured on GPUs that tests read: gpt-oss-20b's shape with weights that route, unless a line says otherwise."""

from pathlib import Path

import pytest

from benchmarks.history import restore_all
from perfgate.errors import InputError

ROOT = Path(__file__).parents[2]
ROUTED = ROOT / "benchmarks/h200/serving/routed"
BASELINE = ROOT / "perfgate/baselines/nvidia-h200-141gb/gpt-oss-20b-shape-mxfp4-mixed-c16.json"
"""The stored noise that judges them, but for UNDECIDED and VOID, which have none."""

EQUAL = ROUTED / "mxfp4-mixed-c16-graphs-aa-2"
"""Equal arms, four blocks: PASS. One of its windows was measured again."""
EARLY = ROUTED / "mxfp4-mixed-c16-graphs-aa-6"
"""The same: PASS after two blocks by what it keeps, after four by the shipped noise."""
BESIDE = ROUTED / "mxfp4-mixed-c16-graphs-aa-1"
"""The same, undecided, begun in the same second as EQUAL on the other GPU of its host."""
SLOWER = ROUTED / "mxfp4-mixed-c16-graphs-gpu-15"
"""The candidate was slowed on purpose, two blocks: REGRESSION."""
UNDECIDED = ROUTED / "mxfp4-closed-c16-aa-2-m2"
"""Equal arms, two blocks: INCONCLUSIVE."""
VOID = ROUTED / "dummy-closed-c16"
"""Plain dummy weights, which send every token to the same experts: INVALID."""

OTHERS = ROOT / "benchmarks/h200/serving/results"
"""Sessions of plain dummy weights, for what none of a model that routes shows: work beside a session."""
SPINNING = ROOT / "benchmarks/h100/serving/mxfp4-mixed-c16-gpu-15-profiled"
"""The candidate was slowed on purpose, and both arms were profiled: REGRESSION."""


def bring_back(folder):
    """The folder with all its sessions, out of the history; a shallow clone has none, and the test is skipped."""
    try:
        return restore_all(folder)
    except InputError as error:
        pytest.skip(str(error))


def bring_cut_off():
    """Equal arms that ended after one block of four."""
    return bring_back(ROUTED) / "mxfp4-mixed-c16-graphs-aa-5"


def bring_fused():
    """The candidate ran SGLang's fused sum, two blocks, no stored noise, and both arms were profiled: INCONCLUSIVE."""
    return bring_back(ROUTED) / "bf16-closed-c16-fused-sum-3"


def bring_unfused():
    """Plain dummy weights, the same kernels without the fused sum, a slowed candidate, both profiled: REGRESSION."""
    return bring_back(OTHERS) / "closed-gpu-10-long"
