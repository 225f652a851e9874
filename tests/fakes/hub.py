"""gpt-oss-20b as the hub describes it."""

GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "hidden_size": 2880,
}
QUANTISED_GPT_OSS = {**GPT_OSS, "quantization_config": {"quant_method": "mxfp4"}}
"""As openai/gpt-oss-20b is published."""
