"""How SGLang's MoE kernel copies the weights of its second product, by how wide an expert's shard is.

python narrow_width.py. Needs no GPU, SGLang and its Triton alone: the kernel is compiled for Hopper and its PTX read.
Exit code 1 where a width that 16 does not divide is copied by loads of two bytes.
"""

import re
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTERS = dict.fromkeys(("a_ptr", "b_ptr", "bias_ptr", "c_ptr"), "*bf16") | {"topk_weights_ptr": "*fp32"}
POINTERS |= dict.fromkeys(("sorted_token_ids_ptr", "expert_ids_ptr", "num_tokens_post_padded_ptr"), "*i32")
TILES = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8}
CHOSEN = {"MUL_ROUTED_WEIGHT": True, "top_k": 1, "compute_type": tl.bfloat16, "filter_expert": True, "ROUTER_TOPK": 4}
HIDDEN, ROWS = 2880, 4096


def load_kernel(folder: Path) -> Any:
    """`fused_moe_kernel` of the installed SGLang, without what its file imports beside Triton."""
    found = find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("no SGLang is installed here")
    [source] = Path(found.submodule_search_locations[0]).rglob("fused_moe_triton_kernels.py")
    parts = re.split(r"(?m)^(?=@|def |if |try:|_?[A-Za-z_]+ =|from |import )", source.read_text(encoding="utf-8"))
    wanted = [one for one in parts if re.match(r"def (write_zeros_to_output|fused_moe_kernel)\(", one)]
    text = "import triton\nimport triton.language as tl\n" + "".join(f"\n\n@triton.jit\n{one}" for one in wanted)
    (folder / "narrow_kernel.py").write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    return import_module("narrow_kernel").fused_moe_kernel


def count_copies(kernel: Any, width: int) -> tuple[int, int]:
    """Copies of 16 bytes into shared memory and loads of two bytes of the second product, in Hopper's PTX."""
    sizes = {"N": HIDDEN, "K": width, "EM": 8192, "num_valid_tokens": ROWS, "stride_bias_e": HIDDEN, "stride_cm": HIDDEN}
    sizes |= {"stride_am": width, "stride_be": HIDDEN * width, "stride_bn": width}
    constants = TILES | CHOSEN | {"even_Ks": width % TILES["BLOCK_SIZE_K"] == 0}
    signature, values, divided = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        signature[name] = POINTERS.get(name) or ("i32" if name in sizes else "constexpr")
        if name in POINTERS or sizes.get(name, 1) % 16 == 0:
            divided[place,] = [["tt.divisibility", 16]]
        if signature[name] == "constexpr":
            unit = 1 if name in ("stride_ak", "stride_bk", "stride_bias_n", "stride_cn") else None
            rest = None if name.endswith(("_ptr", "_desc")) else 0 if name.startswith(("stride", "group")) else False
            values[place,] = constants.get(name, unit or rest)
    source = ASTSource(kernel, signature, values, divided)
    ptx = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 8, "num_stages": 4}).asm["ptx"]
    return len(re.findall(r"cp\.async\.c[ag]\.", ptx)), len(re.findall(r"ld\.global\.b16 ", ptx))


def main() -> int:
    """Print both counts of the shards of gpt-oss-20b over 1 to 8 GPUs, and of the next width that 16 divides."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = load_kernel(Path(folder))
        found = {width: count_copies(kernel, width) for width in (2880, 1440, 720, 360, 368)}
    for width, (wide, narrow) in found.items():
        print(f"{width} columns: {wide} copies of 16 bytes, {narrow} loads of two")
    return int(any(narrow > wide for wide, narrow in found.values()))


if __name__ == "__main__":
    sys.exit(main())
