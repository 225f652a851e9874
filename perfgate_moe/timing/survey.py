"""Time implementations of a layer beside one another on this machine, with what it is and the least time that it allows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from perfgate_moe import __version__
from perfgate_moe.errors import MoeError, MoeInputError
from perfgate_moe.exam.accuracy import TOLERANCES, measure
from perfgate_moe.exam.cases import LayerCase
from perfgate_moe.exam.conformance import CRASHES
from perfgate_moe.exam.implementations import Implementation
from perfgate_moe.layer.problem import Problem
from perfgate_moe.layer.reference import oracle
from perfgate_moe.timing.roofline import floor_us, measure_ceilings
from perfgate_moe.timing.shapes import LAYERS, problems, weight_sets
from perfgate_moe.timing.timing import interleave, record

STATE_FIELDS = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "clocks_event_reasons.active",
)
PACKAGES = ("torch", "triton", "sglang")
ROUNDS = 10


def describe_device() -> dict[str, str]:
    """Device and versions, which must agree between runs that are judged together."""
    has_gpu = torch.cuda.is_available()
    device = str(torch.cuda.get_device_name()) if has_gpu else "cpu"
    driver = {"driver": read_state().get("driver_version", "unknown")} if has_gpu else {}
    return {"device": device, "perfgate": __version__, **{name: find_version(name) for name in PACKAGES}, **driver}


def find_version(distribution: str) -> str:
    """The installed version, or `absent`."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


def read_state() -> dict[str, str]:
    """Clocks, power, temperature and throttle reasons as nvidia-smi tells them; empty without a GPU."""
    argv = ["nvidia-smi", f"--query-gpu={','.join(STATE_FIELDS)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(zip(STATE_FIELDS, done.stdout.strip().split(", "), strict=False)) if done.returncode == 0 else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyCell:
    """One number of tokens: microseconds per layer by implementation, one a round, and why others were not timed."""

    tokens: int
    floor_us: float
    samples_us: Mapping[str, Sequence[float]]
    left_out: Mapping[str, str]


def survey(subjects: Sequence[Implementation], shape: LayerCase, counts: Sequence[int], device: str) -> Iterator[SurveyCell]:
    """Time the subjects by turns at each number of tokens; an answer beyond the limits is not timed.

    Raise MoeInputError for the CPU of a machine with a GPU, where the clock is the GPU's.
    """
    if device == "cpu" and torch.cuda.is_available():
        raise MoeInputError("--device cpu: layers are timed by the GPU's clock here; give --device cuda")
    limits = measure_ceilings(device, has_fp8=shape.quant == "fp8" and device != "cpu")
    weights = weight_sets(shape, device)
    for count in counts:
        layers = problems(shape, count, weights)
        reference = oracle(layers[0])
        refused = {each.name: refuse(each, layers[0], reference, shape.precision) for each in subjects}
        timed = {each.name: record(each.load(), layers) for each in subjects if not refused[each.name]}
        yield SurveyCell(
            tokens=count,
            floor_us=floor_us(layers, limits),
            samples_us=interleave(timed, LAYERS, ROUNDS, seed=count),
            left_out={name: reason for name, reason in refused.items() if reason},
        )


def refuse(subject: Implementation, problem: Problem, reference: Tensor, precision: str) -> str:
    """Why an implementation cannot be timed on a problem; empty where its answer is right."""
    problem.out.fill_(float("nan"))
    try:
        answer = subject.load()(problem)
    except MoeError as error:
        return str(error)
    except CRASHES as error:
        return f"raised {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return "; ".join(TOLERANCES[precision].violations(measure(answer, reference)))
