"""Run `perfgate kernels prove` on two working trees of the SGLang installed here, the candidate's with a text replaced.

python benchmarks/h200/campaign/prove_trees.py FOLDER --output proof.json [more options of prove]
python benchmarks/h200/campaign/prove_trees.py FOLDER --file srt/FILE.py --old TEXT --new TEXT --output proof.json

Without --file both are equal. FOLDER gets the trees and the compile caches. Each line that `prove` prints has the seconds that
had passed by then before it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path


def make_tree(folder: Path) -> Path:
    """Copy the installed SGLang to where a working tree has it."""
    found = find_spec("sglang")
    if found is None or found.origin is None:
        raise SystemExit("no sglang is installed here")
    shutil.copytree(Path(found.origin).parent, folder / "python" / "sglang", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def replace_text(file: Path, old: str, new: str) -> None:
    """Replace `old` wherever it stands in the file; SystemExit where it does not."""
    text = file.read_text(encoding="utf-8")
    if old not in text:
        raise SystemExit(f"{file}: no {old!r} in it")
    file.write_text(text.replace(old, new), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--file", help="of the candidate, below sglang/")
    parser.add_argument("--old", default="")
    parser.add_argument("--new", default="")
    options, more = parser.parse_known_args()
    base, candidate = (make_tree(options.folder / arm) for arm in ("base", "candidate"))
    if options.file:
        replace_text(candidate / "python" / "sglang" / options.file, options.old, options.new)
    command = [sys.executable, "-m", "perfgate", "kernels", "prove", "--checkout", str(candidate), "--base-checkout", str(base)]
    command += ["--python", sys.executable, "--base-python", sys.executable, "--caches", str(options.folder / "caches"), *more]
    begun = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            print(f"{time.monotonic() - begun:6.1f} s  {line}", end="", flush=True)
    print(f"exit {process.returncode} after {time.monotonic() - begun:.0f} s")
    sys.exit(process.returncode)


if __name__ == "__main__":
    main()
