"""`perfgate explain`: why one metric of a result folder was judged as it was, in five sentences."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from perfgate.cli.output import add_format_option, print_result
from perfgate.core import Judgement
from perfgate.errors import InputError
from perfgate.gate.case import load_case
from perfgate.metrics import METRICS
from perfgate.report.escape import plain
from perfgate.report.explanation import explain_metric


def complete_metric(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Name the metrics that begin like what was typed."""
    return [name for name in METRICS if name.startswith(begun)]


@click.command(name="explain")
@click.argument("folder", metavar="RESULT_DIR", type=click.Path(path_type=Path))
@click.argument("metric", metavar="METRIC", shell_complete=complete_metric)
@click.option("--baselines", multiple=True, type=click.Path(path_type=Path), metavar="DIR", help="As for `perfgate check`.")
@add_format_option
def command(folder: Path, metric: str, baselines: tuple[Path, ...], style: str) -> int:
    """Judge RESULT_DIR again and say why METRIC, such as p99_itl_ms, was judged as it was.

    The exit code is 0 whatever the verdict says; `perfgate check` tells.
    """
    case = load_case(folder, baselines)
    judgement = find_judgement(metric, case.verdict.judgements)
    sentences = explain_metric(judgement, case.verdict, case.session)
    print_result(style, {"metric": judgement.metric, "outcome": judgement.outcome, "sentences": sentences}, *sentences)
    return 0


def find_judgement(metric: str, judgements: Sequence[Judgement]) -> Judgement:
    """Find a metric by its name or by its title. Raise InputError with the names that are near, or with all of them."""
    known = {one.metric: one for one in judgements}
    titles = {METRICS[name].title.lower(): name for name in known}
    found = known.get(titles.get(metric.lower(), metric))
    if found is not None:
        return found
    near = get_close_matches(metric.lower(), [*known, *titles], n=3)
    names = list(dict.fromkeys(titles.get(word, word) for word in near)) or list(known)
    if metric in METRICS:
        raise InputError(f"METRIC {metric}: the scenario does not judge it; choose from {', '.join(known)}")
    raise InputError(f"METRIC {plain(metric)[:60]}: no such metric; did you mean {', '.join(names)}?")
