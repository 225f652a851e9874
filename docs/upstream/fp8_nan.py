"""SGLang's rounding of activations to 8 bits makes a number of NaN. Needs a GPU, and SGLang 0.5.16 or a version like it.

A group of 128 ones with one NaN is rounded. Exit code 1 if nothing of it is NaN any more.
"""

import torch

try:
    from sglang.kernels.ops.quantization.fp8_kernel import sglang_per_token_group_quant_fp8
except ImportError:  # 0.5.15
    from sglang.srt.layers.quantization.fp8_kernel import sglang_per_token_group_quant_fp8

GROUP = 128


def main() -> None:
    """Round the group and print what became of the NaN."""
    rows = torch.ones(1, GROUP, dtype=torch.bfloat16, device="cuda")
    rows[0, 5] = float("nan")
    codes, scales = sglang_per_token_group_quant_fp8(rows, GROUP)
    values = codes.float() * scales
    print(f"NaN became {float(values[0, 5])}, its neighbour of 1 became {float(values[0, 6])}")
    raise SystemExit(0 if bool(values.isnan().any()) else 1)


if __name__ == "__main__":
    main()
