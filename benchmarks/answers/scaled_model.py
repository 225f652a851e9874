"""Write gpt-oss-20b's widths at two layers with weights of a trained model's size: answers that a wrong layer would change.

    python benchmarks/answers/scaled_model.py FOLDER

Dummy weights of an engine are so small that every token is as likely as any other, and a wrong layer would hardly show. Here a
layer adds as much to the residual stream as comes in, and logits differ by several units. 3.6 GB on disk.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.h200.serving import make_model

LAYERS, VOCAB = 2, 8192
HIDDEN, INNER, EXPERTS = 2880, 2880, 32
HEADS, KV_HEADS, HEAD_DIM = 64, 8, 64


def draw(*shape: int, spread: float) -> Tensor:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return (torch.randn(shape, device=device, dtype=torch.float32) * spread).to(torch.bfloat16).cpu()


def layer(prefix: str) -> dict[str, Tensor]:
    """One block's weights under their names in a checkpoint: experts store inputs before outputs, gate and up in turn."""
    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    found = {"input_layernorm.weight": ones, "post_attention_layernorm.weight": ones.clone()}
    for name, width in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        found[f"self_attn.{name}_proj.weight"] = draw(width * HEAD_DIM, HIDDEN, spread=HIDDEN**-0.5)
        found[f"self_attn.{name}_proj.bias"] = draw(width * HEAD_DIM, spread=0.02)
    found["self_attn.o_proj.weight"] = draw(HIDDEN, HEADS * HEAD_DIM, spread=(HEADS * HEAD_DIM) ** -0.5)
    found["self_attn.o_proj.bias"] = draw(HIDDEN, spread=0.02)
    found["self_attn.sinks"] = draw(HEADS, spread=1.0)
    found["mlp.router.weight"] = draw(EXPERTS, HIDDEN, spread=2 * HIDDEN**-0.5)
    found["mlp.router.bias"] = draw(EXPERTS, spread=0.1)
    found["mlp.experts.gate_up_proj"] = draw(EXPERTS, HIDDEN, 2 * INNER, spread=2 * HIDDEN**-0.5)
    found["mlp.experts.gate_up_proj_bias"] = draw(EXPERTS, 2 * INNER, spread=0.5)
    found["mlp.experts.down_proj"] = draw(EXPERTS, INNER, HIDDEN, spread=INNER**-0.5)
    found["mlp.experts.down_proj_bias"] = draw(EXPERTS, HIDDEN, spread=0.2)
    return {f"{prefix}.{name}": tensor for name, tensor in found.items()}


def main(folder: Path) -> None:
    torch.manual_seed(1)
    make_model.VOCAB = VOCAB
    ends = {"vocab_size": VOCAB, "eos_token_id": VOCAB - 1, "pad_token_id": VOCAB - 2}
    make_model.CONFIG |= ends | {"num_hidden_layers": LAYERS, "layer_types": ["sliding_attention", "full_attention"]}
    make_model.END, make_model.PAD = VOCAB - 1, VOCAB - 2
    make_model.main(folder)
    tensors = {
        "model.embed_tokens.weight": draw(VOCAB, HIDDEN, spread=1.0),
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
        "lm_head.weight": draw(VOCAB, HIDDEN, spread=2 * HIDDEN**-0.5),
    }
    for index in range(LAYERS):
        tensors |= layer(f"model.layers.{index}")
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    print(json.dumps({"folder": str(folder), "bytes": size}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
