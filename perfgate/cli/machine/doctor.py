"""`perfgate doctor`: what this machine can measure, for a person who sits before it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import psutil

from perfgate.cli.output import add_format_option, print_result
from perfgate.errors import RunnerError
from perfgate.machine.links import read_links
from perfgate.runner.gpus import read_gpus, read_kernel_log
from perfgate.runner.health import Reading, judge_health
from perfgate.scenario.catalog import list_scenarios, load_scenario
from perfgate.serving.engine.engine_install import read_version
from perfgate.storage.state import find_machine_baselines

ENGINE_BYTES = 2.6e9
"""What the CPU engine takes on disk, measured with its packages."""


@click.command(name="doctor")
@add_format_option
def command(style: str) -> int:
    """Say what this machine can measure, and which command does it. The exit code is always 0.

    `perfgate runner doctor` is for scripts: its exit code says whether a GPU machine is fit.
    """
    findings = dict(_list_findings())
    width = max(map(len, findings))
    print_result(style, findings, *(f"{name:{width}}  {text}" for name, text in findings.items()))
    return 0


def _list_findings() -> Iterator[tuple[str, str]]:
    memory_gib = psutil.virtual_memory().total / 2**30
    yield "machine", f"{len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB of memory"
    readings: Sequence[Reading] = ()
    try:
        readings = read_gpus()
    except RunnerError as error:
        yield "GPU", f"not usable: {error}"
    else:
        yield "GPU", _describe_gpus(readings)
    if links := read_links([one.uuid for one in readings]):
        spread = [name for name in list_scenarios() if load_scenario(name).server.gpus > 1]
        yield "GPU links", f"{links['gpus']} GPUs, {links['link']}; {', '.join(spread)} take two of them"
    yield "CPU engine", _describe_engine()
    yield "noise bands", _describe_bands()
    yield "without either", "`perfgate demo` and `perfgate compare A B` need no engine and no GPU"


def _describe_gpus(readings: Sequence[Reading]) -> str:
    if not readings:
        return "none that a driver shows, so the GPU scenarios of `perfgate scenarios` cannot be measured here"
    faults = [finding.message for finding in judge_health(readings, kernel_log=read_kernel_log(Path("/dev/kmsg")) or "")]
    labels = ", ".join(one.label for one in readings)
    shipped = [name for name in list_scenarios() if "shape" in name]
    return f"{labels}: {'; '.join(faults) or 'no fault found'}; try `perfgate gate {shipped[0]}`, which needs no weights"


def _describe_engine() -> str:
    version = read_version("sglang")
    if version != "absent":
        return f"SGLang {version}: `perfgate gate` measures and judges on this machine's CPU"
    free_bytes = shutil.disk_usage(Path.cwd()).free
    room = "" if free_bytes > ENGINE_BYTES else f", but only {free_bytes / 1e9:.1f} GB are free here"
    return f"not installed: `perfgate engine install` ({ENGINE_BYTES / 1e9:.1f} GB{room}), then `perfgate gate`"


def _describe_bands() -> str:
    folder = find_machine_baselines()
    names = sorted(path.stem for path in folder.glob("*/*.json"))
    if names:
        return f"{', '.join(names)} in {folder}"
    return f"none in {folder} yet: the first `perfgate gate` measures this machine's noise"
