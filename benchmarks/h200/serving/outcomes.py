"""Write down what today's rule says of each session recorded here, so that a replay has an answer to be compared with.

    python -m benchmarks.h200.serving.outcomes

The table stands in the README, below its headline. Nothing is measured: each folder is judged as `perfgate check` judges it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perfgate.core import Outcome, Verdict
from perfgate.gate.case import load_case
from perfgate.metrics import METRICS
from perfgate.verdict.policy import RULE

RESULTS = Path(__file__).with_name("results")
PAGE = Path(__file__).with_name("README.md")
HEADLINE = "## What a replay says\n"
TEXT = """
Made by `python -m benchmarks.h200.serving.outcomes`, rule {rule}. `perfgate check` ends with the exit code. Blocks are those
that were judged: up to the look that decided, else all whole ones; of a void session none. Moved are the metrics that the
verdict calls so.

| folder | outcome | exit code | blocks | moved |
|:--|:--|--:|--:|:--|
{rows}
"""
MOVED = {Outcome.REGRESSION: "worse", Outcome.IMPROVED: "better"}


def main() -> None:
    """Renew the page's last section."""
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADLINE)
    PAGE.write_text(text + build_section(RESULTS), encoding="utf-8")


def build_section(results: Path) -> str:
    """The section, headline first."""
    folders = sorted(path.parent for path in results.glob("*/session.json"))
    rows = "\n".join(f"| {' | '.join(list_outcome(folder.name, load_case(folder).verdict))} |" for folder in folders)
    return HEADLINE + TEXT.format(rule=RULE, rows=rows)


def list_outcome(name: str, verdict: Verdict) -> Iterator[str]:
    """A row of the table."""
    yield f"`{name}`"
    yield verdict.outcome.value
    yield str(verdict.outcome.exit_code)
    yield str(verdict.blocks)
    moved = ((METRICS[one.metric].title, MOVED[one.outcome]) for one in verdict.judgements if one.outcome in MOVED)
    yield ", ".join(f"{title} {way}" for title, way in moved)


if __name__ == "__main__":
    main()
