"""Turn results of layer.py into the table of docs/evidence/kernels.md, and into the plans that the package ships.

python benchmarks/kernels/table.py benchmarks/h200/kernels/*.json{,.xz}
python benchmarks/kernels/table.py benchmarks/h200/kernels/two-gpus/*.json.xz
python benchmarks/kernels/table.py benchmarks/h200/kernels/vllm/*.json.xz
python benchmarks/kernels/table.py benchmarks/h200/kernels/flashinfer/*.json.xz
python benchmarks/kernels/table.py benchmarks/h200/kernels/routing/*.json.xz
python benchmarks/kernels/table.py --short benchmarks/h200/kernels/{,vllm/,flashinfer/}*.json*
python benchmarks/kernels/table.py --plans perfgate_moe/layer/tuned/NVIDIA_H200.json benchmarks/h200/kernels/*.json{,.xz}
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.layer.tables import name_shape, read_table
from perfgate_moe.timing.timing import ratio_interval

OURS = ("ours-slots", "ours-owner")  # deterministic: what `automatic` may choose
ROUTED_BEFORE, UNTUNED = "sglang-mxfp4-routed", "sglang-untuned"
# Layers with quantised weights have one variant of ours, no fused sum, and other runners of SGLang's.
RUNNERS = {
    "fp8": {"sglang": "SGLang", UNTUNED: "stock", "sglang-deep-gemm": "DeepGEMM"},
    "mxfp4": {
        "sglang-mxfp4": "SGLang", ROUTED_BEFORE: "routed before", "sglang-marlin": "Marlin",
        "sglang-flashinfer-mxfp4": "FlashInfer", "sglang": "widened", UNTUNED: "widened, stock",
    },
}  # fmt: skip
ASKED = (1, 4, 16, 64, 256, 1024, 4096)
WANTED_RATIOS = (1.0, 1.1)
SHORT_HEAD = ("layer", *(f"M = {tokens:,}" for tokens in ASKED), "at least 1.00", "at least 1.10", "1.10 beyond the roofline")
VLLM, VLLM_OWN = "vllm", "vllm-untuned"
VLLM_HEAD = (
    "M", "ours, us", "SGLang, us", "vLLM, us", "vLLM's own tiles, us", "vLLM / ours", "vLLM / SGLang", "A/A", "plans tried",
    "vLLM's error / SGLang's",
)  # fmt: skip
INEXACT = "sglang-marlin"
"""The one whose answers are beyond the limits, so that its times decide nothing."""
THEIRS = (
    "sglang", "sglang-fused-sum", *dict.fromkeys(name for runners in RUNNERS.values() for name in runners if name != INEXACT),
)  # fmt: skip
PEERS = (*THEIRS, VLLM, VLLM_OWN)
BY_TURNS, RECORDED = "by-turns", "recorded"
NOISE = 0.005
AUTO = "`auto` takes, before the other by"
HEAD = (
    "| M | ours, us | atomic32, us | SGLang, us | fused sum, us | stock, us "
    f"| best SGLang / ours | A/A | floor, us | error ratio | {AUTO} |"
)
SUMS = ("nothing", "nccl", "sglang", "sglang, norm", "flashinfer, norm")
TOLD = ("alone", "behind SGLang's", "behind ours", "SGLang / ours")
SUMS_HEAD = f"| M | | {' | '.join(SUMS)} |"


def read_survey(path: Path) -> dict[str, Any]:
    """A file of layer.py, packed with xz or not."""
    content = path.read_bytes()
    return dict(json.loads(lzma.decompress(content) if path.suffix == ".xz" else content))


def compare_control(cell: dict[str, Any]) -> tuple[float, float, float]:
    """The ratio, with its interval, of the one subject that was timed a second time to that second time."""
    samples = cell["samples_us"]
    (again,) = (name for name in samples if name.endswith("-again"))
    return ratio_interval(samples[again.removesuffix("-again")], samples[again])


def row(cell: dict[str, Any]) -> str:
    """One line of markdown: medians, the ratio to the best SGLang, its interval, the A/A control."""
    samples = cell["samples_us"]
    middle = {name: median(values) for name, values in samples.items()}
    ours = find_fastest(OURS, samples)
    theirs = fastest_sglang(samples)
    ratio, low, high = ratio_interval(samples[theirs], samples[ours])
    control = compare_control(cell)
    floor = max(NOISE, abs(control[1] - 1), abs(control[2] - 1))
    verdict = "faster" if low > 1 + floor else "slower" if high < 1 - floor else "even"
    errors = cell["errors"]
    error_ratio = errors[ours]["relative"] / errors["sglang"]["relative"]
    atomic, fused_sum = (f"{middle[name]:.1f}" if name in middle else "-" for name in ("ours-atomic32", "sglang-fused-sum"))
    return (
        f"| {cell['tokens']} | {middle[ours]:.1f} ({ours.removeprefix('ours-')}) | {atomic} | {middle['sglang']:.1f} | "
        f"{fused_sum} | {middle[UNTUNED]:.1f} | {write_ratio((ratio, low, high))} {verdict} | {write_ratio(control)} | "
        f"{cell['floor_us']:.1f} ({cell['floor_us'] / middle[ours]:.0%}) | {error_ratio:.2f} | {describe_choice(cell, ours)} |"
    )


def write_ratio(found: tuple[float, float, float]) -> str:
    """A ratio with its interval."""
    return "{:.3f} [{:.3f}, {:.3f}]".format(*found)


def vllm_rows(cells: list[dict[str, Any]]) -> list[str]:
    """Lines of markdown for a layer that was timed beside vLLM's, head first: all tuned alike, and vLLM's own tiles."""
    lines = [f"| {' | '.join(VLLM_HEAD)} |", "|---" * len(VLLM_HEAD) + "|"]
    for cell in cells:
        samples = cell["samples_us"]
        times = [f"{median(samples[name]):.1f}" for name in ("ours-slots", "sglang", VLLM, VLLM_OWN)]
        pairs = ((VLLM, "ours-slots"), (VLLM, "sglang"))
        found = [*(ratio_interval(samples[theirs], samples[other]) for theirs, other in pairs), compare_control(cell)]
        ratios = map(write_ratio, found)
        errors = {name: each["relative"] for name, each in cell["errors"].items()}
        tried, error_ratio = str(cell["searched"][VLLM]["tried"]), f"{errors[VLLM] / errors['sglang']:.2f}"
        told = [str(cell["tokens"]), *times, *ratios, tried, error_ratio]
        lines.append(f"| {' | '.join(told)} |")
    return lines


def routing_rows(cells: list[dict[str, Any]]) -> list[str]:
    """Lines of markdown, head first, for a layer that was timed with each routing alone: ours, and what a server has instead.

    The last column is the control that is farthest from one.
    """
    routings = list(dict.fromkeys(cell["routing"] for cell in cells))
    names = [name if name.isalpha() else RECORDED for name in routings]
    head = ["M", *(text for name in names for text in (f"{name}: ours, us", "SGLang / ours")), "A/A"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for tokens in dict.fromkeys(cell["tokens"] for cell in cells):
        own = {cell["routing"]: cell for cell in cells if cell["tokens"] == tokens}
        told = [str(tokens)]
        for routing in routings:
            samples = own[routing]["samples_us"]
            told += [f"{median(samples[OURS[0]]):.1f}", write_ratio(gain(own[routing], OURS[0]))]
        farthest = max(map(compare_control, own.values()), key=lambda ratio: abs(ratio[0] - 1))
        lines.append(f"| {' | '.join([*told, write_ratio(farthest)])} |")
    return lines


def quantised_rows(cells: list[dict[str, Any]]) -> list[str]:
    """Lines of markdown for a layer with quantised weights, head first: all runners' times, and ratios of what is tuned.

    A runner that was not timed at some number of tokens has no figure there.
    """
    runners = RUNNERS[LayerCase.parse(cells[0]["case"]).quant]
    timed = {name: text for name, text in runners.items() if any(name in cell["samples_us"] for cell in cells)}
    head = ["M", "ours, us", *(f"{text}, us" for text in timed.values())]
    head += [*(f"{text} / ours" for name, text in timed.items() if name != UNTUNED), "A/A", "floor, us", "error ratio", AUTO]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for cell in cells:
        samples = cell["samples_us"]
        compared = [
            ratio_interval(samples[name], samples[OURS[0]]) if name in samples else None for name in timed if name != UNTUNED
        ]
        ratios = [write_ratio(found) if found else "-" for found in (*compared, compare_control(cell))]
        middle = median(samples[OURS[0]])
        floor = f"{cell['floor_us']:.1f} ({cell['floor_us'] / middle:.0%})"
        errors = {name: each["relative"] for name, each in cell["errors"].items()}
        times = [f"{middle:.1f}", *(f"{median(samples[name]):.1f}" if name in samples else "-" for name in timed)]
        told = [str(cell["tokens"]), *times, *ratios, floor, f"{errors[OURS[0]] / errors[next(iter(timed))]:.2f}"]
        lines.append(f"| {' | '.join([*told, describe_choice(cell, OURS[0])])} |")
    return lines


def gain(cell: dict[str, Any], ours: str) -> tuple[float, float, float]:
    """What a server would run instead over ours, with its interval.

    That is the fastest SGLang; for 4-bit weights, which a server keeps for SGLang's own runner alone, it is that runner with
    its routing made before, which does less than ours.
    """
    samples = cell["samples_us"]
    theirs = ROUTED_BEFORE if ROUTED_BEFORE in samples else fastest_sglang(samples)
    return ratio_interval(samples[theirs], samples[ours])


def shape_rows(cells: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Lines of markdown of each shape, head first, by number of tokens."""
    found = {}
    for shape in dict.fromkeys(cell["shape"] for cell in cells):
        own = sorted((cell for cell in cells if cell["shape"] == shape), key=lambda cell: int(cell["tokens"]))
        if own[0].get("routing", BY_TURNS) != BY_TURNS:
            found[shape] = routing_rows(own)
        elif VLLM in own[0]["samples_us"]:
            found[shape] = vllm_rows(own)
        elif LayerCase.parse(own[0]["case"]).quant == "none":
            found[shape] = [HEAD, "|---" * HEAD.count(" | ") + "|---|", *map(row, own)]
        else:
            found[shape] = quantised_rows(own)
    return found


