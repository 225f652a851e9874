"""What the commands of `perfgate kernels` do. It loads torch and Triton, which may be absent: imported when one is called."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from perfgate.errors import InputError
from perfgate.report.html.kernel_page import KernelCase
from perfgate.serving.engine.arms import list_caches
from perfgate.verdict.validity.kernel_proof import check_kernels
from perfgate_moe.build import checkout as sglang
from perfgate_moe.build.build import build, parse_arch
from perfgate_moe.build.checkout import open_checkout
from perfgate_moe.build.recipes import recipes
from perfgate_moe.errors import TimingError
from perfgate_moe.exam.cases import LayerCase, exam_matrix, full_matrix, quick_matrix
from perfgate_moe.exam.diagnosis import diagnose
from perfgate_moe.exam.implementations import Implementation, find
from perfgate_moe.layer.tables import is_tuned, read_table, shape_key, store, table_path
from perfgate_moe.proof.proving import ProofRequest, Side, prove
from perfgate_moe.proof.sharing import BYTES_PER_PROCESS, DeviceMemory, Examinee, SharedExam, count_free_bytes, count_processes
from perfgate_moe.proof.turns import BLOCKS, MAX_SHAPES, SHAPES, TOKENS, TurnsRequest, time_sides
from perfgate_moe.proof.values import TIMED_SHAPE, ArmName, KernelProof, TimedBlock
from perfgate_moe.timing.shapes import EXAM_SHAPES, SIXTEEN_BIT_SHAPES, find_shape, weight_sets
from perfgate_moe.timing.survey import describe_device, survey
from perfgate_moe.timing.tuner import Budget, require_gpu, tune

__all__ = [
    "SIXTEEN_BIT_SHAPES",
    "Budget",
    "Tuning",
    "ask",
    "build_own",
    "choose_cases",
    "describe_device",
    "explain",
    "find",
    "find_shape",
    "parse_arch",
    "prove_sides",
    "sglang",
    "survey",
]


def choose_cases(texts: Sequence[str], matrix: str | None, shapes: Sequence[str] = ()) -> tuple[LayerCase, ...]:
    """The cases that were named one by one, or all of a matrix; the exam's is of `shapes`, or of all that are known."""
    if not matrix:
        return tuple(map(LayerCase.parse, texts))
    layers = [find_shape(name) for name in shapes or EXAM_SHAPES]
    return {"quick": quick_matrix, "exam": lambda: exam_matrix(layers), "full": full_matrix}[matrix]()


def ask(name: str, cases: Sequence[LayerCase], device: str, processes: int | None) -> Iterator[dict[str, Any]]:
    """The answers of an implementation to cases, in their order; what it does to its process is nothing to this one.

    `processes` says among how many they are shared; None chooses by cores, memory and the number of cases.
    """
    free_bytes = count_free_bytes(device)
    each = processes or count_processes(cases, free_bytes)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    examinee = Examinee(implementation=name, python=sys.executable, env=env, device=device)
    with SharedExam(examinee, cases, each, DeviceMemory(free_bytes - each * BYTES_PER_PROCESS)) as answers:
        yield from answers


def explain(implementation: Implementation, found: Sequence[KernelCase], device: str) -> str:
    """What the wrong cases have in common, in words; empty where none is wrong."""
    wrong = [LayerCase.parse(one.case) for one in found if one.problems]
    right = [LayerCase.parse(one.case) for one in found if not one.problems and not one.left_out]
    return diagnose(implementation, wrong, right, device) if wrong else ""


def build_own(archs: Sequence[str], only: str) -> Iterator[Any]:
    """Compile our kernels whose name contains `only`. Raise InputError where there is none."""
    chosen = [recipe for recipe in recipes() if only in recipe.name]
    if not chosen:
        raise InputError(f"--only {only}: no kernel's name contains it; run without --only to see the names")
    for arch in [parse_arch(text) for text in archs]:
        yield from (build(recipe, arch) for recipe in chosen if recipe.suits(arch))


