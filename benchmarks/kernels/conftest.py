"""Options of the layer benchmarks: who is compared with whom, on which layers."""

from __future__ import annotations

from typing import Any

import pytest

DEFAULT_TOKENS = "1,4,16,64,256,1024,2048,4096,8192"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("layers", "fused MoE layers, base against candidate")
    group.addoption("--base", default="sglang", metavar="NAME", help="implementation or module:function (default: sglang)")
    group.addoption("--candidate", default="triton", metavar="NAME", help="the same (default: triton, ours)")
    group.addoption("--shape", action="append", default=[], metavar="NAME", help="a layer; repeatable (default: gpt-oss-20b)")
    group.addoption(
        "--tokens", default=DEFAULT_TOKENS, metavar="M,M,...", help=f"numbers of tokens (default: {DEFAULT_TOKENS})"
    )
    group.addoption("--rounds", type=int, default=30, help="interleaved rounds per layer (default: 30)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One benchmark per layer and number of tokens."""
    if "tokens" in metafunc.fixturenames:
        shapes = metafunc.config.getoption("shape") or ["gpt-oss-20b"]
        counts = [int(text) for text in metafunc.config.getoption("tokens").split(",")]
        metafunc.parametrize(("shape", "tokens"), [(shape, count) for shape in shapes for count in counts], scope="session")


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """What the verdict must know of the machine, beside what pytest-benchmark says of its CPU."""
    from perfgate_moe.timing.survey import describe_device

    machine_info["perfgate"] = describe_device() | {name: config.getoption(name) for name in ("base", "candidate")}
