"""A machine that was disturbed while it measured, as its telemetry tells it."""

from __future__ import annotations

from typing import Any

from tests.fakes.recorded import OTHERS
from tests.faults.checking import Edit, check, judge_recorded
from tests.faults.fault import Fault, Kind, Where
from tests.faults.kinds.slow import longer
from tests.faults.recording import Recording


def tell(arm: str = "candidate", *, slower: float = 0.0, **readings: Any) -> Edit:
    """Set what telemetry read in every window of an arm, and slow that arm down as the disturbance would."""

    def edit(recording: Recording) -> None:
        for entry in recording.pick(arm):
            entry["telemetry"] |= readings
        recording.slow(longer(slower), arm)

    return edit


def tell_both(**readings: Any) -> Edit:
    def edit(recording: Recording) -> None:
        for entry in recording.index:
            entry["telemetry"] |= readings

    return edit


def tell_once(**readings: Any) -> Edit:
    """Set what telemetry read in one warm-up window."""
    return lambda recording: recording.first(role="warmup")["telemetry"].update(readings)


def tell_late(**readings: Any) -> Edit:
    """Set what telemetry read in one measured window, and stretch that window as the work would."""

    def edit(recording: Recording) -> None:
        entry = recording.first()
        entry["telemetry"] |= readings
        recording.stretch(entry, recording.read(entry), 1.2)

    return edit


def row(name: str, made: str, edit: Edit, words: str) -> Fault:
    run = check(edit)
    return Fault(name=name, kind=Kind.SICK, made=made, where=Where.RECORDED, expected=("INVALID",), words=words, run=run)


MEASURED = (
    Fault(
        name="foreign GPU process, measured",
        kind=Kind.SICK,
        made="measured: another process computes on the GPU",
        where=Where.RECORDED,
        expected=("INVALID",),
        words="never got steady",
        run=judge_recorded(OTHERS / "closed-foreign"),
    ),
    Fault(
        name="host load, measured",
        kind=Kind.SAME,
        made="measured: equal builds while half of the cores were busy",
        where=Where.RECORDED,
        expected=("PASS", "IMPROVED", "INCONCLUSIVE", "INVALID"),
        words="",
        run=judge_recorded(OTHERS / "closed-hostload"),
    ),
)
SICK_RECORDED = (
    *MEASURED,
    row(
        "GPU throttles",
        "throttled for 30 % of the candidate's windows, 5 % slower",
        tell(slower=0.05, throttled_share=0.3),
        "the GPU throttled for 30 % of the window",
    ),
    row(
        "GPU throttled the base",
        "the same for the base: the candidate looks faster",
        tell("base", slower=0.05, throttled_share=0.3),
        "the GPU throttled for 30 % of the window",
    ),
    row(
        "foreign process on the GPU",
        "seen in one warm-up window",
        tell_once(foreign_processes=1.0),
        "used the GPU; stop them",
    ),
    row("clocks of the arms differ", "1,980 and 1,800 MHz", tell(slower=0.05, sm_clock_mhz=1800.0), "lock the clocks"),
    row(
        "host load on one arm",
        "others took 80 % of the CPU, the candidate is 5 % slower",
        tell(slower=0.05, foreign_cpu_share=0.8),
        "others took 80 % of the machine's CPU time",
    ),
    row(
        "host load on both arms",
        "others took 90 % of the CPU",
        tell_both(foreign_cpu_share=0.9),
        "others took 90 % of the machine's CPU time",
    ),
    row(
        "late compilation, seen",
        "one measured window compiled three kernels and took 1.2 times as long",
        tell_late(kernels_compiled=3.0),
        "the server compiled 3 kernels, and no re-run without that stands in its place",
    ),
    row(
        "requests retracted",
        "the token pool was full in one measured window",
        tell_late(requests_retracted=12.0),
        "the server retracted 12 requests, and no re-run",
    ),
    row(
        "stolen CPU",
        "the hypervisor gave 40 % of the candidate's CPU away",
        tell(slower=0.05, stolen_cpu_share=0.4),
        "45 % from candidate",
    ),
)
