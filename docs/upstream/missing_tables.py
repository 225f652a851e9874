"""Which Triton versions an installed SGLang has MoE tile tables for, of one GPU.

python missing_tables.py [NVIDIA_H200]. Needs no GPU.
SGLang looks in the folder of its own Triton first, then in those of others, newest first.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

LAYERS = {"gpt-oss-20b, bf16": "E=32,N=2880", "Qwen3-30B-A3B": "E=128,N=768", "narrow shard": "E=128,N=192"}


def list_tables(root: Path, device: str) -> dict[str, set[str]]:
    """The layers that each Triton version's folder below `root` has a 16-bit table of `device` for."""
    end = f",device_name={device}.json"
    folders = sorted(root.rglob("configs/triton_*"), key=lambda folder: [int(part) for part in folder.name.split("_")[1:]])
    return {folder.name: {path.name.removesuffix(end) for path in folder.glob(f"*{end}")} for folder in folders}


def main(device: str) -> None:
    """Print what the installed SGLang has."""
    spec = find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("no SGLang is installed here")
    tables = list_tables(Path(spec.submodule_search_locations[0]), device)
    print(f"16-bit tables of {device}:", ", ".join(f"{name} {len(found)}" for name, found in tables.items()))
    for layer, name in LAYERS.items():
        print(f"{layer} ({name}):", ", ".join(folder for folder, found in tables.items() if name in found) or "no table")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["NVIDIA_H200"]))
