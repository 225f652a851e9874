"""An SGLang plug-in that breaks the server it runs in; SEEDED_FAULT says how. This folder on PYTHONPATH makes it visible.

zeros (every MoE block returns zeros), drop_expert (the second expert of each token is left out), early (requests end after
three tokens), keep_cache (flushing does nothing), jit (a model is traced every 20 batches), leak (every batch keeps 4 MiB),
skip_layer (the second layer does nothing), round (weights are rounded to 3 bits, row by row, once they are loaded).

On a GPU, of gpt-oss in MXFP4: drop_sorted_expert (one of each token's four), skip_gpt_oss_layer (the second),
round_mxfp4 (codes of the experts lose their bit of mantissa).
"""

import inspect
import os

FAULT = os.environ.get("SEEDED_FAULT", "")
MOE = "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE.forward"
REQUEST = "sglang.srt.managers.schedule_batch.Req.__init__"
FLUSH = "sglang.srt.managers.scheduler.Scheduler.flush_cache"
LAYER = "sglang.srt.models.qwen3_moe.Qwen3MoeDecoderLayer.forward"
GPT_OSS_LAYER = "sglang.srt.models.gpt_oss.GptOssDecoderLayer.forward"
MXFP4 = "sglang.srt.layers.quantization.mxfp4.Mxfp4MoEMethod.process_weights_after_loading"
LOAD = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
BATCH = "sglang.srt.managers.scheduler.Scheduler.run_batch"
kept = []
batches = 0


def return_zeros(original, *args, **kwargs):
    result = original(*args, **kwargs)
    return result * 0


def drop_expert(original, layer, hidden_states, topk_output, *args, **kwargs):
    weights = topk_output.topk_weights.clone()
    weights[:, 1:] = 0
    return original(layer, hidden_states, topk_output._replace(topk_weights=weights), *args, **kwargs)


def end_early(_result, request, *_args, **_kwargs):
    request.sampling_params.max_new_tokens = min(3, request.sampling_params.max_new_tokens)


def keep_cache(_original, *_args, **_kwargs):
    return True


def trace_anew(original, *args, **kwargs):
    global batches  # noqa: PLW0603 - a plug-in is called by name
    batches += 1
    if batches % 20 == 0:
        import torch

        layers = [torch.nn.Linear(64, 64) for _ in range(40)]
        torch.jit.freeze(torch.jit.trace(torch.nn.Sequential(*layers).eval(), torch.zeros(1, 64)))
    return original(*args, **kwargs)


def leak(original, *args, **kwargs):
    kept.append(bytearray(os.urandom(4096)) * 1024)
    return original(*args, **kwargs)


def skip_layer(original, layer, positions, *args, **kwargs):
    if layer.layer_id == 1:
        given = inspect.signature(original).bind(layer, positions, *args, **kwargs).arguments
        # From 0.5.23 on a layer keeps the residual to itself.
        return (given["hidden_states"], given["residual"]) if "residual" in given else given["hidden_states"]
    return original(layer, positions, *args, **kwargs)


def round_weights(_result, runner, *_args, **_kwargs):
    import torch

    with torch.no_grad():
        for weights in runner.model.parameters():
            if weights.dim() > 1 and weights.is_floating_point():
                step = weights.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 3
                weights.copy_((weights / step).round() * step)


def drop_sorted_expert(original, layer, hidden_states, topk_output, *args, **kwargs):
    # Weights lie in the order of experts; `src_indx` says which of its token's choices each one is.
    routing = topk_output.routing_data
    is_last = topk_output.gather_indx.src_indx % routing.n_expts_act == routing.n_expts_act - 1
    routing.gate_scal.masked_fill_(is_last, 0)
    return original(layer, hidden_states, topk_output, *args, **kwargs)


def round_codes(original, method, layer):
    for weights in (layer.w13_weight, layer.w2_weight):
        # Two codes a byte; the lowest bit of each is its only bit of mantissa.
        weights.data &= 0xEE
    return original(method, layer)


def register():
    """Entry point `sglang.srt.plugins`."""
    if not FAULT:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = {
        "zeros": (MOE, return_zeros, HookType.AROUND),
        "drop_expert": (MOE, drop_expert, HookType.AROUND),
        "early": (REQUEST, end_early, HookType.AFTER),
        "keep_cache": (FLUSH, keep_cache, HookType.AROUND),
        "jit": (BATCH, trace_anew, HookType.AROUND),
        "leak": (BATCH, leak, HookType.AROUND),
        "skip_layer": (LAYER, skip_layer, HookType.AROUND),
        "skip_gpt_oss_layer": (GPT_OSS_LAYER, skip_layer, HookType.AROUND),
        "drop_sorted_expert": (MOE, drop_sorted_expert, HookType.AROUND),
        "round_mxfp4": (MXFP4, round_codes, HookType.AROUND),
        "round": (LOAD, round_weights, HookType.AFTER),
    }
    HookRegistry.register(*hooks[FAULT])
    print(f"seeded fault: {FAULT}", flush=True)
