"""Options and parameters of the kernel suite: which implementations, which matrix, which device."""

from functools import lru_cache
from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch", reason="the kernel suite needs torch: install the extra cpu-engine or gpu")

from perfgate_moe.exam.cases import full_matrix, quick_matrix  # noqa: E402 - after the check for torch
from perfgate_moe.exam.conformance import prepare  # noqa: E402
from perfgate_moe.exam.implementations import BUILT_IN, find  # noqa: E402

# Layers here are small: a second thread gains nothing, and on a busy machine each product waits for it.
torch.set_num_threads(1)
NO_GPU = "no NVIDIA GPU here: this implementation runs on one only"


def pytest_addoption(parser):
    group = parser.getgroup("kernels", "fused MoE conformance")
    group.addoption("--impl", action="append", default=[], metavar="NAME", help="judge this implementation only; repeatable")
    group.addoption("--matrix", choices=["quick", "full"], default="quick", help="which cases (default: quick)")
    group.addoption("--on-cpu", action="store_true", help="use the CPU although there is a GPU")


@pytest.fixture(scope="session")
def device(request):
    return device_of(request.config)


@lru_cache(maxsize=1)
def has_gpu():
    return torch.cuda.is_available()


def device_of(config):
    return "cuda" if has_gpu() and not config.getoption("on_cpu", default=False) else "cpu"


@pytest.fixture(scope="session")
def exam(device):
    """A case's tensors and float64 answer; kept on the CPU, where cases are small and come back often."""
    return lru_cache(maxsize=2 if device == "cuda" else None)(lambda case: prepare(case, device))


def pytest_generate_tests(metafunc):
    """Every implementation on every case, cases outermost; one skip for an implementation that cannot run here."""
    if "implementation" not in metafunc.fixturenames:
        return
    config = metafunc.config
    # Where vLLM is not installed there is nothing to judge, and a skip for each case would say no more.
    present = [each for each in BUILT_IN if each.name != "vllm" or find_spec("vllm")]
    chosen = [find(name) for name in config.getoption("impl", default=[])] or present
    cases = quick_matrix() if config.getoption("matrix", default="quick") == "quick" else full_matrix()
    on_gpu = device_of(config) == "cuda"
    params = [
        pytest.param(each, case, id=f"{each.name}-{case}", marks=[pytest.mark.gpu] if each.needs_gpu else [])
        for case in cases
        for each in chosen
        if on_gpu or not each.needs_gpu
    ]
    skip = pytest.mark.skip(reason=NO_GPU)
    params += [pytest.param(each, None, id=each.name, marks=[pytest.mark.gpu, skip])
               for each in chosen if each.needs_gpu and not on_gpu]  # fmt: skip
    metafunc.parametrize(("implementation", "case"), params)
