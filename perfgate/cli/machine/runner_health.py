"""`perfgate runner doctor`, `status` and `lock`: whether a machine is fit, and who holds its GPUs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import click

from perfgate.cli.given import Number
from perfgate.cli.output import FILE, add_format_option, say
from perfgate.errors import InputError, RunnerError, TelemetryError
from perfgate.machine.accelerators import split_set
from perfgate.machine.fingerprint import read_build
from perfgate.machine.lock import find_lock_folder
from perfgate.results.results import load_results
from perfgate.results.writer import ResultWriter
from perfgate.runner.gpus import diagnose, read_gpus, read_kernel_log
from perfgate.runner.health import Finding, Reading, Severity, find_severity, judge_health
from perfgate.runner.settings import load_runner
from perfgate.runner.slots import Held, Wish, hold
from perfgate.runner.status import format_json, format_metrics, read_status
from perfgate.storage.rounding import format_count

# Not `readable`, which click takes for a condition: a slot's user may not read the log, and the doctor says so.
LOG = click.Path(path_type=Path, dir_okay=False, readable=False)
KERNEL_LOG = click.option(
    "--kernel-log", type=LOG, default=Path("/dev/kmsg"), show_default=True, help="Kernel log with the XID errors."
)


@click.command()
@click.option("--expect", metavar="LABEL", help="The expected kind of machine, for example h20.")
@click.option("--build", metavar="BUILD", help="The perfgate of the workflows, as `perfgate github plan` prints it.")
@click.option("--deep", is_flag=True, help="Also run DCGM's diagnosis, which takes minutes.")
@add_format_option
@KERNEL_LOG
@click.option(
    "--note", type=FILE, metavar="RESULT_DIR", help="Write the findings into a result folder, which makes it INVALID."
)
def doctor(expect: str | None, build: str | None, *, deep: bool, style: str, kernel_log: Path, note: Path | None) -> int:
    """Say whether this machine is fit to measure.

    Exit code: 0 fit, 10 busy, 20 degraded (heat, power brake, links), 30 broken (ECC, remapping, XID), 40 another machine
    or another perfgate.
    """
    log = read_kernel_log(kernel_log)
    try:
        readings = read_gpus()
        findings = judge_health(readings, expected=expect, kernel_log=log or "")
        if not readings and expect is None:
            message = "no GPU that a driver shows; load NVIDIA's driver and compare with `nvidia-smi -L`"
            findings = (*findings, Finding(severity=Severity.WRONG, where="host", message=message))
    except (RunnerError, TelemetryError) as error:
        readings, findings = (), (Finding(severity=Severity.BROKEN, where="host", message=str(error)),)
    findings = (*findings, *compare_build(build), *(diagnose() if deep else ()))
    if style == "json":
        click.echo(format_json({"severity": int(find_severity(findings)), "findings": findings, "readings": readings}))
    else:
        for finding in findings:
            say(f"{finding.severity.name.lower()}: {finding.where}: {finding.message}")
        labels = ", ".join(sorted({one.label for one in readings})) or "none"
        unread = "" if log is not None else "; the kernel's log may not be read, so XID errors were not looked for"
        say(f"{format_count(len(readings), 'GPU')} ({labels}), {format_count(len(findings), 'finding')}{unread}")
    if note is not None:
        add_note(note, findings)
    return int(find_severity(findings))


def compare_build(wanted: str | None) -> tuple[Finding, ...]:
    """Refuse a machine whose perfgate is another one than the workflows': it might measure what those judge otherwise."""
    if wanted in {None, own := read_build()}:
        return ()
    message = f"it has perfgate {own}, and the workflows are of {wanted}; deploy/install.sh brings their commit"
    return (Finding(severity=Severity.WRONG, where="host", message=message),)


def add_note(folder: Path, findings: tuple[Finding, ...]) -> None:
    """Void the session in `folder` for each finding: a faulty machine's measurements say nothing about a change."""
    _, session = load_results(folder)
    last_s = max((window.ended_s for window in session.windows), default=0.0)
    writer = ResultWriter(folder)
    for finding in findings:
        writer.add_problem(f"after the run, {finding.where}: {finding.message}", last_s)


@click.command()
@KERNEL_LOG
@click.option("--json", "style", flag_value="json", default=True, help="One JSON object (default).")
@click.option("--prometheus", "style", flag_value="prometheus", help="Prometheus's text format, for a textfile collector.")
def status(kernel_log: Path, style: str) -> int:
    """Say whether this machine can take a job; if not, why."""
    found = read_status(load_runner(), read_kernel_log(kernel_log) or "")
    click.echo(format_metrics(found) if style == "prometheus" else format_json(found), nl=style == "json")
    return 0


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--gpus", type=click.IntRange(min=1), help="How many GPUs the command needs (default: 1).")
@click.option("--hardware", metavar="LABEL", help="As many GPUs as a slot of this label holds, for example h20-x2.")
@click.option("--exclusive", is_flag=True, help="Reserve the whole host.")
@click.option("--timeout", "timeout_s", type=Number(min=0), default=3600.0, show_default=True, help="Seconds to wait.")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def lock(gpus: int | None, hardware: str | None, *, exclusive: bool, timeout_s: float, words: tuple[str, ...]) -> int:
    """Reserve a GPU, or several, set CUDA_VISIBLE_DEVICES and run COMMAND. The exit code is COMMAND's.

    Exit code 3 if no GPU becomes free in time. If this process dies first, the command keeps the locks.
    """
    count = choose_count(gpus, hardware)
    readings = read_gpus()
    devices = tuple(reading.uuid for reading in readings)
    if count > 1 and not devices:
        asked = f"--hardware {hardware}" if gpus is None else f"--gpus {gpus}"
        raise InputError(f"{asked}: no GPU that a driver shows; compare with `nvidia-smi -L`")
    # Without a GPU a session measures on the cores, which are all of one machine.
    wish = Wish(devices=devices, count=count, is_exclusive=exclusive or not devices, timeout_s=timeout_s)
    with hold(wish, find_lock_folder()) as held:
        return run_locked(words, name_visible(readings, held.devices), held)


def choose_count(gpus: int | None, hardware: str | None) -> int:
    """How many GPUs are wanted. Raise InputError where both options say it."""
    if hardware is None:
        return gpus or 1
    if gpus is not None:
        raise InputError("--gpus: --hardware says how many a slot has; give one of the two")
    return split_set(hardware)[1]


def name_visible(readings: Sequence[Reading], taken: Sequence[str]) -> dict[str, str]:
    """What a command has to see of the GPUs that it got: nothing is to be said where several are all that there are.

    Several go by number: engines lose their own all-reduce by UUID (docs/upstream/uuid_all_reduce.py).
    """
    if len(taken) > 1 and len(taken) == len(readings):
        return {}
    numbers = [str(reading.index) for reading in readings if reading.uuid in taken]
    return {"CUDA_VISIBLE_DEVICES": ",".join(taken if len(taken) == 1 else numbers)} if taken else {}


def run_locked(words: tuple[str, ...], visible: dict[str, str], held: Held) -> int:
    """Run a command that inherits the locks, passing on the signals that ask it to end."""
    environment = {**os.environ, **visible}
    try:
        process = subprocess.Popen(words, env=environment, pass_fds=held.files)
    except OSError as error:
        raise InputError(f"{words[0]}: cannot be run ({error.strerror})") from None

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code
