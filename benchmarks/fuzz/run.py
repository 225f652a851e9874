"""Fuzz every reader of foreign files for some time, one after the other, and write down what was found.

`.venv/bin/python benchmarks/fuzz/run.py [--seconds 180] [TARGET ...]` needs the extra `fuzz`. It writes `results.json`, where
targets that were not fuzzed this time stay as they were, and the table in `docs/evidence/fuzz.md` between its two marks.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
RESULTS = HERE / "results.json"
PAGE = ROOT / "docs/evidence/fuzz.md"
MARKS = "<!-- table: begin -->", "<!-- table: end -->"
# What one input may take, and how much memory: an input that stalls a reader is a finding too.
LIMITS = ("-timeout=120", "-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=1")
GRACE_S = 120.0


def fuzz(name: str, seconds: int) -> dict[str, Any]:
    """Fuzz one target in a process of its own; what libFuzzer says at its end becomes one row."""
    from tests.fuzz.targets import TARGETS

    target = next(target for target in TARGETS if target.name == name)
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place, "corpus")
        corpus.mkdir()
        for number, seed in enumerate(target.make_seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        argv = [sys.executable, str(HERE / "harness.py"), name, str(corpus), f"-max_total_time={seconds}", "-seed=1", *LIMITS]
        before = time.monotonic()
        try:
            done = subprocess.run(
                argv, cwd=place, capture_output=True, text=True, errors="replace", timeout=seconds + GRACE_S, check=False
            )
            said, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired:
            said, code = f"it did not end within {seconds + GRACE_S:.0f} s", 1
        took_s = time.monotonic() - before
        inputs = len(list(corpus.iterdir()))
    return summarise(said, code) | {"took_s": round(took_s, 1), "corpus": inputs}


def summarise(text: str, code: int) -> dict[str, Any]:
    """Executions, coverage and findings of one run."""
    executions = int(_last(r"stat::number_of_executed_units:\s*(\d+)", text) or 0)
    features = [int(_last(rf"{word}: (\d+)", text) or 0) for word in ("cov", "ft")]
    findings = re.findall(r"^FINDING (.*)$", text, flags=re.MULTILINE)
    if code:
        findings.append(f"ended with {code}: {text.strip().splitlines()[-1][:200] if text.strip() else 'nothing said'}")
    return {"executions": executions, "covered": features[0], "features": features[1], "findings": findings}


def _last(pattern: str, text: str) -> str | None:
    found = re.findall(pattern, text)
    return found[-1] if found else None


def draw_table(results: dict[str, Any]) -> str:
    """The table of the documentation."""
    lines = ["| reader | seconds | executions | a second | branches covered | findings |", "|:--|--:|--:|--:|--:|--:|"]
    for name, row in results["targets"].items():
        took_s, executions = row["took_s"], row["executions"]
        rate = executions / took_s
        lines.append(f"| {name} | {took_s:.0f} | {executions:,} | {rate:.0f} | {row['covered']:,} | {len(row['findings'])} |")
    return "\n".join(lines)


def write_page(results: dict[str, Any]) -> None:
    """Put the table between the marks of the page."""
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}\n{draw_table(results)}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


def main() -> None:
    """Fuzz the targets that are named, else all."""
    from importlib.metadata import version

    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("targets", nargs="*", default=[target.name for target in TARGETS])
    options = parser.parse_args()
    for name in options.targets:
        row = fuzz(name, options.seconds)
        row |= {"date": dt.datetime.now(dt.UTC).date().isoformat(), "atheris": version("atheris")}
        # Read anew: another run may have fuzzed other targets meanwhile.
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"targets": {}}
        results["targets"][name] = row
        print(name, json.dumps(row), flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write_page(results)


if __name__ == "__main__":
    main()
