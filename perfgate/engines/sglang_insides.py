"""What perfgate knows of SGLang's insides, read in the source of its releases from 0.5.15.post1 to 0.5.23."""

from __future__ import annotations

from perfgate.engines.insides import EngineFact, Insides

PLUGINS, INJECT, MOE_PLUGIN = "every plug-in of perfgate", "--inject", "the MoE plug-in"
LOAD_GENERATOR, GSM8K = "the load generator", "GSM8K"
_EXPERTS, _ROUTED = "expert use", "routed weights"
_HOOKS, _TOP_K = "sglang.srt.plugins.hook_registry:HookRegistry", "sglang.srt.layers.moe.topk:TopK"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager:TokenizerManager"
# Until 0.5.14 it lay in the second; since 0.5.15 that imports it, and warns that it will go.
_BENCH = "sglang.benchmark.serving:run_benchmark or sglang.bench_serving:run_benchmark"
_MOE_LAYER = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe"
_ALLOCATOR = "sglang.srt.distributed.device_communicators.pynccl_allocator"
_PREFILL_GRAPHS = "sglang.srt.model_executor.runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner.can_run_graph"

SGLANG_INSIDES = Insides(
    first="0.5.15.post1",
    last="0.5.23",
    arguments=("sglang/srt/server_args", "sglang/srt/arg_groups"),
    paths=("sglang/srt/entrypoints",),
    words=("sglang/srt",),
    has_field_options=True,
    metric_prefix="sglang:",
    facts=(
        EngineFact(kind="name", place=f"{_HOOKS}.register(target, hook, hook_type)", use=PLUGINS),
        EngineFact(kind="name", place="sglang.srt.plugins.hook_registry:HookType", use=PLUGINS),
        EngineFact(kind="name", place="sglang.srt.model_executor.model_runner:ModelRunner.forward", use=INJECT),
        EngineFact(kind="name", place="sglang.srt.model_executor.model_runner:ModelRunner.load_model", use=INJECT),
        EngineFact(kind="name", place="sglang.srt.managers.scheduler:Scheduler.run_batch(batch)", use=INJECT),
        EngineFact(kind="name", place=f"{_TOKENIZER}._tokenize_one_request", use=INJECT),
        EngineFact(kind="name", place="sglang.srt.layers.moe.fused_moe_triton.layer:FusedMoE.run_moe_core", use=INJECT),
        EngineFact(kind="name", place="sglang.srt.distributed.parallel_state:GroupCoordinator.all_reduce", use=INJECT),
        # Hooked where it stands, in what the class is made of; it hands its arguments on to the second one.
        EngineFact(kind="name", place=f"{_TOP_K}.forward", use=_EXPERTS),
        EngineFact(kind="name", place=f"{_TOP_K}.forward_native(hidden_states, router_logits)", use=_EXPERTS),
        EngineFact(kind="name", place=_PREFILL_GRAPHS, use=_EXPERTS),
        EngineFact(kind="name", place="sglang.srt.model_loader.loader:initialize_dummy_weights", use=_ROUTED),
        EngineFact(kind="name", place="sglang.srt.runtime_context:get_parallel", use=f"{_ROUTED}, {INJECT}"),
        EngineFact(kind="name", place=f"{_MOE_LAYER}:fused_experts_impl(hidden_states, w1, w2, topk_weights)", use=MOE_PLUGIN),
        EngineFact(kind="name", place=f"{_MOE_LAYER}:_fused_moe_kernel_sequence(hidden_states, hooks)", use=MOE_PLUGIN),
        EngineFact(kind="name", place=f"{_MOE_LAYER}:is_batch_invariant_mode_enabled", use=MOE_PLUGIN),
        EngineFact(kind="name", place=f"{_ALLOCATOR}:is_symmetric_memory_enabled", use=MOE_PLUGIN),
        EngineFact(kind="name", place=_BENCH, use=LOAD_GENERATOR),
        EngineFact(kind="name", place="sglang.test.simple_eval_common:CompletionSampler", use=GSM8K),
        # Defined there since 0.5.16; before, imported there from `sglang.test.simple_eval_gsm8k`.
        EngineFact(kind="name", place="sglang.test.simple_eval_mixed_prefix_gsm8k:GSM8KEval", use=GSM8K),
        EngineFact(kind="option", place="--model-path", use="the model"),
        EngineFact(kind="option", place="--nccl-port", use="the port at which ranks meet"),
        EngineFact(kind="option", place="--enable-metrics", use="readings of the engine"),
        EngineFact(kind="option", place="--mem-fraction-static", use="the share of memory"),
        EngineFact(kind="option", place="--max-total-tokens", use="the pool of tokens"),
        EngineFact(kind="option", place="--json-model-override-args", use="the model guard"),
        EngineFact(kind="option", place="--load-format", use="the model guard"),
        EngineFact(kind="option", place="--moe-runner-backend", use="the memory that weights take"),
        EngineFact(kind="option", place="--device", use="the CPU engine"),
        EngineFact(kind="option", place="--disable-cuda-graph", use="the CPU engine"),
        EngineFact(kind="option", place="--sleep-on-idle", use="the CPU engine"),
        EngineFact(kind="path", place="/generate", use="answers to fixed prompts"),
        EngineFact(kind="path", place="/health_generate", use="the sign that a server is ready"),
        EngineFact(kind="path", place="/flush_cache", use="an empty cache before a window"),
        EngineFact(kind="path", place="/freeze_gc", use="a still garbage collector after the warm-up"),
        EngineFact(kind="path", place="/server_info", use="the settings that a server resolved to"),
        EngineFact(kind="path", place="/start_profile", use="profiles"),
        EngineFact(kind="words", place="SGLANG_DISABLED_MODEL_ARCHS", use="a short start of `perfgate scheduler`"),
        EngineFact(kind="words", place="Load weight end", use="seconds of a start"),
        EngineFact(kind="words", place="Decode batch", use="the requests that run"),
        EngineFact(kind="words", place="#running-req", use="the requests that run"),
        EngineFact(kind="words", place="#retracted_reqs", use="retracted requests"),
        EngineFact(kind="words", place="Running FlashInfer autotune", use="kernels that are compiled in a window"),
    ),
)
