"""`perfgate baseline`: stored noise bands as files that a person reviews."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from difflib import unified_diff
from pathlib import Path
from typing import Any

import click

from perfgate.cli.output import FILE, add_format_option, print_json, print_result, say
from perfgate.errors import InputError
from perfgate.gate.baselines import expire_baseline, load_baseline, save_baseline, verify_baseline
from perfgate.gate.recorded_sessions import add_sessions
from perfgate.metrics import METRICS, Metric
from perfgate.report.table import Table, choose_layout, join_rows
from perfgate.report.words import wording
from perfgate.storage.journal import write_utc
from perfgate.storage.rounding import format_percent
from perfgate.storage.state import list_baseline_dirs
from perfgate.storage.stream import STREAM
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.noise import NoiseModel

# A day count that a date can hold.
MAX_DAYS = 36500


@click.group(name="baseline")
def command() -> None:
    """Extend, show, compare, expire and verify baselines, which hold noise bands."""


@command.command()
@click.argument("folders", metavar="RESULT_DIR...", nargs=-1, required=True, type=FILE)
@click.option(
    "--to", "target", required=True, type=FILE, metavar="DIR", help="Folder of baselines: DIR/<hardware>/<scenario>.json."
)
@click.option("--accept-slower", metavar="REASON", help="Accept a slower level, and record the reason.")
@click.option("--commit", default="", help="Commit of the engine that the base arm ran, stored beside its values.")
@click.option("--release", metavar="NAME", help="Pin the level as this release; later slow drift is measured against it.")
@add_format_option
def add(
    *, folders: tuple[Path, ...], target: Path, accept_slower: str | None, commit: str, release: str | None, style: str
) -> int:
    """Add measured sessions to a baseline, creating it if there is none.

    A/A sessions add to the noise. Of other sessions only the base arm is used, for the level.
    """
    added = add_sessions(folders, target, accept_slower=accept_slower, commit=commit, release=release or "")
    is_unused = accept_slower and added.action != "accepted slower"
    remark = "; the reason was not recorded: no level is slower (of a comparison the base alone counts)" if is_unused else ""
    print_result(style, asdict(added), f"{added}{remark}")
    return 0


@command.command()
@click.argument("file", type=FILE)
@add_format_option
def show(file: Path, style: str) -> int:
    """Print a baseline's noise bands and the data behind them."""
    baseline = load_baseline(file)
    if style == "json":
        print_json(list_facts(baseline))
        return 0
    for line in describe(baseline, choose_layout()):
        say(line)
    return 0


def list_facts(baseline: Baseline) -> dict[str, Any]:
    """What a baseline knows, for programs: ratios are plain fractions, levels in the metric's unit."""
    return {
        "scenario": baseline.scenario,
        "hardware": baseline.fingerprint.hardware,
        "workload_hash": baseline.workload_hash,
        "starts": len(baseline.starts),
        "aa_blocks": baseline.blocks,
        "metrics": {
            name: {
                "p50": noise.quantiles[1],
                "noise_band_ratio": noise.band,
                "sessions": noise.sessions,
                "is_responsive": noise.is_responsive,
            }
            for name, noise in baseline.metrics.items()
        },
        "history": [asdict(change) for change in baseline.history],
    }


def describe(baseline: Baseline, lay: Callable[[Table], str]) -> Iterator[str]:
    """Say what a baseline knows; `lay` lays out its metrics."""
    yield f"{baseline.scenario} on {baseline.fingerprint.hardware}, workload {baseline.workload_hash}"
    yield f"{len(baseline.starts)} starts of {baseline.windows} windows, {baseline.blocks} A/A blocks"
    rows = [_show_noise(METRICS[name], baseline.metrics[name]) for name in METRICS if name in baseline.metrics]
    yield lay(Table(header=("metric", "p50", "noise band", "sessions", "answers a slow-down"), rows=rows, words=(0, 4)))
    if fewer := [METRICS[name].title for name, noise in baseline.metrics.items() if noise.blocks < baseline.blocks]:
        yield f"fewer A/A blocks: {', '.join(fewer)}, because some sessions did not record them"
    for change in baseline.history:
        yield f"{change.at}  {change.action}: {change.reason or ', '.join(change.sessions)}"


def _show_noise(metric: Metric, noise: NoiseModel) -> tuple[str, ...]:
    middle = wording.value(metric.name, noise.quantiles[1])
    band = "unknown" if noise.band is None else format_percent(noise.band)
    answers = {True: "yes", False: "NO", None: "not measured"}
    return (metric.title, middle, band, str(noise.sessions), answers[noise.is_responsive])


@command.command(name="list")
@click.argument("folders", metavar="[DIR...]", nargs=-1, type=FILE)
@add_format_option
def list_all(folders: tuple[Path, ...], style: str) -> int:
    """List the baselines in each DIR (default: this machine's own, then those that ship)."""
    places = list_baseline_dirs(folders)
    found = [(place, path, load_baseline(path)) for place in places for path in sorted(place.glob("*/*.json"))]
    if style == "json":
        print_json([{"file": path, **list_facts(baseline)} for _, path, baseline in found])
        return 0
    for place in places:
        inside = [(path, baseline) for at, path, baseline in found if at == place]
        say(f"{place}:{'' if inside else ' none'}")
        for path, baseline in inside:
            say(f"  {path.relative_to(place)}: {baseline.blocks} A/A blocks, {len(baseline.starts)} starts")
    return 0


@command.command()
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@add_format_option
def diff(before: Path, after: Path, style: str) -> int:
    """Print how the contents of two baselines differ; nothing if they are equal."""
    baselines = [load_baseline(path) for path in (before, after)]
    if style == "json":
        print_json(dict(zip(("before", "after"), map(list_facts, baselines), strict=True)))
        return 0
    old, new = ("\n".join(describe(baseline, join_rows)).split("\n") for baseline in baselines)
    for line in unified_diff(old, new, fromfile=str(before), tofile=str(after), lineterm=""):
        say(line)
    return 0


@command.command()
@click.argument("file", type=FILE)
@click.option("--older-than", "days", required=True, type=click.IntRange(0, MAX_DAYS), metavar="DAYS", help="Age in days.")
@add_format_option
def expire(file: Path, days: int, style: str) -> int:
    """Drop values older than DAYS from a baseline."""
    if file == STREAM:
        raise InputError("-: expire changes a file in its place; give its name")
    now = datetime.now(UTC)
    baseline = load_baseline(file)
    kept = expire_baseline(baseline, write_utc(now - timedelta(days=days)), write_utc(now))
    dropped = len(baseline.starts) - len(kept.starts)
    if dropped:
        save_baseline(kept, file)
    if style == "json":
        print_json({"file": file, "dropped": dropped, "kept": len(kept.starts)})
    else:
        say(f"{file}: {dropped} of {len(baseline.starts)} starts dropped")
    return 0


@command.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@add_format_option
def verify(files: tuple[Path, ...], style: str) -> int:
    """Check that baselines are complete, unedited and consistent with their raw values. Exit code 2 if one is not."""
    for file in files:
        verify_baseline(file)
        if style == "text":
            say(f"{file}: whole and unedited")
    if style == "json":
        print_json({"whole": files})
    return 0
