"""What is ready to be filed with SGLang: the scripts that need no GPU, and the tables as its layers would read them."""

import importlib.util
import json
import lzma
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UPSTREAM = ROOT / "docs" / "upstream"
TABLES = UPSTREAM / "tables" / "configs" / "triton_3_6_0"
MEASURED = [ROOT / "benchmarks" / "h200" / "kernels" / name for name in ("gpt-oss-20b.json", "gpt-oss-20b-large.json.xz")]
TILES = {"BLOCK_SIZE_M": "m", "BLOCK_SIZE_N": "n", "BLOCK_SIZE_K": "k", "GROUP_SIZE_M": "group_m"}


def load(name):
    spec = importlib.util.spec_from_file_location(name, UPSTREAM / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_list_tables__by_triton_and_for_one_device_alone(tmp_path):
    for triton, names in {
        "triton_3_10_0": ["E=8,N=64,device_name=NVIDIA_H200.json"],
        "triton_3_2_0": ["E=8,N=64,device_name=NVIDIA_H20.json", "E=8,N=64,device_name=NVIDIA_H200_down.json"],
    }.items():
        for name in names:
            path = tmp_path / "layers" / "configs" / triton / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")

    found = load("missing_tables").list_tables(tmp_path, "NVIDIA_H200")

    assert list(found.items()) == [("triton_3_2_0", set()), ("triton_3_10_0", {"E=8,N=64"})]


@pytest.mark.parametrize(
    ("sizes", "factor", "eager"),
    [([4, 8, 12, 48], 2, [1, *range(13, 24)]), ([1, 2, 4, 8], 2, []), ([64], 1, list(range(1, 64))), ([8, 4], 4, [])],
)
def test_list_eager__numbers_of_tokens_between_graphs(sizes, factor, eager):
    pytest.importorskip("sglang", reason="it asks SGLang: run `perfgate engine install`")

    assert load("cached_prompt").list_eager(sizes, factor) == eager


def test_list_killed__since_the_supervisor_began():
    lines = [
        (3.0, "[2026-11-29 04:37:51] INFO:     Started parent process [5851]"),
        (13.5, "[2026-11-29 04:38:02] INFO:     Waiting for child process [6153]"),
        (13.5, "[2026-11-29 04:38:02] INFO:     Child process [6153] died"),
        (22.0, "[2026-11-29 04:38:11] INFO:     Started server process [6154]"),
        (27.0, "[2026-11-29 04:38:15] INFO:     Child process [6243] died"),
    ]

    assert load("tokenizer_workers").list_killed(lines) == [(10.5, 6153), (24.0, 6243)]
    assert load("tokenizer_workers").list_killed(lines[:2]) == []


def test_tables__hold_the_tiles_that_were_measured():
    texts = [lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes() for path in MEASURED]
    cells = [cell for text in texts for cell in json.loads(text)["cells"]]
    plans = {str(cell["tokens"]): cell["plans"]["sglang"] for cell in cells}
    for end, product in (("", "gate_up"), ("_down", "down")):
        table = json.loads((TABLES / f"E=32,N=2880,device_name=NVIDIA_H200{end}.json").read_text())

        assert table.keys() == plans.keys()
        for tokens, tiles in table.items():
            assert {name: tiles[name] for name in TILES} == {name: plans[tokens][product][own] for name, own in TILES.items()}
