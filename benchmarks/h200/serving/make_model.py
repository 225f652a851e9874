"""Write the shape of gpt-oss-20b without its weights: config.json and a word-level tokenizer, for `--load-format dummy`.

    python benchmarks/h200/serving/make_model.py FOLDER

The sizes are those of the published config.json of openai/gpt-oss-20b, without its MXFP4 quantisation (the server draws bf16
weights); every token is one word, so that lengths are exact.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

LAYERS, VOCAB, END, PAD = 24, 201088, 200002, 199999

CONFIG = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "eos_token_id": END,
    "pad_token_id": PAD,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCAB,
}


def main(folder: Path) -> None:
    """Write the four files."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"eos_token": f"w{END}", "pad_token": f"w{PAD}", "unk_token": "w0"}
    files = {
        "config.json": CONFIG,
        "generation_config.json": {"eos_token_id": [END, PAD], "pad_token_id": PAD},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 131072, **special},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
