"""Carry out each task of `tasks.py` once and write a log: `python -m benchmarks.ux.run LOG.md [NUMBER...]`.

Sessions run with the fake engine of the tests in SGLang's place; all else is the program as it is installed. Nothing of the
reader's home is touched: state, locks and results lie in a temporary folder.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ux.tasks import TASKS, Task
from perfgate import __version__
from tests.fakes.requests import build_text

ROOT = Path(__file__).parents[2]
LIMIT_S = 400
SHOWN = 3
"""Lines of output that a log keeps of a task."""
SESSIONS = {
    "slower": "benchmarks/h100/serving/mxfp4-mixed-c16-gpu-15-profiled",
    "same": "benchmarks/h200/serving/routed/mxfp4-mixed-c16-graphs-aa-1",
    "undecided": "benchmarks/h200/serving/routed/mxfp4-closed-c16-aa-2-m2",
    "void": "benchmarks/h200/serving/routed/dummy-closed-c16",
    "perfgate-results/earlier-20261101-120000": "benchmarks/h100/serving/mxfp4-mixed-c16-gpu-15-profiled",
}
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COMMAND = re.compile(r"\s*(\$ )?(perfgate|git|python|make) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command did."""

    code: int
    said: str
    took_s: float


def main(arguments: list[str]) -> int:
    """Run the tasks that are named, all unless some are, and write the log."""
    log, *numbers = arguments
    tasks = [task for task in TASKS if not numbers or str(task.number) in numbers]
    results = [(task, *_try(task)) for task in tasks]
    Path(log).write_text("\n".join(_write(results)) + "\n")
    return 0


def _try(task: Task) -> tuple[Done, str]:
    with tempfile.TemporaryDirectory(prefix="perfgate-ux-") as place:
        folder = Path(place) / "work"
        _prepare(folder)
        done = _run(task, folder)
        why = find_fault(task, done)
    print(f"{task.number:2} {'OK  ' if not why else 'FAIL'} {done.took_s:5.1f} s  {task.wish}  {why}", flush=True)
    return done, why


def _prepare(folder: Path) -> None:
    folder.mkdir()
    for name, source in SESSIONS.items():
        shutil.copytree(ROOT / source, folder / name)
    for arm in ("off", "on"):
        shutil.copy(ROOT / f"tests/fixtures/runs/fusion_{arm}_1.txt", folder / f"{arm}_1.txt")
    shutil.copy(ROOT / "tests/fixtures/runs/guidellm.json", folder / "guidellm.json")
    (folder / "mine.toml").write_text(build_text(**{"calibrate_first = true": "calibrate_first = false"}))
    programs = folder.parent / "bin"
    programs.mkdir()
    calls = {"perfgate": "-m tests.fakes.run_perfgate", "stop-at": str(Path(__file__).with_name("stop_at.py"))}
    for name, words in calls.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (programs / name).chmod(0o755)


def _build_environment(folder: Path, width: int | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERFGATE_", "NO_COLOR", "FORCE_COLOR"))}
    places = {"PERFGATE_STATE": str(folder.parent / "state"), "PERFGATE_LOCKS": str(folder.parent / "locks")}
    search = f"{folder.parent / 'bin'}:{Path(sys.executable).parent}:{kept['PATH']}"
    screen = {"COLUMNS": str(width), "TERM": "xterm-256color"} if width else {}
    return {**kept, **places, **screen, "PATH": search, "PYTHONPATH": str(ROOT), "BROWSER": "true"}


def _run(task: Task, folder: Path) -> Done:
    (folder.parent / "locks").mkdir()
    begun = time.monotonic()
    environment = _build_environment(folder, task.width)
    code, said = (_run_on_terminal if task.width else _run_in_pipe)(task.command, folder, environment)
    return Done(
        code=code, said=said.replace(str(folder.parent), "TMP").replace(str(ROOT), "CHECKOUT"), took_s=time.monotonic() - begun
    )


def _run_in_pipe(command: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def _run_on_terminal(command: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["/bin/bash", "-c", command], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        said = b"".join(_read(ours))
    os.close(ours)
    return process.returncode, said.decode(errors="replace").replace("\r\n", "\n")


def _read(terminal: int) -> Iterator[bytes]:
    """What is written to a terminal until its last writer has gone."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            content = os.read(terminal, 65536)
        except OSError:
            return
        if not content:
            return
        yield content


def find_fault(task: Task, done: Done) -> str:
    """Say why a task failed; empty where it succeeded."""
    if done.code not in task.codes:
        return f"exit code {done.code}"
    if missing := [words for words in task.says if not re.search(words, done.said)]:
        return f"does not say {missing[0]}"
    if found := [words for words in task.never if re.search(words, done.said)]:
        return f"says {found[0]}"
    lines = [line for line in ESCAPES.sub("", done.said).splitlines() if not COMMAND.match(line)]
    longest = max(map(len, lines), default=0)
    return f"a line of {longest} columns" if task.fits and task.width and longest > task.width else ""


def _write(results: list[tuple[Task, Done, str]]) -> Iterator[str]:
    first = [not why for task, _, why in results if task.number <= 25]
    others = [not why for task, _, why in results if task.number > 25]
    yield f"# What works at the first try, perfgate {__version__}"
    yield ""
    yield f"{sum(first)} of {len(first)} of the first tasks, {sum(others)} of {len(others)} of the later ones."
    yield ""
    yield "| # | wish | typed first | result | seconds |"
    yield "|--:|:--|:--|:--|--:|"
    for task, done, why in results:
        typed = task.command.replace("|", r"\|")
        yield f"| {task.number} | {task.wish} | `{typed}` | {f'FAIL: {why}' if why else 'OK'} | {done.took_s:.1f} |"
    yield ""
    for task, done, _ in results:
        said = ESCAPES.sub("", done.said).strip().splitlines()
        shown = [*said[:SHOWN], f"... {len(said) - SHOWN} lines more"] if len(said) > SHOWN + 1 else said
        yield from (f"## {task.number}. {task.wish}", "", "```text", *(line[:200] for line in shown), "```", "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
