"""What another repository adds to be measured: its workflow files, its settings, and what only a person can do there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfgate.errors import GitHubError, InputError
from perfgate.github.client import GitHub
from perfgate.github.events import LABEL
from perfgate.storage.places import open_folder, write_file

SETTINGS_FILE = "perfgate.toml"
SOURCE = "perfgate/sglang-perfgate"
CHECK = "perfgate / perfgate verdict"
"""The required check as GitHub names it there: the calling job, then the called one."""

_PULLS = "pull_request: {types: [opened, synchronize, reopened, edited, labeled, ready_for_review]}\n  merge_group:"
_DISPATCH = """workflow_dispatch:
    inputs:
      pr: {type: string, required: true}
      head_sha: {type: string, required: true, description: "The commit that you have read, all 40 digits."}
      hardware: {type: string, default: ""}
      scenario: {type: string, default: ""}
      task: {type: choice, options: [measure, compare, bisect], default: measure}
      base_sha: {type: string, default: "", description: "For compare alone: the commit to compare head_sha with."}
      asked_by: {type: string, default: "", description: "Left empty by a person."}"""
_REPORTING = "actions: read, contents: read, pull-requests: write, statuses: write"
_ROWS: Mapping[str, tuple[str, str]] = {
    "perfgate-pr": (_PULLS, "contents: read, pull-requests: read, statuses: read"),
    "perfgate-report": (
        "workflow_run: {workflows: [perfgate-pr, perfgate-dispatch], types: [in_progress, completed]}",
        _REPORTING.replace("actions: read", "actions: write"),
    ),
    "perfgate-dispatch": (_DISPATCH, _REPORTING),
    "perfgate-command": (
        "issue_comment: {types: [created]}",
        "actions: write, contents: read, pull-requests: write, statuses: write",
    ),
    "perfgate-baseline": (
        'schedule: [{cron: "17 2 * * *"}]\n  workflow_dispatch:',
        "contents: write, issues: write, pull-requests: write",
    ),
    "perfgate-runners": ('schedule: [{cron: "43 */6 * * *"}]\n  workflow_dispatch:', "contents: read"),
}
"""When each file runs, and the rights that it hands to perfgate's own file of that name."""


_TITLES = {"perfgate-dispatch": 'run-name: "perfgate ${{ inputs.task }} #${{ inputs.pr }} ${{ inputs.head_sha }}"\n'}
"""What perfgate reads of a run's title; GitHub takes it from the file that starts."""


def write_workflows(commit: str) -> dict[str, str]:
    """The text of each workflow file by its name, pinned to `commit`."""
    return {
        f"{name}.yml": f"name: {name}\n{_TITLES.get(name, '')}on:\n  {events}\n"
        f"permissions: {{}}\njobs:\n  perfgate:\n    permissions: {{{rights}}}\n"
        f"    uses: {SOURCE}/.github/workflows/{name}.yml@{commit}\n"
        for name, (events, rights) in _ROWS.items()
    }


def write_settings(machines: Sequence[str], scenarios: Sequence[str]) -> str:
    """The text of perfgate.toml."""
    listed = ", ".join(f'"{name}"' for name in scenarios)
    return "\n".join(f"[hardware.{name}]\nscenarios = [{listed}]\n" for name in machines)


def plan_files(root: Path, commit: str, machines: Sequence[str], scenarios: Sequence[str]) -> dict[Path, str]:
    """Each file that is to be written, with its text. Settings that are there already are a person's, and stay.

    Raise InputError where a workflow file is there and says another thing: nothing is written then.
    """
    folder = root / ".github"
    files = {folder / "workflows" / name: text for name, text in write_workflows(commit).items()}
    if others := [path for path, text in files.items() if _says_another(path, text)]:
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        raise InputError(
            f"{others[0]}: is there and says another thing{more}; a file of another commit of perfgate: remove it, run this "
            "again and read `git diff`; any other: move it away"
        )
    settings, text = folder / SETTINGS_FILE, write_settings(machines, scenarios)
    return files if _says_another(settings, text) else {**files, settings: text}


def _says_another(path: Path, text: str) -> bool:
    """Whether a file is there that says another thing than `text`, or cannot be read."""
    try:
        return path.exists() and path.read_text(encoding="utf-8") != text
    except (OSError, UnicodeDecodeError):
        return True


def save_files(files: Mapping[Path, str]) -> None:
    """Write each file whole. Raise InputError for a place that cannot be written."""
    for path, text in files.items():
        open_folder(path.parent)
        write_file(text.encode(), path)


def create_label(github: GitHub, repository: str) -> bool:
    """Create the label that asks for a measurement; False where it is there already. Raise GitHubError where a person must."""
    body = {"name": LABEL, "color": "0e8a16", "description": "Measure this pull request on a GPU."}
    try:
        github.send("POST", f"/repos/{repository}/labels", body)
    except GitHubError as error:
        if "already_exists" not in str(error):
            raise
        return False
    return True


def list_steps(repository: str, server_url: str, machines: Sequence[str], *, has_label: bool) -> tuple[str, ...]:
    """What is left for a person, in order, each with the page where it is done."""
    site, owner = f"{server_url}/{repository}", repository.partition("/")[0]
    statuses = ", ".join(f"perfgate/{name}" for name in machines)
    actions = "approval for all external contributors, a read-only token, pinned actions, pull requests by workflows"
    steps = (
        ("Review these files and merge them; comment and commands work once they are on the default branch", f"{site}/compare"),
        ("" if has_label else f"Create the label {LABEL}", f"{site}/labels"),
        (f"Actions: {actions}", f"{site}/settings/actions"),
        ("A runner group for this repository alone", f"{server_url}/organizations/{owner}/settings/actions/runner-groups"),
        (f"A machine of each kind: {', '.join(machines)}", f"{server_url}/{SOURCE}/blob/main/docs/how-to/runners.md"),
        ("Look at the machines once", f"{site}/actions/workflows/perfgate-runners.yml"),
        (
            "Measure the main branch, and merge what is proposed each night until 20 blocks are stored",
            f"{site}/actions/workflows/perfgate-baseline.yml",
        ),
        (f"Require the check '{CHECK}' and the statuses {statuses} of the default branch", f"{site}/settings/rules"),
        ("Name code owners of .github/ and perfgate/baselines/", f"{site}/new/main?filename=.github/CODEOWNERS"),
    )
    return tuple(f"{what}: {place}" for what, place in steps if what)
