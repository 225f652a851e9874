"""How many new tokens of a prompt fit no CUDA graph of prefill by default. Needs SGLang 0.5.16 or newer, and no GPU.

A prompt that is cached as a whole has one: SGLang prefills its last token again. Exit code 1 if that one is computed eagerly.
"""

from collections.abc import Iterable
from importlib import import_module
from types import SimpleNamespace

import sglang

LARGEST = 8192
METHOD, FACTOR = "_generate_prefill_cuda_graph_batch_sizes", "_MAX_PREFILL_CUDA_GRAPH_PADDING_FACTOR"
RUNNER = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner"


def list_eager(sizes: Iterable[int], factor: int) -> list[int]:
    """Numbers of tokens whose smallest graph has more than `factor` times as many."""
    ordered = sorted(sizes)
    return [count for count in range(1, ordered[-1] + 1) if next(size for size in ordered if size >= count) > factor * count]


def read_sizes() -> list[int]:
    """SGLang's own sizes up to LARGEST tokens."""
    try:
        return list(import_module("sglang.srt.arg_groups.cuda_graph_hook").generate_prefill_cuda_graph_batch_sizes(LARGEST))
    except ImportError:  # before 0.5.19
        arguments = import_module("sglang.srt.server_args").ServerArgs
        return list(getattr(arguments, METHOD)(SimpleNamespace(), LARGEST))


def main() -> None:
    """Print the sizes, the factor and the numbers of tokens between them."""
    sizes, factor = read_sizes(), getattr(import_module(RUNNER), FACTOR)
    eager = list_eager(sizes, factor)
    shown = ", ".join(map(str, sizes[:3]))
    print(f"SGLang {sglang.__version__}: graphs of {shown}, ... {sizes[-1]} tokens, padded {factor} times at most")
    print(f"computed eagerly up to {LARGEST} tokens: {eager or 'none'}")
    raise SystemExit(1 if 1 in eager else 0)


if __name__ == "__main__":
    main()
