"""What a release of SGLang needs to serve on a CPU, beside the packages that the extra `cpu-engine` pins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfgate.engines.arguments import EXPERT_RANKS, TRANSFER, read_option
from perfgate.engines.insides import order_version

ENGINE = "sglang"

KEPT = frozenset({"torch", "numpy", "triton", "torchvision"})
"""Packages whose version is ours whatever a release asks for: its own are builds for CUDA, or break Triton's interpreter."""

COMPANIONS: Mapping[str, str] = {"tokenizers": "transformers"}
"""Packages that another one wants in a narrow range: where a release pins another version of that one, pip chooses theirs."""

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
    Limit(
        capability="structured output",
        since="0",
        last="0.5.17",
        why="the mask of a grammar is applied on GPUs and NPUs alone; on a CPU such a request ends the server",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What is different in a release against the one before: what its wheel pins, and what moved in its source.

    Read in the wheels and sources, as far as perfgate, or what a MoE layer computes and how, depends on it.
    """

    version: str
    torch: str
    kernels: str
    transformers: str
    what: tuple[str, ...]


MOVED = (
    Moved(
        version="0.5.16",
        torch="2.11.0",
        kernels="0.4.5",
        transformers="5.12.1",
        what=(
            "the Triton kernels of the MoE layer lie in `sglang.kernels.ops.moe`",
            "the layer's answer lies in symmetric memory where that is on",
            "the evaluation of GSM8K moved to `sglang.test.simple_eval_mixed_prefix_gsm8k`",
            "names are imported from `sgl_kernel` on a CPU",
        ),
    ),
    Moved(
        version="0.5.17",
        torch="2.11.0",
        kernels="0.4.5",
        transformers="5.12.1",
        what=(
            "the layer takes activations that were rounded beforehand (`a1_q`)",
            "it reads the server's settings in groups",
            "with LoRA the second product does not load by tensor descriptors",
        ),
    ),
    Moved(
        version="0.5.18",
        torch="2.13.0",
        kernels="0.4.6.post1",
        transformers="5.12.1",
        what=(
            "the first product loads by tensor descriptors where its table of tiles says so",
            "SiLU can be applied in the first product, over rows interleaved at load (`fuse_swiglu_interleaved`)",
            "the mask of a grammar is applied on a CPU, too",
        ),
    ),
    Moved(
        version="0.5.19",
        torch="2.13.0",
        kernels="0.4.6.post1",
        transformers="5.12.1",
        what=(
            "a runner of one's own can be registered (`register_moe_runner_core`)",
            "the sum over experts of up to 32 tokens is a Triton kernel on cards with dependent launches",
        ),
    ),
    Moved(
        version="0.5.20",
        torch="2.13.0",
        kernels="0.4.7",
        transformers="5.12.1",
        what=(
            "`fused_moe` hands on activation, limits and routing scale, which it dropped before",
            "the CPU seconds of the scheduler are a metric",
        ),
    ),
    Moved(
        version="0.5.21",
        torch="2.13.0",
        kernels="0.4.7",
        transformers="5.12.1",
        what=(
            "activations `silu_rounded` and `gelu_tanh`",
            "with one expert a token and a routing scale other than 1, the second product writes where the sum reads",
        ),
    ),
    Moved(
        version="0.5.22",
        torch="2.14.1",
        kernels="0.4.9",
        transformers="5.19.0",
        what=("activation and 8-bit rounding leave out rows that the second product does not read",),
    ),
    Moved(
        version="0.5.23",
        torch="2.14.1",
        kernels="0.4.10",
        transformers="5.19.0",
        what=(
            "the sum over experts can be left to the caller (`defer_sum`)",
            "kernel plug-ins that replace the step of one model (`--enable-nvidia-megakernel`, `--enable-amd-monokernel`)",
        ),
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


_ASKS_FOR_GRAMMAR = ("response_format", '"json_schema"', '"regex"', '"ebnf"')

NEEDS_A_GPU = {
    "--speculative-algorithm": "speculative decoding: drafts are verified by CUDA kernels alone",
    "--enable-hierarchical-cache": "HiCache: memory of the host is registered with CUDA",
    "--enable-dp-attention": "DP attention: the attention backend cannot pad the batches of the ranks to one size",
    TRANSFER: "prefill and decode apart: the pool of tokens is registered as memory of a GPU",
    **dict.fromkeys(EXPERT_RANKS, "expert parallelism: the layer takes -1, another rank's expert, for its own"),
}
"""What no release serves on a CPU, by the option that asks for it: read in 0.5.16, .19, .21, .23, tried with 0.5.15.post1.

Prefill and decode apart were tried with 0.5.23 and NIXL 1.5.1.
"""


def explain_refused(words: Sequence[str], version: str) -> str | None:
    """Why a release on a CPU cannot serve what `words`, arguments of server and load generator, ask for; None where it can."""
    for option in (word.partition("=")[0] for word in words):
        if option in NEEDS_A_GPU and not (option in EXPERT_RANKS and read_option(words, *EXPERT_RANKS) == "1"):
            return f"{NEEDS_A_GPU[option]}; take a machine with a GPU"
    asked = " ".join(words)
    limit = find_limit("structured output", version) if any(word in asked for word in _ASKS_FOR_GRAMMAR) else None
    return None if limit is None else f"{limit.capability}: {limit.why}; take a release after {limit.last}, or a GPU"


def list_needs(version: str) -> Iterator[str]:
    """The packages that a release needs beside the extra's, pinned."""
    return (need.pin for need in NEEDS if order_version(need.since) <= order_version(version))


def needs_stand_in(version: str) -> bool:
    """Whether a release imports `sgl_kernel` on a CPU."""
    return order_version(version) >= order_version(STAND_IN_SINCE)
