"""What perfgate knows of vLLM's insides, read in the source of 0.26.0 and 0.32.0."""

from __future__ import annotations

from perfgate.engines.insides import EngineFact, Insides

_EXPERTS, _ROUTED = "expert use", "routed weights"
_RUNNER = "vllm.model_executor.layers.fused_moe.runner.moe_runner:MoERunner"
_LOADER = "vllm.model_executor.model_loader.dummy_loader:DummyModelLoader"
# `vllm.distributed` hands on all that is in it.
_GROUPS = "vllm.distributed.parallel_state"

VLLM_INSIDES = Insides(
    first="0.26.0",
    last="0.32.0",
    arguments=("vllm/engine/arg_utils",),
    paths=("vllm/entrypoints",),
    words=("vllm/v1", "vllm/compilation", "vllm/model_executor/model_loader"),
    # Its fields keep what options give; the options themselves are written out.
    has_field_options=False,
    metric_prefix="vllm:",
    facts=(
        EngineFact(kind="name", place=f"{_LOADER}.load_weights(model, model_config)", use=_ROUTED),
        EngineFact(kind="name", place=f"{_GROUPS}:get_pp_group", use=_ROUTED),
        EngineFact(kind="name", place=f"{_GROUPS}:get_tensor_model_parallel_world_size", use=_ROUTED),
        EngineFact(kind="name", place=f"{_RUNNER}._apply_quant_method(hidden_states, router_logits)", use=_EXPERTS),
        EngineFact(kind="name", place="vllm.v1.cudagraph_dispatcher:CudagraphDispatcher.dispatch(valid_modes)", use=_EXPERTS),
        EngineFact(kind="name", place="vllm.config:CUDAGraphMode", use=_EXPERTS),
        EngineFact(kind="option", place="--model", use="the model"),
        EngineFact(kind="option", place="--load-format", use="the model guard"),
        EngineFact(kind="option", place="--hf-overrides", use="the model guard"),
        EngineFact(kind="option", place="--gpu-memory-utilization", use="the share of memory"),
        EngineFact(kind="option", place="--kv-cache-memory-bytes", use="the pool of tokens"),
        EngineFact(kind="option", place="--enable-prefix-caching", use="a server without a prefix cache"),
        EngineFact(kind="path", place="/v1/completions", use="requests and answers"),
        EngineFact(kind="path", place="/metrics", use="readings of the engine"),
        EngineFact(kind="words", place="Loading weights took", use="seconds of a start"),
        EngineFact(kind="words", place="torch.compile took", use="seconds of a start"),
        EngineFact(kind="words", place="Compiling a graph for", use="kernels that are compiled in a window"),
        EngineFact(kind="words", place="Graph capturing finished in", use="seconds of a start"),
    ),
)
