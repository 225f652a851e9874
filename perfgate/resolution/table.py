"""Models and GPUs that are resolved, and what is known of the releases' own requirements: data alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONFIGS = Path(__file__).with_name("models")
"""A config.json for each model, by its name: shapes from its published configuration, no weights and no tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as its driver describes it; nothing else of it is asked for. Memory is what `nvidia-smi` shows."""

    name: str
    device: str
    capability: tuple[int, int]
    memory_mib: int
    multiprocessors: int
    shared_bytes: int = 232448


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model by its shape. `module` and `architecture` are its class in the engine, `tp` the GPUs that share it.

    `tp_on` is another number on a GPU whose memory is too small for that; above eight it takes two hosts. `args` are more
    words of the server's command line.
    """

    name: str
    module: str
    architecture: str
    tp: int = 1
    tp_on: Mapping[str, int] = field(default_factory=dict)
    args: tuple[str, ...] = ()

    def count_gpus(self, gpu: str) -> int:
        """How many GPUs share the model where they are `gpu`."""
        return self.tp_on.get(gpu, self.tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """What a release of torch brings: its Triton, by whose version SGLang looks for tuned tiles, and its CUDA."""

    triton: str
    cuda: str


# Data sheets and `nvidia-smi`: name, compute capability, memory, streaming multiprocessors.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(name="h20", device="NVIDIA H20", capability=(9, 0), memory_mib=97871, multiprocessors=78),
        Gpu(name="h100", device="NVIDIA H100 80GB HBM3", capability=(9, 0), memory_mib=81559, multiprocessors=132),
        Gpu(name="h200", device="NVIDIA H200", capability=(9, 0), memory_mib=143771, multiprocessors=132),
        Gpu(name="b200", device="NVIDIA B200", capability=(10, 0), memory_mib=183359, multiprocessors=148),
    )
}

MODELS = {
    model.name: model
    for model in (
        ListedModel(name="gpt-oss-20b", module="gpt_oss", architecture="GptOssForCausalLM"),
        ListedModel(name="gpt-oss-120b", module="gpt_oss", architecture="GptOssForCausalLM", tp=4),
        ListedModel(name="qwen3-30b", module="qwen3_moe", architecture="Qwen3MoeForCausalLM"),
        ListedModel(name="qwen3-235b-fp8", module="qwen3_moe", architecture="Qwen3MoeForCausalLM", tp=4),
        # DeepSeek-R1 has the same shape. One host of eight H100 cannot hold it.
        ListedModel(name="deepseek-v3", module="deepseek_v2", architecture="DeepseekV3ForCausalLM", tp=8, tp_on={"h100": 16}),
    )
}

TOOLKITS = {
    "2.11.0": Toolkit(triton="3.6.0", cuda="13.0"),
    "2.13.0": Toolkit(triton="3.7.1", cuda="13.0"),
    "2.14.1": Toolkit(triton="3.8.0", cuda="13.0"),
}
"""By the version of torch that a release pins, from the requirements of torch's own wheels for Linux."""

FIRST, LAST = "0.5.13", "0.5.23"
"""The releases of SGLang in which each part of a reading was tried."""

STAND_INS = {
    "sglang-kernel": ("sgl_kernel", "triton_kernels"),
    "flashinfer-python": ("flashinfer",),
    "sgl-deep-gemm": ("deep_gemm",),
    "sgl-deep-ep": ("deep_ep",),
    "sgl-flash-mla": ("flash_mla",),
    "quack-kernels": ("quack",),
    "torch-memory-saver": ("torch_memory_saver",),
    "nvidia-cutlass-dsl": ("cutlass",),
    "cuda-python": ("cuda",),
    "flash-attn-4": ("flash_attn",),
    "tilelang": ("tilelang",),
}
"""Packages of kernels that need a GPU to be of use, and the modules that they bring: an environment need not have them."""
