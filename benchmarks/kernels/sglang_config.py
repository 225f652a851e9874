"""Write the tiles that the layer benchmark found for SGLang where a server of SGLang looks for them.

python benchmarks/kernels/sglang_config.py FOLDER benchmarks/h200/kernels/gpt-oss-20b{.json,-large.json.xz}

Start the server with SGLANG_MOE_CONFIG_DIR=FOLDER: a comparison of servers is then one of layers that were both tuned, and not
of tuned tiles with those that SGLang falls back to.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from table import read_survey

from perfgate_moe.engines.sglang_peer import config_of
from perfgate_moe.layer.tiles import plan_from
from perfgate_moe.timing.shapes import SHAPES

VERSIONED = "triton_{}"
DEVICE = "NVIDIA_H200"
FP8 = ",dtype=fp8_w8a8,block_shape=[128, 128]"  # 4-bit weights are widened, and looked up as 16-bit ones


def main(folder: Path, results: list[Path]) -> None:
    cells = [cell for result in results for cell in read_survey(result)["cells"]]
    place = folder / "configs" / VERSIONED.format(read_triton_version().replace(".", "_"))
    place.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(cell["shape"] for cell in cells):
        plans = {cell["tokens"]: plan_from(cell["plans"]["sglang"]) for cell in cells if cell["shape"] == name}
        tables: dict[str, dict[str, Any]] = {"": {}, "_down": {}}
        for tokens, plan in sorted(plans.items()):
            tables[""][str(tokens)] = config_of(plan.gate_up)
            tables["_down"][str(tokens)] = config_of(plan.down) | {"USE_TMA": plan.down.tma}
        for end, table in tables.items():
            kind = FP8 if SHAPES[name].quant == "fp8" else ""
            path = place / f"E={SHAPES[name].E},N={SHAPES[name].I},device_name={DEVICE}{kind}{end}.json"
            path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
            print(path)


def read_triton_version() -> str:
    import triton

    return str(triton.__version__)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
