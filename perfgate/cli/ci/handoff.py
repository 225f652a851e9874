"""`perfgate handoff`: carry a measured session from a job without rights to a job that may speak on the pull request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import orjson
from pydantic import TypeAdapter, ValidationError

from perfgate.cli.options import add_share_option
from perfgate.cli.output import add_format_option, print_json
from perfgate.errors import HandoffError, InputError
from perfgate.github.handoff.artifact import open_artifact
from perfgate.github.handoff.handoff import Handoff, Subject, describe
from perfgate.github.handoff.packing import pack_folder, unpack_folder
from perfgate.results.records import read_record
from perfgate.scenario.catalog import list_scenarios
from perfgate.scenario.schema import parse_scenario, read_scenario_text
from perfgate.storage.journal import write_atomically

FILE = click.Path(path_type=Path)
_SUBJECT_OPTIONS = (
    click.option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME"),
    click.option("--pr", type=click.IntRange(min=0), required=True, metavar="NUMBER", help="The pull request; 0 for none."),
    click.option("--head-sha", required=True, metavar="SHA", help="The measured commit of the pull request, 40 digits."),
    click.option("--run-id", type=click.IntRange(min=0), required=True, envvar="GITHUB_RUN_ID"),
    click.option("--run-attempt", type=click.IntRange(min=0), default=1, envvar="GITHUB_RUN_ATTEMPT"),
    click.option("--hardware", required=True, metavar="LABEL", help="The runner's label, for example h20."),
)


def add_subject_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which change, run and machine a hand-off belongs to."""
    for option in reversed(_SUBJECT_OPTIONS):
        command = option(command)
    return command


def build_subject(options: dict[str, Any]) -> Subject:
    """Turn the options into a Subject. Raise InputError for one that cannot be true."""
    values = {
        "repository": options["repository"],
        "pull_request": options["pr"],
        "head_sha": options["head_sha"],
        "run_id": options["run_id"],
        "run_attempt": options["run_attempt"],
        "hardware": options["hardware"],
    }
    try:
        return TypeAdapter(Subject).validate_json(orjson.dumps(values))
    except ValidationError as error:
        raise InputError(f"--{describe(error).replace('pull_request', 'pr').replace('_', '-', 1)}") from None


@click.group(name="handoff")
def command() -> None:
    """Carry a measured session across a border of trust: numbers only, and no verdict."""


@command.command()
@click.argument("folder", metavar="RESULT_DIR", type=FILE)
@click.option("-o", "--output", required=True, type=FILE, metavar="DIR", help="Folder for handoff-SCENARIO.json.")
@add_subject_options
@add_format_option
def pack(folder: Path, output: Path, style: str, **options: Any) -> int:
    """Write the windows of RESULT_DIR as a hand-off, without texts, paths, settings or verdict."""
    content = pack_folder(folder, build_subject(options))
    path = output / f"handoff-{read_record(folder).scenario}.json"
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise InputError(f"--output {output}: cannot be written ({error.strerror}); choose another folder") from None
    if style == "json":
        print_json({"file": path})
    else:
        click.echo(path)
    return 0


@command.command(name="open")
@click.argument("artifact", type=FILE)
@click.option("--out", required=True, type=FILE, metavar="DIR", help="Folder for one result folder a scenario.")
@click.option("--scenario", "scenarios", multiple=True, metavar="NAME|FILE", help="Scenario to judge by, of this checkout.")
@add_share_option
@click.option("--no-base", is_flag=True, help="No base can be built here: a candidate measured alone is the last word.")
@add_subject_options
@add_format_option
def open_(artifact: Path, out: Path, scenarios: tuple[str, ...], style: str, **options: Any) -> int:
    """Check ARTIFACT, from a job that ran a pull request's code, and write it as result folders that `perfgate check` reads.

    The scenario comes from this side: one that ships with perfgate, or one that --scenario names.
    """
    facts = {"scenarios_in_pr": options["scenarios_in_pr"], "has_base": not options["no_base"]}
    folders = unpack_all(open_artifact(artifact, build_subject(options)), scenarios, out, **facts)
    if style == "json":
        print_json({"folders": folders})
        return 0
    for folder in folders:
        click.echo(folder)
    return 0


def unpack_all(handoffs: tuple[Handoff, ...], scenarios: tuple[str, ...], out: Path, **facts: Any) -> list[Path]:
    """Write each hand-off as a result folder named after its scenario; `facts` are what this side says of all of them."""
    texts = read_scenarios(scenarios)
    folders = []
    for handoff in handoffs:
        if handoff.scenario not in texts:
            known = ", ".join(sorted(texts))
            raise HandoffError(f"scenario {handoff.scenario} is not one of this side's ({known}); nothing else is judged")
        folders.append(out / handoff.scenario)
        unpack_folder(handoff, texts[handoff.scenario], folders[-1], **facts)
    return folders


def read_scenarios(given: tuple[str, ...]) -> dict[str, str]:
    """Read the texts of the scenarios that may be judged here, by name: those given, else those that ship with perfgate."""
    read = [read_scenario_text(name) for name in given or list_scenarios()]
    return {parse_scenario(text, source).name: text for text, source in read}
