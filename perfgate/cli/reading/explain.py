"""`perfgate explain`: why one metric of a result folder was judged as it was, in five sentences."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from perfgate.check import Case
from perfgate.cli.completion import complete_metric
from perfgate.cli.output import FILE, add_format_option, print_result
from perfgate.core import Judgement, Outcome
from perfgate.errors import InputError
from perfgate.gate.case import load_case
from perfgate.metrics import METRICS
from perfgate.report.escape import plain
from perfgate.report.words.explanation import explain_invalid, explain_metric
from perfgate.report.words.families import list_families
from perfgate.report.words.headline import find_deciding
from perfgate.results.folders import find_latest


@click.command(name="explain")
@click.argument("folder", metavar="[RESULT_DIR]", type=FILE, required=False)
@click.argument("metric", metavar="[METRIC]", required=False, shell_complete=complete_metric)
@click.option("--baselines", multiple=True, type=FILE, metavar="DIR", help="As for `perfgate check`.")
@add_format_option
def command(folder: Path | None, metric: str | None, baselines: tuple[Path, ...], style: str) -> int:
    """Judge RESULT_DIR again and explain the judgement of METRIC, such as p99_itl_ms.

    METRIC defaults to the one that decided, RESULT_DIR to the newest result. For an INVALID session it prints the cause.

    The exit code is always 0; `perfgate check` has the verdict's.
    """
    case = load_case(folder or find_latest(), baselines)
    if metric is None and case.verdict.outcome is Outcome.INVALID:
        lines = explain_invalid(case.verdict)
        print_result(style, {"metric": None, "outcome": case.verdict.outcome, "sentences": lines}, *lines)
        return 0
    judgement = find_judgement(metric, case.verdict.judgements) if metric else _find_deciding(case)
    sentences = explain_metric(judgement, case.verdict, case.session)
    print_result(style, {"metric": judgement.metric, "outcome": judgement.outcome, "sentences": sentences}, *sentences)
    return 0


def _find_deciding(case: Case) -> Judgement:
    """The metric in the first line of the report. Raise InputError where none was measured."""
    families = list_families(case.verdict.judgements, is_closed_loop=case.scenario.load.is_closed_loop)
    found = find_deciding(case.verdict, families)
    if found is None:
        raise InputError("no metric was judged; `perfgate check` says why")
    return found.judgement


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
