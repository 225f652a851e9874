"""Who may use a machine: the table of events, and every way around it."""

from __future__ import annotations

import pytest

from perfgate.runner.admission import Rules, RunnerJob, decide

RULES = Rules(repositories=frozenset({"o/r"}), workflows=frozenset({"perfgate-pr.yml", "perfgate-dispatch.yml"}))
MAIN = "o/r/.github/workflows/perfgate-dispatch.yml@refs/heads/main"
PULL = "o/r/.github/workflows/perfgate-pr.yml@refs/pull/7/merge"
QUEUE = "o/r/.github/workflows/perfgate-pr.yml@refs/heads/gh-readonly-queue/main/pr-7-abc"


def make_job(event="pull_request", ref=PULL, *, head="o/r", base="o/r", repository="o/r", **payload):
    pull = {"number": 7, "head": {"repo": {"full_name": head} if head else None}, "base": {"repo": {"full_name": base}}}
    content = {"repository": {"full_name": "o/r"}, "pull_request": pull, **payload}
    return RunnerJob(event=event, repository=repository, workflow_ref=ref, payload=content)


@pytest.mark.parametrize(
    "job",
    [
        make_job(),
        make_job("merge_group", QUEUE),
        make_job("workflow_dispatch", MAIN),
        make_job("schedule", MAIN),
        make_job("push", MAIN),
    ],
)
def test_decide__admits(job):
    assert decide(job, RULES).is_admitted, decide(job, RULES)


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (make_job(head="mallory/r"), "comes from a fork"),
        (make_job(head=None), "comes from a fork"),
        (make_job(base="mallory/r"), "of another repository"),
        (make_job(repository="mallory/r"), "may not use this machine"),
        (make_job(repository={"full_name": "mallory/r"}["full_name"], ref=PULL), "may not use this machine"),
        (make_job(ref=PULL.replace("o/r", "mallory/r", 1)), "not one of this repository"),
        (make_job(ref=PULL.replace("perfgate-pr", "ci")), "workflow ci.yml may not"),
        (make_job(ref=PULL.replace("/7/", "/8/")), "not that of the pull request"),
        (make_job(ref=MAIN.replace("dispatch", "pr")), "not that of the pull request"),
        (make_job("workflow_dispatch", MAIN.replace("main", "evil")), "only refs/heads/main may"),
        (make_job("workflow_dispatch", MAIN + "/../evil"), "only refs/heads/main may"),
        (make_job("push", MAIN.replace("heads/main", "tags/main")), "only refs/heads/main may"),
        (make_job("merge_group", MAIN), "outside of the merge queue"),
        (make_job("pull_request_target", MAIN), "event 'pull_request_target' may not"),
        (make_job("issue_comment", MAIN), "may not"),
        (make_job("workflow_run", MAIN), "may not"),
        (make_job("", ""), "not one of this repository"),
        (make_job(repository=""), "may not use this machine"),
        (RunnerJob(event="pull_request", repository="o/r", workflow_ref=PULL, payload={}), "another repository than the job"),
        (make_job(pull_request=None), "not that of the pull request"),
        (make_job(ref="o/r/.github/workflows/../../evil.yml@refs/pull/7/merge"), "not one of this repository"),
        (make_job(ref=PULL + "\n"), "not"),
    ],
)
def test_attack__what_is_refused(job, reason):
    decision = decide(job, RULES)

    assert not decision.is_admitted
    assert reason in decision.reason
