"""Steps that say what is to be measured: they hold no token that may write, and judge nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from perfgate.cli.ci.steps import EVENT, SETTINGS, print_outputs
from perfgate.cli.output import FILE, add_format_option, print_result
from perfgate.errors import GitHubError, InputError
from perfgate.github.adoption import SETTINGS_FILE, create_label, list_steps, plan_files, save_files
from perfgate.github.client import connect, find_server
from perfgate.github.events import LABEL, find_repository, find_sha, read_event
from perfgate.github.planning import plan_measurement
from perfgate.github.settings import MachineSettings, Settings, format_jobs, load_settings, require_slots
from perfgate.scenario.catalog import list_scenarios
from perfgate.scenario.schema import NAME


@click.command()
@click.option(
    "--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME", help="The repository that gets the files."
)
@click.option("--commit", required=True, metavar="SHA", help="The reviewed commit of perfgate, all 40 digits.")
@click.option("--hardware", "machines", multiple=True, required=True, metavar="LABEL", help="A kind of machine; repeatable.")
@click.option(
    "--scenario", "scenarios", multiple=True, required=True, metavar="NAME", help="A scenario to measure; repeatable."
)
@click.option("--to", "root", type=FILE, default=Path(), show_default=True, metavar="DIR", help="A checkout of the repository.")
@add_format_option
def init(root: Path, style: str, machines: tuple[str, ...], scenarios: tuple[str, ...], **options: str) -> int:
    """Write the files that another repository needs, create the label if GITHUB_TOKEN may, and list the manual steps.

    An existing file with other content is never overwritten: settings stay as they are, a workflow file is refused.
    """
    repository, commit = find_repository(options, "repository"), find_sha(options, "commit")
    known = Settings(hardware={name: check_machine(name, scenarios) for name in machines})
    if not (root / ".git").exists():
        raise InputError(f"--to {root}: no checkout of a git repository; give the top folder of one of {repository}")
    files = plan_files(root, commit, sorted(known.hardware), scenarios)
    settings = root / ".github" / SETTINGS_FILE
    kept = [] if settings in files else [f"{settings}: there already, left as it is"]
    if kept:
        known = load_settings(settings)
    else:
        require_slots(known, "--hardware ")
    save_files(files)
    has_label, label = _make_label(repository)
    steps = list_steps(repository, find_server(), sorted(known.hardware), has_label=has_label)
    lines = [*map(str, files), *kept, label, "", *(f"{number}. {step}" for number, step in enumerate(steps, 1))]
    print_result(style, {"files": [str(path) for path in files], "label": label, "steps": steps}, *lines)
    return 0


def _make_label(repository: str) -> tuple[bool, str]:
    """Whether the label is there, and the line that says so."""
    if not os.environ.get("GITHUB_TOKEN"):
        return False, f"label {LABEL}: not created: GITHUB_TOKEN is not set"
    github = connect()
    try:
        is_new = create_label(github, repository)
    except GitHubError as error:
        return False, f"label {LABEL}: not created: {error}"
    return True, f"label {LABEL}: {'created' if is_new else 'there already'}"


def check_machine(name: str, scenarios: tuple[str, ...]) -> MachineSettings:
    """What is measured on a machine. Raise InputError for a name that settings would refuse, or a scenario that is none."""
    for word, what in ((name, "--hardware"), *((scenario, "--scenario") for scenario in scenarios)):
        if not re.fullmatch(NAME, word):
            raise InputError(f"{what} {word[:64]!r}: not a valid name; use small letters, digits, single dots and dashes")
    if unknown := sorted(set(scenarios) - set(list_scenarios())):
        raise InputError(f"--scenario {unknown[0]}: does not ship with perfgate; `perfgate scenarios` lists those that do")
    return MachineSettings(scenarios=scenarios)


@click.command()
@SETTINGS
@add_format_option
def jobs(settings: Path, style: str) -> int:
    """Write every job of the settings as the output matrix, for a scheduled workflow."""
    print_outputs({"matrix": format_jobs(load_settings(settings).list_jobs(is_night=True))}, style)
    return 0


@click.command()
@SETTINGS
@EVENT
@click.option("--event-name", envvar="GITHUB_EVENT_NAME", required=True)
@add_format_option
def plan(settings: Path, event: Path, event_name: str, style: str) -> int:
    """Decide whether to measure this event; write the outputs action, reason, head_sha, base_sha, matrix and scenarios.

    A pull request is compared with its merge base; GitHub is asked for it, with a token that may read.
    """
    payload = read_event(event)
    print_outputs(plan_measurement(event_name, payload, load_settings(settings), connect), style)
    return 0
