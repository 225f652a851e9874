"""Count what the mutants that `mutmut run` made have told, and write it down in `results.json` and `docs/evidence/mutation.md`.

`reasons.toml` says of survivors why no test can or should notice them; a survivor without a reason is a hole in the tests.
Files of which no mutant was run this time stay as they were, with the commit at which they were run; files that are gone leave.
"""

from __future__ import annotations

import datetime as dt
import json
import platform
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs/evidence/mutation.md"
RESULTS = HERE / "results.json"
# The verdict's own mathematics, all of it.
RULE = ("perfgate/check.py", "perfgate/stats/")
MARKS = "<!-- results: begin -->", "<!-- results: end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A mutant that no test noticed: where, what was changed into what, and why that is no hole; empty where it is one."""

    mutant: str
    change: str
    reason: str


def list_mutants() -> Iterator[tuple[str, str, str]]:
    """Each mutant with its file and what became of it, in mutmut's words."""
    from mutmut.stats import status_by_exit_code

    for meta in sorted((ROOT / "mutants").rglob("*.py.meta")):
        path = str(meta.relative_to(ROOT / "mutants")).removesuffix(".meta")
        for mutant, code in json.loads(meta.read_text())["exit_code_by_key"].items():
            yield mutant, path, status_by_exit_code[code]


def describe_change(mutant: str, path: str) -> str:
    """The lines that the mutant takes away and adds."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    lines = get_diff_for_mutant(mutant, path=Path(path)).splitlines()[2:]
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines if line[:1] in "+-")


def find_reason(mutant: str, change: str, reasons: list[Mapping[str, str]]) -> str:
    """The first reason whose patterns match the mutant's name and its change; empty without one."""
    fitting = (one["why"] for one in reasons if re.search(one["mutant"], mutant) and re.search(one["change"], change))
    return next(fitting, "")


def collect() -> dict[str, Any]:
    """Everything that is written down."""
    reasons = tomllib.loads((HERE / "reasons.toml").read_text())["reason"]
    files: dict[str, Counter[str]] = {}
    survivors = []
    for mutant, path, status in list_mutants():
        counts = files.setdefault(path, Counter(killed=0, timeout=0, justified=0, unexplained=0, not_run=0))
        if status == "survived":
            change = describe_change(mutant, path)
            survivors.append(Survivor(mutant=mutant, change=change, reason=find_reason(mutant, change, reasons)))
            counts["justified" if survivors[-1].reason else "unexplained"] += 1
        else:
            counts["not_run" if status == "not checked" else status if status in counts else "unexplained"] += 1
    asked = {path: counts for path, counts in files.items() if sum(counts.values()) > counts["not_run"]}
    argv = ["/usr/bin/env", "git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    before = json.loads(RESULTS.read_text())
    return {
        "command": "make mutants",
        "tool": f"mutmut {version('mutmut')}",
        "python": f"Python {platform.python_version()}",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "files": drop_gone(before["files"]) | {path: {"commit": commit, **counts} for path, counts in sorted(asked.items())},
        "survivors": [
            *(
                one
                for one in before["survivors"]
                if (path := find_file(one["mutant"])) not in asked and (ROOT / path).is_file()
            ),
            *(asdict(survivor) for survivor in survivors),
        ],
    }


def drop_gone(files: Mapping[str, Any]) -> dict[str, Any]:
    """The files that are still in the tree: what replaced another one has not been asked yet."""
    return {path: counts for path, counts in files.items() if (ROOT / path).is_file()}


def find_file(mutant: str) -> str:
    """The file that a mutant's name says it is of."""
    return re.split(r"\.x[_ǁ]", mutant)[0].replace(".", "/") + ".py"


def draw_page(results: Mapping[str, Any]) -> str:
    """The table of files, then the survivors by their reason."""
    rule = {path: counts for path, counts in results["files"].items() if path.startswith(RULE)}
    others = {path: counts for path, counts in results["files"].items() if path not in rule}
    parts = [
        ", ".join(results[name] for name in ("tool", "python", "date")) + ".",
        "## The rule: `check.py` and all of `stats/`",
        _draw_table(rule),
        "## What stands around it",
        _draw_table(others),
        "## Survivors",
    ]
    for reason in dict.fromkeys(one["reason"] for one in sorted(results["survivors"], key=lambda one: one["reason"])):
        changes = [_draw_survivor(one) for one in results["survivors"] if one["reason"] == reason]
        parts.append(f"### {reason or 'Holes: a test is missing'}\n\n" + "\n".join(changes))
    return "\n\n".join(parts)


def _draw_table(files: Mapping[str, Mapping[str, Any]]) -> str:
    total: Counter[str] = Counter()
    for counts in files.values():
        total.update({kind: count for kind, count in counts.items() if kind != "commit"})
    head = "| file | commit | mutants | noticed | survived, no difference | survived, a hole | not run | score |"
    rows = [head, "|:--|:--|--:|--:|--:|--:|--:|--:|"]
    rows += [_draw_row(f"`{path}`", counts["commit"], counts) for path, counts in files.items()]
    return "\n".join([*rows, _draw_row("**together**", "", total)])


def _draw_row(name: str, commit: str, counts: Mapping[str, Any]) -> str:
    """What was not run counts as not noticed."""
    counts = {kind: count for kind, count in counts.items() if kind != "commit"}
    noticed, everything = counts["killed"] + counts["timeout"], sum(counts.values())
    kinds = " | ".join(str(counts[kind]) for kind in ("justified", "unexplained", "not_run"))
    return f"| {name} | {commit} | {everything} | {noticed} | {kinds} | {100 * noticed / everything:.1f} % |"


def _draw_survivor(survivor: Mapping[str, str]) -> str:
    name = survivor["mutant"].partition("__mutmut")[0].removeprefix("perfgate.").replace(".x_", ".")
    lines = [line for line in survivor["change"].splitlines() if line.startswith("+")]
    return f"- `{name}`: `{' '.join(line[2:] for line in lines)}`"


def main() -> None:
    """Write both files."""
    results = collect()
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{draw_page(results)}\n\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")
    unexplained = [one["mutant"] for one in results["survivors"] if not one["reason"]]
    print(f"{len(results['survivors'])} survivors, {len(unexplained)} of them without a reason", *unexplained, sep="\n")


if __name__ == "__main__":
    main()