def describe_choice(cell: dict[str, Any], ours: str) -> str:
    """Which layer `auto` takes in a server, by the lower end of the stored gain, and how much longer the other takes."""
    ratio, low, _ = gain(cell, ours)
    return f"ours, {ratio - 1:.1%}" if low >= 1 else f"SGLang's, {max(1 / ratio - 1, 0):.1%}"


def fastest_sglang(samples: dict[str, list[float]]) -> str:
    """The name of the fastest of SGLang's layers that were timed."""
    return find_fastest(THEIRS, samples)


def find_fastest(names: Iterable[str], samples: dict[str, list[float]]) -> str:
    """The one of `names` with the least median, of those that were timed."""
    return min((name for name in names if name in samples), key=lambda name: median(samples[name]))


def short_rows(cells: list[dict[str, Any]]) -> list[str]:
    """Lines of markdown, head first: a shape each, the fastest right peer's time over ours, and the share of the roofline.

    Of a cell that was timed in several runs, beside other peers, the one with the lowest ratio counts. Cells are counted by the
    lower end of the ratio's interval; the last column has those where a layer that takes no longer than the roofline would not
    be 1.10 times as fast as that peer.
    """
    lines = [f"| {' | '.join(SHORT_HEAD)} |", "|---" * len(SHORT_HEAD) + "|"]
    every: list[tuple[bool, ...]] = []
    for shape in sorted({cell["shape"] for cell in cells}):
        told, held = [], []
        for tokens in ASKED:
            runs = [compare_fastest(cell) for cell in cells if (cell["shape"], cell["tokens"]) == (shape, tokens)]
            _, text, reached = min(runs, default=(0.0, "-", ()))
            told.append(text)
            held += [reached] if reached else []
        lines.append(f"| {' | '.join([shape, *told, *count_cells(held)])} |")
        every += held
    return [*lines, f"| {' | '.join(['all', *('' for _ in ASKED), *count_cells(every)])} |"]


