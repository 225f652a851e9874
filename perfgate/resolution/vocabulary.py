"""The words that a comparison of choices may say to a reader: perfgate's own, and the engine's as they were reviewed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from perfgate.resolution.rules import FUSED_FLAGS
from perfgate.resolution.table import GPUS

DIGEST = r"word-[0-9a-f]{8}"
"""What `digest_word` returns, as a pattern."""


def digest_word(word: str) -> str:
    """What stands for a word that none of these tables has."""
    return f"word-{hashlib.sha256(word.encode()).hexdigest()[:8]}"


def _split(*lines: str) -> Iterable[str]:
    return (word for line in lines for word in line.split())


WORDS = frozenset(
    _split(
        # What `perfgate resolve` writes itself.
        "none on off to for in of its own another order first is shown the them one GPU FlashInfer fusion custom NCCL Triton",
        # Kernels of layers, of attention, of products, of sampling; graphs; sums over GPUs.
        "auto triton triton_kernel torch torch_native pytorch flex_attention flashinfer flashmla fa3 fa4 trtllm_mha",
        "trtllm_mla cutlass cutlass_mla cutedsl_mla tokenspeed_mla dsa nsa dual_chunk_flash_attn aiter wave intel_amx",
        "intel_xpu ascend deep_gemm marlin flashinfer_trtllm flashinfer_trtllm_routed experimental_sgl_trtllm",
        "flashinfer_cutlass flashinfer_mxfp4 flashinfer_cutedsl flashinfer_deepgemm flashinfer_cudnn full breakable",
        "tc_piecewise disabled trtllm mnnvl mscclpp triton_w8a8_block_fp8_linear torch_w8a8_block_fp8_linear",
        "aiter_w8a8_block_fp8_linear deepgemm_w8a8_block_fp8_linear_with_fallback",
        "cutlass_w8a8_block_fp8_linear_with_fallback flashinfer_gemm_w8a8_block_fp8_linear_with_fallback",
        "flashinfer_deepgemm_w8a8_block_fp8_linear_with_fallback",
        # How weights and the cache are held.
        "UnquantizedFusedMoEMethod Fp8MoEMethod Mxfp4MoEMethod Mxfp4MarlinMoEMethod Mxfp4FlashinferTrtllmMoEMethod",
        "Mxfp4FlashinferCutlassMoEMethod ModelOptFp8MoEMethod ModelOptNvFp4FusedMoEMethod W4AFp8MoEMethod W8A8FP8MoEMethod",
        "bfloat16 float16 float32 float8_e4m3fn float8_e5m2 bf16 fp16 fp8 fp8_e4m3 fp8_e5m2 mxfp4",
        # The names of tables of tuned tiles.
        "E N device_name dtype block_shape json _down fp8_w8a8 fp8_w8a8_down int8_w8a8 int8_w8a16 int4_w4a16",
        # Values of settings.
        "cpu cuda cuda_ipc lpm fcfs lru lfu layer_first page_first no_buffer extra_buffer sglang_storage",
    )
) | {gpu.device.replace(" ", "_") + end for gpu in GPUS.values() for end in ("", "_down")}
"""Whole words. A choice in any other word is shown as the word's digest."""

PACKAGES = frozenset(
    _split(
        # What SGLang requires, and what that requires of a GPU.
        "aiohttp anthropic apache-tvm-ffi av blobfile build compressed-tensors cuda-python datasets decord2 distro",
        "easydict einops fastapi flash-attn-4 flashinfer-cubin flashinfer-python gguf interegular ipython kernels",
        "llguidance mistral-common modelscope msgspec ninja numpy nvidia-cutlass-dsl nvidia-mathdx nvidia-ml-py openai",
        "openai-harmony orjson outlines packaging partial-json-parser pillow prometheus-client psutil py-spy pybase64",
        "pydantic python-multipart pyzmq quack-kernels requests scipy sentencepiece setproctitle sgl-deep-gemm sgl-kernel",
        "sglang-kernel smg-grpc-servicer soundfile tiktoken tilelang timm tokenspeed-mla torch torch-memory-saver torchao",
        "torchaudio torchcodec torchvision tqdm transformers triton uvicorn uvloop watchfiles xgrammar zstandard",
        "nvidia-nccl-cu12 nvidia-nccl-cu13 nvidia-cudnn-cu12 nvidia-cudnn-cu13 nvidia-cublas nvidia-cublas-cu12",
        "nvidia-cuda-runtime nvidia-cuda-runtime-cu12",
    )
)
"""Packages that are shown by name, normalised: those that the engine requires."""

FLAGS = frozenset(
    _split(
        "attention_backend bf16_gemm_backend chunked_prefill_size cuda_graph_bs cuda_graph_bs_decode",
        "cuda_graph_bs_prefill cuda_graph_max_bs cuda_graph_max_bs_decode cuda_graph_max_bs_prefill",
        "cuda_graph_backend_decode cuda_graph_backend_prefill cuda_graph_config decode_attention_backend",
        "disable_cuda_graph disable_custom_all_reduce disable_flashinfer_autotune disable_prefill_cuda_graph",
        "disable_decode_cuda_graph disable_piecewise_cuda_graph disaggregation_decode_host_receive_threshold dtype",
        "enable_decoder_swa_bounded_replay enable_dynamic_chunking enable_flashinfer_allreduce_fusion",
        "enable_linear_replayssm enable_mixed_chunk enable_mscclpp enable_symm_mem enable_tf32_matmul",
        "enable_torch_compile enable_torch_symm_mem ep_size file_storage_path flashinfer_allreduce_fusion_backend",
        "flashinfer_mxfp4_moe_precision fp4_gemm_runner_backend fp8_gemm_runner_backend hicache_mem_layout",
        "hicache_storage_prefetch_retry_max_attempts hicache_storage_prefetch_retry_poll_interval kv_cache_dtype",
        "max_prefill_tokens max_queued_requests max_running_requests max_total_tokens mem_fraction_static",
        "mm_feature_transport moe_a2a_backend moe_runner_backend num_continuous_decode_steps page_size",
        "prefill_attention_backend prefill_max_requests quantization radix_eviction_policy sampling_backend",
        "schedule_conservativeness schedule_policy scheduler_recv_interval stream_interval swa_full_tokens_ratio tp_size",
        "triton_attention_num_kv_splits",
    )
) | frozenset(FUSED_FLAGS)
"""Arguments of the engine that are shown by name: those on which speed rests, and those that a release on record changed."""
