"""`perfgate handoff`: carry a measured session from a job without rights to a job that may comment on the pull request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson
from pydantic import ValidationError

from perfgate.cli.output import FILE, add_format_option, print_json, print_result, say
from perfgate.cli.sections import (
    SectionCommand,
    add_options,
    add_share_option,
    folder_option,
    judging_option,
    option_of,
    subject_option,
)
from perfgate.errors import InputError
from perfgate.github.handoff.artifact import open_artifact
from perfgate.github.handoff.choices import pack_choices, parse_choices
from perfgate.github.handoff.handoff import find_fault
from perfgate.github.handoff.packages import pack_packages
from perfgate.github.handoff.packing import pack_folder, unpack_handoffs
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.github.outputs import write_outputs
from perfgate.results.records import read_record
from perfgate.storage.places import open_folder, write_file
from perfgate.storage.schema import adapt

_said_option = option_of("Differences between the arms")
_OPTIONS = {"pull_request": "pr"}
"""The options that are not named as their field is."""
add_subject_options = add_options(
    subject_option("--repository", required=True, envvar="GITHUB_REPOSITORY", metavar="OWNER/NAME"),
    subject_option("--pr", type=click.IntRange(min=0), required=True, metavar="NUMBER", help="The pull request; 0 for none."),
    subject_option("--head-sha", required=True, metavar="SHA", help="The measured commit of the pull request, 40 digits."),
    subject_option("--run-id", type=click.IntRange(min=0), required=True, envvar="GITHUB_RUN_ID"),
    subject_option("--run-attempt", type=click.IntRange(min=0), default=1, envvar="GITHUB_RUN_ATTEMPT"),
    subject_option("--hardware", required=True, metavar="LABEL", help="The runner's label, for example h20."),
)


def build_subject(options: dict[str, Any]) -> HandoffSubject:
    """Turn the options into a subject. Raise InputError for one that cannot be true."""
    values = {
        "repository": options["repository"],
        "pull_request": options["pr"],
        "head_sha": options["head_sha"],
        "run_id": options["run_id"],
        "run_attempt": options["run_attempt"],
        "hardware": options["hardware"],
    }
    try:
        return adapt(HandoffSubject).validate_json(orjson.dumps(values))
    except ValidationError as error:
        field, rule = find_fault(error)
        raise InputError(f"--{_OPTIONS.get(field, field).replace('_', '-')}: {rule}") from None


@click.group(name="handoff")
def command() -> None:
    """Transfer a session from an untrusted job to a trusted one: numbers only, no verdict."""


@command.command(cls=SectionCommand)
@click.argument("folder", metavar="RESULT_DIR", type=FILE)
@folder_option("-o", "--output", required=True, type=FILE, metavar="DIR", help="Folder for handoff-SCENARIO.json.")
@_said_option("--choices", default="", envvar="PERFGATE_CHOICES", metavar="JSON", help="Output of `perfgate handoff choices`.")
@_said_option(
    "--trees", type=FILE, nargs=2, metavar="BASE CANDIDATE", help="Compare the package versions that these working trees pin."
)
@_said_option("--search", type=FILE, metavar="FILE", help="Output of `perfgate deps` for them; empty for no search.")
@add_subject_options
@add_format_option
def pack(folder: Path, output: Path, choices: str, style: str, **options: Any) -> int:
    """Write the windows of RESULT_DIR as a hand-off; texts, paths, settings and verdict are left out."""
    trees: tuple[Path, Path] | None = options["trees"]
    packages = pack_packages(*trees, options["search"]) if trees else None
    content = pack_folder(folder, build_subject(options), parse_choices(choices), packages)
    path = open_folder(output, "--output") / f"handoff-{read_record(folder).scenario}.json"
    write_file(content, path, "--output")
    if style == "json":
        print_json({"file": path})
    else:
        say(path)
    return 0


@command.command()
@click.argument("file", type=FILE)
@click.option("--host", type=FILE, metavar="FILE", help="Output of `perfgate scheduler --format json` for the same arms.")
@add_format_option
def choices(file: Path, host: Path | None, style: str) -> int:
    """Reduce the output of `perfgate resolve --format json` in FILE to known words, numbers and digests; write it as an output.

    Pass the line to `pack --choices` in the same run.
    """
    line = pack_choices(file, host)
    write_outputs({"choices": line})
    print_result(style, {"choices": orjson.loads(line)}, f"choices={line}")
    return 0


@command.command(name="open", cls=SectionCommand)
@click.argument("artifact", type=FILE)
@folder_option("--out", required=True, type=FILE, metavar="DIR", help="Folder for one result folder per scenario.")
@judging_option("--scenario", "scenarios", multiple=True, metavar="NAME|FILE", help="Scenario of this checkout to judge by.")
@add_share_option
@judging_option("--no-base", is_flag=True, help="No base can be built here: a candidate measured alone can fail.")
@add_subject_options
@add_format_option
def open_(artifact: Path, out: Path, scenarios: tuple[str, ...], style: str, **options: Any) -> int:
    """Check ARTIFACT, from a job that ran a pull request's code, and unpack it into result folders for `perfgate check`.

    The scenario never comes from ARTIFACT: it is a shipped one, or the one of --scenario.
    """
    folders = unpack_handoffs(
        open_artifact(artifact, build_subject(options)),
        scenarios,
        out,
        scenarios_in_pr=options["scenarios_in_pr"],
        has_base=not options["no_base"],
    )
    if style == "json":
        print_json({"folders": folders})
        return 0
    for folder in folders:
        say(folder)
    return 0