def compare_fastest(cell: dict[str, Any]) -> tuple[float, str, tuple[bool, ...]]:
    """The fastest right peer over ours: the ratio, as text with our share of the roofline, and whether each ratio is reached.

    The last says that the last ratio cannot be reached.
    """
    samples = cell["samples_us"]
    ours = find_fastest(OURS, samples)
    # Answers are measured by a peer's best tiles; its own ones make the same.
    right = [name for name in PEERS if not cell["errors"].get(name.removesuffix("-untuned"), {}).get("problems")]
    ratio, low, _ = ratio_interval(samples[find_fastest(right, samples)], samples[ours])
    share = cell["floor_us"] / median(samples[ours])
    reached = (*(low >= least for least in WANTED_RATIOS), ratio / share < WANTED_RATIOS[-1])
    return ratio, f"{ratio:.3f} ({share:.0%})", reached


def count_cells(held: list[tuple[bool, ...]]) -> list[str]:
    """How many cells have each of the last columns."""
    return [f"{sum(one)} of {len(held)}" for one in zip(*held, strict=True)]


def sum_rows(cells: list[dict[str, Any]]) -> list[str]:
    """Lines of markdown for each share and number of tokens of all_reduce.py: what a sum takes alone, and behind both layers.

    All are of the first rank; FlashInfer's, which is timed in a second pass, beside that pass's own layers.
    """
    lines = []
    for parts, tokens in sorted({(cell.get("parts"), cell["tokens"]) for cell in cells}):
        passes = [cell for cell in cells if (cell.get("parts"), cell["tokens"]) == (parts, tokens)]
        label = str(tokens) if parts is None else f"I/{parts}, {tokens}"
        told = [describe_sum(name, passes) for name in SUMS]
        lines += [f"| {label} | {what} | {' | '.join(values)} |" for what, *values in zip(TOLD, *told, strict=True)]
    return lines


