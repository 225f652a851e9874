"""What a release of SGLang needs to serve on a CPU, beside the packages that the extra `cpu-engine` pins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfgate.engines.insides import order_version

ENGINE = "sglang"

KEPT = frozenset({"torch", "numpy", "triton", "torchvision"})
"""Packages whose version is ours whatever a release asks for: its own are builds for CUDA, or break Triton's interpreter."""

WITHOUT_PINS = ("triton==3.6.0", "torchvision==0.15.2")
"""Packages that are installed without what they ask for, beside SGLang itself: they would bring CUDA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A package that releases from `since` on import on a CPU and that no earlier one did."""

    since: str
    pin: str


NEEDS: tuple[Need, ...] = ()

STAND_IN_SINCE = "0.5.16"
"""From here on names are imported from `sgl_kernel` on a CPU; its build for CPUs is on no registry."""

STAND_IN_NAME = "sgl_kernel.py"

STAND_IN = '''"""A stand-in that perfgate put here for SGLang on a CPU: it has every name, and none can be called.

`sgl_kernel` is built for GPUs; its build for CPUs is on no package registry. On a CPU SGLang imports names from it that a plain
model never calls.
"""

from pathlib import Path

if Path("/dev/nvidiactl").exists():
    raise ImportError("this sgl_kernel is perfgate's stand-in for machines without a GPU: remove it, install sglang-kernel")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name}: perfgate's stand-in for CPUs has no kernels")

    return refuse
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What releases from `since` to `last` cannot do on a CPU, by the capability's name; without a `last` the newest too."""

    capability: str
    since: str
    last: str | None = None
    why: str


LIMITS = (
    Limit(capability="GSM8K", since="0.5.16", why="the wheels no longer carry `sglang.test.simple_eval_gsm8k`"),
    Limit(
        capability="kernels",
        since="0.5.17",
        why="the functions that the plug-in replaces take other parameters; asked for, it ends the server at its start",
    ),
    Limit(
        capability="structured output",
        since="0",
        last="0.5.17",
        why="the mask of a grammar is applied on GPUs and NPUs alone; on a CPU such a request ends the server",
    ),
)


def find_limit(capability: str, version: str) -> Limit | None:
    """Why a release cannot do something on a CPU; None where it should."""
    mine = order_version(version)
    for limit in LIMITS:
        is_old = limit.last is not None and order_version(limit.last) < mine
        if limit.capability == capability and order_version(limit.since) <= mine and not is_old:
            return limit
    return None


def list_needs(version: str) -> Iterator[str]:
    """The packages that a release needs beside the extra's, pinned."""
    return (need.pin for need in NEEDS if order_version(need.since) <= order_version(version))


def needs_stand_in(version: str) -> bool:
    """Whether a release imports `sgl_kernel` on a CPU."""
    return order_version(version) >= order_version(STAND_IN_SINCE)
