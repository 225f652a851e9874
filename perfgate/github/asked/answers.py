"""The result of a comparison or a search that was asked for, in a comment of its own.

Neither sets a status nor touches the pull request's own sections: a comparison with an easier base would else pass its check.
A search ran in a job that ran the change's code, so its numbers and commits are read from a bounded document, and no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from perfgate.bisection.search import Ending
from perfgate.bisection.view import MEANINGS
from perfgate.errors import GitHubError, HandoffError
from perfgate.github.client import GitHub
from perfgate.github.comment.marks import find_address
from perfgate.github.comment.sections import MAX_COMMENT, MachineSection, cut, disarm
from perfgate.github.comment.target import CommentTarget
from perfgate.github.handoff.artifact import read_documents
from perfgate.github.handoff.handoff import describe
from perfgate.github.handoff.subject import FactName, Sha
from perfgate.github.runs.collecting import fetch, list_artifacts
from perfgate.github.runs.jobs import Jobs, find_attempt, find_runner_fault
from perfgate.github.runs.run import WorkflowRun
from perfgate.github.settings import MatrixJob
from perfgate.metrics import METRICS
from perfgate.report.escape import markdown
from perfgate.report.words.wording import percent
from perfgate.storage.rounding import format_percent
from perfgate.storage.schema import Amount, Count, adapt

SHOWN_COMMITS = 12
_KNOWN = ConfigDict(extra="ignore", strict=True, defer_build=True)
_Commits = Annotated[tuple[Sha, ...], Field(max_length=1000)]
_Change = Annotated[float, Field(gt=-1, lt=1000, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_KNOWN)
class CommitChange:
    """How much a measured commit differs from the base, as a ratio; None where it was not measured."""

    commit: Sha
    change: _Change | None


@dataclass(frozen=True, slots=True, kw_only=True, config=_KNOWN)
class SearchResult:
    """What `perfgate bisect --format json` wrote, without its texts: those are of the job that ran the change."""

    outcome: Ending
    good: Sha
    bad: Sha
    culprit: Sha | None
    credible: _Commits
    confidence: Annotated[float, Field(gt=0, lt=1)]
    metric: FactName | None
    minutes: Amount
    blocks: Count
    commits: Annotated[tuple[CommitChange, ...], Field(max_length=1000)]


def post_comparison(
    github: GitHub, target: CommentTarget, run: WorkflowRun, base_sha: str, sections: Sequence[MachineSection]
) -> str:
    """Post what was found of the candidate, the commit of `run`, against `base_sha`; return the answer's address."""
    where = f"[run]({target.runs_url}/{run.run_id})"
    said = (
        f"Comparison of {_link(target, run.head_sha)} with {_link(target, base_sha)}, the base; it decides no check: {where}."
    )
    parts = (part for section in sections for part in (section.heading, section.body))
    return _post(github, target, "\n\n".join((said, *map(disarm, parts))))


def post_search(github: GitHub, target: CommentTarget, run: WorkflowRun, job: MatrixJob, found: SearchResult | str) -> str:
    """Post what a search found, or why there is nothing; return the answer's address."""
    where = f"{job.hardware}, {job.scenario}, [run]({target.runs_url}/{run.run_id})"
    if isinstance(found, str):
        return _post(github, target, f"The search ended without an answer: {markdown(found)} ({where}).")
    span = f"{_link(target, found.good)} to {_link(target, found.bad)}"
    cost = f"{found.minutes:.0f} GPU-minutes, {found.blocks} blocks"
    return _post(github, target, f"**{found.outcome.value}**: {_tell(target, found)}\n\nSearched {span} on {where}; {cost}.")


def _tell(target: CommentTarget, found: SearchResult) -> str:
    if found.culprit is None:
        named = ", ".join(_link(target, commit) for commit in found.credible[:SHOWN_COMMITS])
        more = f" and {len(found.credible) - SHOWN_COMMITS} more" if len(found.credible) > SHOWN_COMMITS else ""
        return f"{MEANINGS[found.outcome]}" + (f"; one of {named}{more}" if named else "")
    changes = {row.commit: row.change for row in found.commits}
    change = changes.get(found.culprit)
    metric = METRICS.get(found.metric or "")
    size = f": {metric.title} {percent(change)}" if metric and change is not None else ""
    return f"{_link(target, found.culprit)} made it slower{size}; {format_percent(found.confidence, 0)} sure or more"


def fetch_search(github: GitHub, run: WorkflowRun, job: MatrixJob, jobs: Jobs, base_sha: str) -> SearchResult | str:
    """What the searching job left, or why that is not read. Its span is the one asked for, and so is each commit in it."""
    ran = jobs.get(f"search {job.hardware} {job.scenario}")
    if ran is None:
        return "no job ran"
    if fault := find_runner_fault(ran, job):
        return fault
    named = list_artifacts(github, run).get(f"perfgate-search-{job.hardware}-{job.scenario}-{find_attempt(ran)}", ())
    if len(named) != 1:
        return "the job left no result"
    try:
        found = fetch(github, run, named[0], read_search)
        commits = github.list_all(f"/repos/{run.repository}/pulls/{run.pull_request}/commits")
        return _require(found, (base_sha, run.head_sha), {str(commit.get("sha")) for commit in commits})
    except (HandoffError, GitHubError) as error:
        return str(error)


def read_search(path: Path) -> SearchResult:
    """Read the document of an artifact. Raise HandoffError naming the field that is wrong."""
    documents = read_documents(path)
    if len(documents) != 1:
        raise HandoffError(f"{len(documents)} documents where a search leaves one; refused")
    try:
        return adapt(SearchResult).validate_json(*documents.values())
    except ValidationError as error:
        raise HandoffError(f"the result of the search: {describe(error)}") from None


def _require(found: SearchResult, span: tuple[str, str], commits: set[str]) -> SearchResult:
    named = {found.bad, *found.credible, *((found.culprit,) if found.culprit else ())}
    if (found.good, found.bad) != span or not named <= commits:
        raise HandoffError("the result of the search: names a commit that is none of the pull request's; refused")
    if (found.culprit is None) is (found.outcome is Ending.FOUND):
        raise HandoffError("the result of the search: its outcome and its commit contradict each other; refused")
    return found


def _link(target: CommentTarget, sha: str) -> str:
    return f"[`{sha[:12]}`]({target.server_url}/{target.repository}/commit/{sha})"


def _post(github: GitHub, target: CommentTarget, text: str) -> str:
    body = {"body": cut(text, MAX_COMMENT)}
    return find_address(github.send("POST", target.comments, body, is_repeatable=False))
