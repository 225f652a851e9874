"""What a server's own arguments say: the value of an option, and over how many GPUs they spread a model.

The arguments are the one place that says how a model is divided. Scenarios, memory, locks, telemetry and costs read it here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EXPERT_RANKS = ("--ep-size", "--ep", "--expert-parallel-size")
TRANSFER = "--disaggregation-transfer-backend"
"""The option that says how keys and values get from the server that computes prompts to the one that decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a server divides a model: its tensor, pipeline and data parallel ranks, by the options of SGLang and vLLM.

    With DP attention (`is_attention_data`) the data ranks share the GPUs of the tensor ranks: each of them computes the
    attention of its own requests. Expert parallelism spreads whole experts over `expert` of the tensor ranks and takes no
    further GPU. Where prefill and decode are apart (`is_disaggregated`), a second server of the same ranks has the next GPUs.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    is_attention_data: bool = False
    is_disaggregated: bool = False
    first_gpu: int = 0

    @property
    def gpus(self) -> int:
        """How many GPUs the arm takes, from number `first_gpu` on."""
        return self.server_gpus * (2 if self.is_disaggregated else 1)

    @property
    def server_gpus(self) -> int:
        """How many GPUs one server takes."""
        return self.tensor * self.pipeline * (1 if self.is_attention_data else self.data)

    @property
    def weight_parts(self) -> int:
        """Among how many GPUs the experts of one replica are divided, by their columns or as whole experts."""
        return self.tensor * self.pipeline

    @property
    def is_one_group(self) -> bool:
        """Whether all ranks meet at one port, a single rank too; replicas of plain data parallelism each meet at their own."""
        return self.data == 1 or self.is_attention_data

    @property
    def attention_ranks(self) -> int:
        """Among how many ranks one layer's attention is divided."""
        return max(1, self.tensor // self.data) if self.is_attention_data else self.tensor


def read_layout(args: Sequence[str]) -> Layout:
    """Read how a server started with `args` divides its model; what is no number counts as left out."""
    return Layout(
        tensor=_read_number(args, 1, "--tp", "--tp-size", "-tp", "--tensor-parallel-size"),
        pipeline=_read_number(args, 1, "--pp", "--pp-size", "-pp", "--pipeline-parallel-size"),
        data=_read_number(args, 1, "--dp", "--dp-size", "-dp", "--data-parallel-size"),
        expert=_read_number(args, 1, *EXPERT_RANKS),
        is_attention_data="--enable-dp-attention" in args,
        # Whoever names a mode too starts that one server; with the transfer alone, perfgate starts both.
        is_disaggregated=read_option(args, TRANSFER) is not None and read_option(args, "--disaggregation-mode") is None,
        first_gpu=_read_number(args, 0, "--base-gpu-id"),
    )


def _read_number(args: Sequence[str], least: int, *names: str) -> int:
    text = read_option(args, *names)
    return max(least, int(text)) if text is not None and text.isdecimal() else least


def read_option(args: Sequence[str], *names: str) -> str | None:
    """The value of the last of `--name value` and `--name=value`: the one that an argument parser keeps."""
    value = None
    for place, argument in enumerate(args):
        name, equals, given = argument.partition("=")
        if name in names:
            value = given if equals else next(iter(args[place + 1 : place + 2]), "")
    return value
