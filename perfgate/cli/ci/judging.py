"""Judge hand-offs on the trusted side: this side's scenarios and baselines, the untrusted side's numbers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from perfgate.check import judge
from perfgate.cli.ci.handoff import read_scenarios, unpack_all
from perfgate.core import Outcome, Verdict
from perfgate.errors import HandoffError
from perfgate.gate.case import choose_baseline
from perfgate.github.comment.recipes import Recipe
from perfgate.github.handoff.artifact import open_artifact
from perfgate.github.handoff.handoff import Handoff
from perfgate.github.outputs import format_annotation
from perfgate.github.settings import load_settings
from perfgate.report.render import Case
from perfgate.results.results import load_results

FILE = click.Path(path_type=Path)
SETTINGS = click.option("--settings", type=FILE, default=Path(".github/perfgate.toml"), show_default=True, metavar="FILE")
EVENT = click.option("--event", type=FILE, envvar="GITHUB_EVENT_PATH", required=True, metavar="FILE")
_COURT = (
    click.option("--scenario", "scenarios", multiple=True, metavar="NAME|FILE", help="Scenario to judge by; repeatable."),
    click.option("--baselines", multiple=True, type=FILE, metavar="DIR", help="Folder of stored noise bands; repeatable."),
)


def add_court_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say what it judges by."""
    for option in reversed(_COURT):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict, and the case that a comment shows of it."""

    verdict: Verdict
    case: Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Court:
    """What hand-offs are judged by. `scenarios_in_pr` share one error budget, and the sections of `machines` one comment."""

    scenarios: tuple[str, ...]
    baselines: tuple[Path, ...]
    scenarios_in_pr: int
    machines: int


def build_court(options: dict[str, Any], settings: Path) -> Court:
    """Say what hand-offs are judged by."""
    jobs = load_settings(settings).list_jobs()
    return Court(
        scenarios=options["scenarios"],
        baselines=options["baselines"],
        scenarios_in_pr=len(jobs),
        machines=len({job.hardware for job in jobs}),
    )


def open_and_judge(artifacts: tuple[Path, ...], recipe: Recipe, court: Court) -> tuple[Judged, ...]:
    """Open every artifact as one of the recipe's subject and judge what is in it."""
    handoffs = tuple(handoff for path in artifacts for handoff in open_artifact(path, recipe.subject))
    if len({handoff.scenario for handoff in handoffs}) < len(handoffs):
        raise HandoffError("several hand-offs of one scenario; a scenario is measured once a run")
    return judge_handoffs(handoffs, court, recipe)


def judge_handoffs(handoffs: Sequence[Handoff], court: Court, recipe: Recipe) -> tuple[Judged, ...]:
    """Compute each verdict from its windows. Raise HandoffError for a scenario that is not one of this side's."""
    with tempfile.TemporaryDirectory(prefix="perfgate-") as folder:
        return tuple(
            _judge(path, court, recipe)
            for path in unpack_all(tuple(handoffs), court.scenarios, Path(folder), scenarios_in_pr=court.scenarios_in_pr)
        )


def _judge(folder: Path, court: Court, recipe: Recipe) -> Judged:

    scenario, session = load_results(folder)
    baseline = choose_baseline(folder, court.baselines, scenario, session)
    verdict = judge(session, scenario, baseline)
    _, *options = session.reproduce
    words = (find_scenario(court.scenarios, scenario.name), *options)
    case = Case(
        verdict=verdict,
        session=replace(session, source=recipe.name_folder(scenario.name), reproduce=words),
        scenario=scenario,
        baseline=baseline,
        link=recipe.address,
        link_title=recipe.title,
        trees=recipe.trees if options else "",
        fetch=recipe.fetch,
    )
    return Judged(verdict=verdict, case=case)


def find_scenario(given: Sequence[str], name: str) -> str:
    """What a command of this side calls a scenario: the file that was given for it, or the name under which it ships."""
    return next((word for word in given if name in read_scenarios((word,))), name)


def annotate(judged: Sequence[Judged]) -> Iterator[str]:
    """Say each verdict in a line that GitHub shows on the run."""
    levels = {Outcome.PASS: "notice", Outcome.IMPROVED: "notice", Outcome.REGRESSION: "error"}
    for one in judged:
        verdict = one.verdict
        message = "; ".join(verdict.reasons[:3]) or verdict.outcome.value
        title = f"perfgate {verdict.scenario}: {verdict.outcome.value}"
        yield format_annotation(levels.get(verdict.outcome, "warning"), title, message)