def prove_sides(options: Mapping[str, Any], tell: Callable[[str], None]) -> KernelProof:
    """Build and examine both arms' kernels as the options of `perfgate kernels prove` say."""
    request, sides = _build_request(options), _open_sides(options)
    proof = prove(sides, request, options["wheels"], tell)
    if any(check_kernels(proof)):
        return proof
    return replace(proof, times=_time_layers(sides, request, options, tell))


def _time_layers(
    sides: Sequence[Side], request: ProofRequest, options: Mapping[str, Any], tell: Callable[[str], None]
) -> tuple[TimedBlock, ...]:
    """What layers take in both arms by the first implementation; nothing, and a line that says why, where an arm gave no times.

    A layer whose text could not cross to another job is left out.
    """
    blocks = options["time_blocks"]
    if blocks is None:
        blocks = BLOCKS if request.device.startswith("cuda") else 0
    shapes = [name for name in dict.fromkeys(options["shapes"] or SHAPES) if re.fullmatch(TIMED_SHAPE, name)][:MAX_SHAPES]
    if not shapes or not blocks:
        return ()
    turns = TurnsRequest(
        implementation=request.implementations[0], shapes=shapes, device=request.device, tokens=TOKENS, blocks=blocks
    )
    try:
        return time_sides(sides, turns, tell)
    except TimingError as error:
        tell(f"the layers are not timed: {error}")
        return ()


def _build_request(options: Mapping[str, Any]) -> ProofRequest:
    """What both arms are put to. Raise InputError or MoeError for names that are none."""
    names = options["names"]
    if len(set(names)) < len(names):
        raise InputError("--impl: give each implementation once, for example --impl sglang")
    for name in names:
        find(name)
    matrix = options["matrix"] or ("exam" if options["device"].startswith("cuda") else "quick")
    return ProofRequest(
        layers=[(name, find_shape(name)) for name in options["shapes"] or SIXTEEN_BIT_SHAPES],
        arch=parse_arch(options["arch"]),
        implementations=names,
        cases=choose_cases(options["texts"], None if options["texts"] else matrix, options["shapes"]),
        device=options["device"],
        processes=options["processes"],
    )


def _open_sides(options: Mapping[str, Any]) -> list[Side]:
    """Both arms' working trees, base first."""
    caches = options["caches"] and options["caches"].resolve()
    trees: tuple[tuple[ArmName, Path, str | None, str], ...] = (
        ("base", options["base_checkout"], options["base_python"], "--base-checkout"),
        ("candidate", options["checkout"], options["python"], "--checkout"),
    )
    return [
        Side(arm=arm, checkout=open_checkout(tree, program, option), env=list_caches(caches and caches / arm))
        for arm, tree, program, option in trees
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Plans to be searched for on this GPU: the layer, the numbers of tokens that are `left`, and the table that takes them."""

    case: LayerCase
    left: list[int]
    skipped: list[int]
    path: Path
    key: str
    budget: Budget
    weights: Any
    versions: Any

    @classmethod
    def open(cls, shape: str, counts: Sequence[int], out: Path | None, budget: Budget) -> Self:
        """Leave out what the table holds from these versions. InputError for a layer that is not tuned."""
        case = find_shape(shape)
        if case.dtype == "float32":
            raise InputError(f"--shape {shape}: plans are tuned for layers of 16 bits, add dtype=bfloat16")
        device = require_gpu()
        path = out or table_path(device)
        versions, weights = describe_device(), weight_sets(case, "cuda")
        key = shape_key(weights[0])
        left = [count for count in counts if not is_tuned(read_table(path), key, count, versions)]
        skipped = sorted(set(counts) - set(left))
        return cls(case=case, left=left, skipped=skipped, path=path, key=key, budget=budget, weights=weights, versions=versions)

    def run(self) -> Iterator[Any]:
        """Search for one number of tokens after the other; what was found is in the table when it is yielded."""
        for result in tune(self.case, self.left, self.weights, self.budget):
            store(self.path, self.key, result, self.versions)
            yield result