def describe_sum(name: str, passes: list[dict[str, Any]]) -> tuple[str, ...]:
    """What one sum takes alone and behind both layers, and the ratio of these; a dash where no pass timed it."""
    is_fused = name.startswith("flashinfer")
    cell = next((cell for cell in passes if cell["with_fused"] is is_fused), None)
    if cell is None:
        return ("-",) * len(TOLD)
    middle = {key: median(values) for key, values in cell["samples_us"][0].items()}
    ratio = write_ratio(cell["sglang_over_ours"][0][f"ours-slots + {name}"])
    alone = "" if name == "nothing" else f"{middle[f'no layer + {name}']:.1f}"
    behind = [f"{middle[f'{side} + {name}']:.1f}" for side in ("sglang", "ours-slots")]
    return (alone, *behind, ratio)


def plan_table(cells: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Shape -> tokens -> the fastest deterministic plan of ours whose answer was right."""
    table: dict[str, dict[str, Any]] = {}
    for cell in cells:
        case = LayerCase.parse(cell["case"])
        timed = [name for name in OURS if name in cell["plans"]]
        right = [name for name in timed if not cell["errors"][name].get("problems")]
        if timed and not right:
            print(f"{cell['shape']} M={cell['tokens']}: {', '.join(timed)} was wrong, no plan of it is kept")
        if right:
            best = find_fastest(right, cell["samples_us"])
            key = name_shape((case.E, case.k, case.H, case.I), case.activation, case.quant)
            table.setdefault(key, {})[str(cell["tokens"])] = cell["plans"][best] | {"upstream_over_ours": gain(cell, best)}
    return table


def write_plans(path: Path, contents: dict[Path, dict[str, Any]]) -> None:
    """Put the fastest plans of results, by file, into the table at `path`; its other shapes and tokens stay."""
    table = read_table(path)
    first = next(iter(contents.values()))
    names = dict.fromkeys([*table["about"].get("from", ()), *(each.name.removesuffix(".xz") for each in contents)])
    about = {"torch": first["torch"], "card": first["card"]["name"], "from": list(names)}
    plans = table["plans"]
    for shape, found in plan_table([cell for content in contents.values() for cell in content["cells"]]).items():
        plans[shape] = plans.get(shape, {}) | found
    path.write_text(json.dumps({"about": about, "plans": plans}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--short", action="store_true", help="print the one table of all layers, over all peers' runs")
    parser.add_argument(
        "--plans", type=Path, help="put the plans of ours into this file, whose other plans stay, instead of printing the table"
    )
    options = parser.parse_args()
    # Other files beside them, such as a tuner's, hold no cells; a file of all_reduce.py those of two ranks.
    found = {path: read_survey(path) for path in options.results}
    contents = {path: content for path, content in found.items() if "cells" in content and "communicator" not in content}
    cells = [cell for content in contents.values() for cell in content["cells"]]
    if options.plans:
        write_plans(options.plans, contents)
        return
    if options.short:
        print("\n".join(short_rows(cells)))
        return
    for shape, lines in shape_rows(cells).items():
        print("\n".join([f"\n{shape}\n", *lines]))
    for content in found.values():
        if "communicator" in content:
            print("\n".join(["\nover two GPUs\n", SUMS_HEAD, "|---" * (len(SUMS) + 2) + "|", *sum_rows(content["cells"])]))


if __name__ == "__main__":
    main()
