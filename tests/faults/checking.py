"""Run `perfgate check` on a doctored recording: in this process, or in one of its own where how it ends is the point."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from perfgate.cli import main
from tests.fakes.recorded import EARLY, ROOT
from tests.faults.fault import Answer
from tests.faults.recording import Recording, copy_recording

HEALTHY = EARLY.name
"""Two blocks of this session pass: whatever a doctored copy is caught for, it is the doctoring."""

Edit = Callable[[Recording], None]


def run_check(state: Path, folder: Path, *options: object) -> Answer:
    """Judge a folder by the command line's own entry; what it does not foresee is raised here and fails the test."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, {"PERFGATE_STATE": str(state)}),
        chdir(ROOT),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = main(list_words(folder, *options))
    return read_answer(code, read_all(out), read_all(err))


def read_all(stream: io.TextIOWrapper) -> str:
    """What was written to a stream, through its text or its bytes."""
    stream.seek(0)
    return stream.read()


def run_check_process(state: Path, folder: Path, *options: object) -> Answer:
    """Judge a folder as a user does; a verdict or the error that stands in its place is the answer."""
    done = subprocess.run(
        [sys.executable, "-m", "perfgate", *list_words(folder, *options)],
        cwd=ROOT,
        env={**os.environ, "PERFGATE_STATE": str(state)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return read_answer(done.returncode, done.stdout, done.stderr)


def list_words(folder: Path, *options: object) -> list[str]:
    """The command line behind `perfgate`."""
    return ["check", str(folder), "--format", "json", *map(str, options)]


def read_answer(code: int, out: str, err: str) -> Answer:
    """Read what `check` printed. An outcome that its exit code does not show, or a traceback, is a fault of the gate."""
    lines = tuple(err.splitlines())
    lost = ("a traceback",) if "Traceback" in err else ()
    if not out.startswith("{"):
        return Answer(got=f"exit {code}", told=lines, lost=(*lost, *(("more than one line",) if len(lines) > 1 else ())))
    verdict = json.loads(out)
    codes = {"PASS": 0, "IMPROVED": 0, "REGRESSION": 1, "INCONCLUSIVE": 3, "INVALID": 3}
    if codes[verdict["outcome"]] != code:
        lost = (*lost, f"{verdict['outcome']} with exit code {code}")
    return Answer(got=verdict["outcome"], told=(*verdict["reasons"], *verdict["warnings"], *lines), lost=lost)


def check(edit: Edit, *options: object, source: str = HEALTHY, blocks: tuple[int, ...] = (1, 2)) -> Callable[[Path], Answer]:
    """Build a fault's run: copy, doctor, judge. A path in `options` may hold {folder}."""

    def run(folder: Path) -> Answer:
        recording = copy_recording(source, folder / "result", blocks)
        edit(recording)
        recording.save()
        return run_check(folder / "state", recording.folder, *(str(option).format(folder=folder) for option in options))

    return run


def judge_recorded(session: Path) -> Callable[[Path], Answer]:
    """Build a fault's run that judges a recorded session as it lies there."""
    return lambda folder: run_check(folder / "state", session)


def check_raw(damage: Callable[[Path], None], source: str = HEALTHY) -> Callable[[Path], Answer]:
    """Build a fault's run that damages files of a sound copy, behind the back of whatever writes them."""

    def run(folder: Path) -> Answer:
        recording = copy_recording(source, folder / "result")
        recording.save()
        damage(recording.folder)
        return run_check_process(folder / "state", recording.folder)

    return run
