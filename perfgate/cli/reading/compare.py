"""`perfgate compare`: two sets of load generator outputs, judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from perfgate.cli.given import read_ratio
from perfgate.cli.output import FILE, write_output
from perfgate.core import Run
from perfgate.errors import InputError
from perfgate.gate.baselines import load_baseline
from perfgate.gate.start_runs import read_starts_as_runs
from perfgate.metrics import METRICS
from perfgate.readers.bench_serving import read_runs
from perfgate.report.comparison import format_comparison, format_comparison_as_json, format_comparison_as_markdown
from perfgate.results.records import SESSION_FILE
from perfgate.serving.model.model_guard import read_config, verify_moe_config
from perfgate.stats.moderated import Prior
from perfgate.verdict.policy import CALIBRATED_BLOCKS, MAX_PRIOR_DF_OTHER
from perfgate.verdict.runs.compare import compare_runs
from perfgate.verdict.runs.compare_metrics import Rule

LISTS = ("--base", "--candidate")
RENDERERS = {"text": format_comparison, "json": format_comparison_as_json, "markdown": format_comparison_as_markdown}


class ListCommand(click.Command):
    """A command whose --base and --candidate take every argument up to the next option, so that a shell pattern works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each of its values, which is how click takes lists."""
        return super().parse_args(ctx, spread_lists(args))


def spread_lists(args: Iterable[str]) -> list[str]:
    """Turn `--base a b` into `--base a --base b`."""
    spread: list[str] = []
    current: str | None = None
    for arg in args:
        if arg.startswith("-") and arg != "-":
            current = arg if arg in LISTS else None
            if current is None:
                spread.append(arg)
        else:
            spread.extend([current, arg] if current else [arg])
    return spread


@click.command(name="compare", cls=ListCommand)
@click.argument("pair", metavar="[A B]", nargs=-1, type=click.Path())
@click.option(
    "--base",
    multiple=True,
    metavar="FILES...",
    type=click.Path(),
    help="Outputs of the code before the change: JSONL or printed.",
)
@click.option("--candidate", multiple=True, metavar="FILES...", type=click.Path(), help="Outputs of the code after the change.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Judge only this metric; may be given several times.")
@click.option(
    "--margin", "margins", multiple=True, metavar="[NAME=]RATIO", help="Smallest loss worth acting on, as 0.03 or 3%."
)
@click.option("--baseline", metavar="FILE", type=FILE, help="Baseline of this machine and workload.")
@click.option("--model-config", metavar="FILE", type=FILE, help="config.json of the served model.")
@click.option("--format", "style", type=click.Choice(list(RENDERERS)), default="text", show_default=True)
def command(
    *,
    pair: tuple[str, ...],
    base: tuple[str, ...],
    candidate: tuple[str, ...],
    metrics: tuple[str, ...],
    margins: tuple[str, ...],
    baseline: Path | None,
    model_config: Path | None,
    style: str,
) -> int:
    """Say whether the candidate's runs are slower than the base's, how sure that is, and how many more runs would decide.

    A is the base, B the candidate. Each is a file, a folder of files, a result folder (its candidate's starts count), or - for
    standard input. For several files per arm use --base and --candidate.

    Exit code: 0 pass or improved, 1 regression, 2 bad input, 3 inconclusive or invalid.
    """
    if model_config is not None:
        verify_moe_config(read_config(model_config), str(model_config))
    priors, caveats = _read_priors(baseline)
    rule = Rule(metrics=_check_metrics(metrics), margin_ratios=_read_margins(margins), priors=priors, caveats=caveats)
    arms = [_read_arm(option, files) for option, files in zip(LISTS, _choose_sides(pair, base, candidate), strict=True)]
    comparison = compare_runs(arms[0], arms[1], rule)
    write_output(RENDERERS[style](comparison).encode(), None, is_text=style == "text")
    return comparison.outcome.exit_code


def _choose_sides(
    pair: tuple[str, ...], base: tuple[str, ...], candidate: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files of both arms. Raise InputError where they were named in both ways, or not as two."""
    if not pair:
        return base, candidate
    if len(pair) == 1 and (Path(pair[0]) / SESSION_FILE).is_file():
        raise InputError(f"compare: {pair[0]} is one result folder; `perfgate check {pair[0]}` judges it, compare takes two")
    if base or candidate or len(pair) != 2:
        raise InputError(
            "compare: give A B, one of each arm, or --base FILES --candidate FILES; a shell pattern belongs behind one of those"
        )
    return pair[:1], pair[1:]


def _read_arm(option: str, files: tuple[str, ...]) -> list[Run]:
    if not files:
        raise InputError(f"{option}: no file given; name what the load generator wrote of this arm, or give two: compare A B")
    return [run for file in files for run in _read_place(Path(file))]


def _read_place(place: Path) -> Sequence[Run]:
    """The runs of a file, of the files in a folder, or of the candidate's starts in a result folder."""
    if not place.is_dir():
        return read_runs(place)
    if (place / SESSION_FILE).is_file():
        return read_starts_as_runs(place)
    files = sorted(file for file in place.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise InputError(f"{place}: holds no file; give the folder in which the load generator's outputs lie")
    return [run for file in files for run in read_runs(file)]


def _check_metrics(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name not in METRICS:
            raise InputError(f"--metric {name}: no such metric; choose from {', '.join(METRICS)}")
    return names


def _read_margins(texts: tuple[str, ...]) -> dict[str, float]:
    """Read margins; one without a name is for every metric, and named ones win."""
    margins: dict[str, float] = {}
    given: dict[str, str] = {}
    for text in sorted(texts, key=lambda text: "=" in text):
        name, named, value = text.rpartition("=")
        if named and name not in METRICS:
            raise InputError(f"--margin {text}: no such metric; choose from {', '.join(METRICS)}")
        if name in given:
            raise InputError(f"--margin {text}: stands beside --margin {given[name]} for the same metrics; give one of them")
        given[name] = text
        ratio = read_ratio(f"--margin {text}", value)
        margins |= {name: ratio} if name else dict.fromkeys(METRICS, ratio)
    return margins


def _read_priors(path: Path | None) -> tuple[dict[str, Prior], tuple[str, ...]]:
    """Take the spread between fresh starts from a baseline, and say what it is worth; one without A/A blocks knows none.

    The files to compare do not tell their software, so stored noise weighs as after a change of it.
    """
    if path is None:
        return {}, ()

    known = {name: noise for name, noise in load_baseline(path).metrics.items() if noise.blocks}
    if not known:
        raise InputError(f"{path}: holds no A/A blocks, so no spread between starts; `perfgate calibrate` measures them")
    fewest = min(noise.blocks for noise in known.values())
    caveat = f"{path} has {fewest} A/A blocks of the {CALIBRATED_BLOCKS} that a calibration needs: the error rates do not hold"
    priors = {
        name: Prior(variance=noise.block_variance, df=min(noise.blocks, MAX_PRIOR_DF_OTHER)) for name, noise in known.items()
    }
    return priors, (caveat,) if fewest < CALIBRATED_BLOCKS else ()
