"""What perfgate knows of SGLang's insides, read in the source of its releases from 0.5.15.post1 to 0.5.23."""

from __future__ import annotations

from perfgate.engines.insides import Fact, Insides

_INJECT, _EXPERTS, _ROUTED, _GSM8K = "--inject", "expert use", "routed weights", "GSM8K"

SGLANG_INSIDES = Insides(
    first="0.5.15.post1",
    last="0.5.23",
    arguments=("sglang/srt/server_args", "sglang/srt/arg_groups"),
    words="sglang/srt",
    facts=(
        Fact(kind="name", place="sglang.srt.plugins.hook_registry:HookRegistry", use="every plug-in of perfgate"),
        Fact(kind="name", place="sglang.srt.model_executor.model_runner:ModelRunner.forward", use=_INJECT),
        Fact(kind="name", place="sglang.srt.model_executor.model_runner:ModelRunner.load_model", use=_INJECT),
        Fact(kind="name", place="sglang.srt.managers.scheduler:Scheduler.run_batch", use=_INJECT),
        Fact(kind="name", place="sglang.srt.layers.moe.fused_moe_triton.layer:FusedMoE.run_moe_core", use=_INJECT),
        Fact(kind="name", place="sglang.srt.layers.moe.topk:TopK", use=_EXPERTS),
        Fact(kind="name", place="sglang.srt.model_loader.loader:initialize_dummy_weights", use=_ROUTED),
        Fact(kind="name", place="sglang.srt.runtime_context:get_parallel", use=_ROUTED),
        Fact(kind="name", place="sglang.benchmark.serving:run_benchmark", use="the load generator"),
        Fact(kind="name", place="sglang.test.simple_eval_common:CompletionSampler", use=_GSM8K),
        Fact(kind="name", place="sglang.test.simple_eval_gsm8k:GSM8KEval", use=_GSM8K, gone="0.5.16"),
        Fact(kind="name", place="sglang.test.simple_eval_gsm8k:get_answer_value", use=_GSM8K, gone="0.5.16"),
        Fact(kind="option", place="--enable-metrics", use="readings of the engine"),
        Fact(kind="option", place="--mem-fraction-static", use="the share of memory"),
        Fact(kind="option", place="--max-total-tokens", use="the pool of tokens"),
        Fact(kind="option", place="--json-model-override-args", use="the model guard"),
        Fact(kind="option", place="--load-format", use="the model guard"),
        Fact(kind="option", place="--moe-runner-backend", use="what a server's memory holds"),
        Fact(kind="option", place="--disable-cuda-graph", use="the CPU engine"),
        Fact(kind="option", place="--sleep-on-idle", use="the CPU engine"),
        Fact(kind="words", place="/health_generate", use="when a server is ready"),
        Fact(kind="words", place="/flush_cache", use="an empty cache before a window"),
        Fact(kind="words", place="/freeze_gc", use="the collector after the warm-up"),
        Fact(kind="words", place="/server_info", use="what a server resolved to"),
        Fact(kind="words", place="/start_profile", use="profiles"),
        Fact(kind="words", place="Load weight end", use="seconds of a start"),
        Fact(kind="words", place="Decode batch", use="the requests that run"),
        Fact(kind="words", place="#running-req", use="the requests that run"),
        Fact(kind="words", place="#retracted_reqs", use="retracted requests"),
        Fact(kind="words", place="Running FlashInfer autotune", use="kernels that are compiled in a window"),
        Fact(kind="words", place="num_running_reqs", use="the requests that run"),
        Fact(kind="words", place="num_queue_reqs", use="the requests that wait"),
        Fact(kind="words", place="cached_tokens_total", use="the share of prefixes found"),
        Fact(kind="words", place="queue_time_seconds", use="the wait in the queue"),
        Fact(kind="words", place="num_retracted_requests_total", use="retracted requests"),
    ),
)
