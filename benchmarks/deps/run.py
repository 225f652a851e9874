"""Bump five packages of which one is slower, and search for it; once for each of them, and again until there are twenty.

    python -m benchmarks.deps.run --times 20

The packages are real wheels that pip installs. The command is a program that imports them, counts the lines that their work
runs, which is the same on any machine, and prints the count with a scatter of 0.5 % that it draws. Each search is a line of
results.jsonl; what is there already counts, so that a run that was cut off goes on. No GPU and no network.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfgate.cli import main as perfgate

RESULTS = Path(__file__).with_name("results.jsonl")
NAMES = ("alpha", "bravo", "charlie", "delta", "echo")
WORK, SLOW = 2_000, 1.5
"""Turns of a package's loop, and how many times as many the slow one makes: a tenth more of all five."""

PACKAGE = """def work():
    total = 0
    for number in range({turns}):
        total += number * number % 7
    return total
"""
PROGRAM = f"""import random
import sys
import {", ".join(NAMES)}
lines = 0
def count(frame, event, argument):
    global lines
    lines += event == "line"
    return count
sys.settrace(count)
{"; ".join(f"{name}.work()" for name in NAMES)}
sys.settrace(None)
print(lines * random.gauss(1.0, 0.005))
"""


def make_wheel(folder: Path, name: str, version: str, source: str) -> None:
    """A wheel of one module, without the help of a build tool."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: perfgate\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for file, content in (*files.items(), (f"{info}/RECORD", record)):
            wheel.writestr(file, content)


def make_engine(folder: Path, sources: Mapping[str, str]) -> Path:
    """An environment with modules in version 1 and with the pip of this one; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    site = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (site / "pip").symlink_to(Path(sysconfig.get_path("purelib")) / "pip")
    for name, source in sources.items():
        (site / f"{name}.py").write_text(source, encoding="utf-8")
        (site / f"{name}-1.dist-info").mkdir()
        (site / f"{name}-1.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n", encoding="utf-8"
        )
    return python


def write_case(folder: Path, slow: str) -> list[str]:
    """Wheels, an engine, two lock files and a program; returns the words of the command that searches."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    same = PACKAGE.format(turns=WORK)
    for name in NAMES:
        make_wheel(wheels, name, "2", PACKAGE.format(turns=int(WORK * SLOW)) if name == slow else same)
    engine = make_engine(folder / "engine", dict.fromkeys(NAMES, same))
    for lock, version in (("base.lock", 1), ("candidate.lock", 2)):
        (folder / lock).write_text("".join(f"{name}=={version}\n" for name in NAMES), encoding="utf-8")
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    locks = [str(folder / "base.lock"), str(folder / "candidate.lock")]
    words = [
        "--engine",
        str(engine),
        "--command",
        f"{{python}} {folder}/program.py",
        "--budget",
        "30",
        "--out",
        f"{folder}/out",
    ]
    return ["deps", *locks, *words]


@contextmanager
def offer(wheels: Path) -> Iterator[None]:
    """Let pip find wheels in a folder, and nowhere else."""
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    kept = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def search(folder: Path, slow: str, *more: str) -> dict[str, Any]:
    """Search for the slow package and return what was found, as the command prints it."""
    words = write_case(folder, slow)
    printed = io.StringIO()
    with offer(folder / "wheels"), contextlib.redirect_stdout(printed):
        perfgate([*words, *more, "--format", "json"])
    told: dict[str, Any] = json.loads(printed.getvalue())
    return told


def main() -> int:
    """Run what is missing; exit code 1 where fewer than 19 of 20 searches named the right package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    times = parser.parse_args().times
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()] if RESULTS.exists() else []
    for number in range(len(lines), times):
        slow, begun_s = NAMES[number % len(NAMES)], time.monotonic()
        with tempfile.TemporaryDirectory(prefix="perfgate-deps-") as made:
            told = search(Path(made), slow)
        named = next((row["subject"].split()[0] for row in told["commits"] if row["commit"] == told["culprit"]), None)
        line = {"slow": slow, "named": named, "outcome": told["outcome"], "blocks": told["blocks"], "builds": told["builds"]}
        lines.append(line | {"load": round(os.getloadavg()[0], 1), "wall_s": round(time.monotonic() - begun_s, 1)})
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(lines[-1]) + "\n")
        print(lines[-1], flush=True)
    right = sum(line["slow"] == line["named"] for line in lines)
    print(f"{right} of {len(lines)} named the right package")
    return int(right < 0.95 * len(lines))


if __name__ == "__main__":
    raise SystemExit(main())
