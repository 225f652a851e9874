"""The steps of the workflows, run as the workflows run them, against a GitHub that keeps state."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import click
import orjson
import pytest

from perfgate import __version__
from perfgate.cli import main, program
from perfgate.github.comment.sections import MARK, build_section, render
from perfgate.github.comment.states import State
from perfgate.github.handoff.subject import HandoffSubject
from perfgate.github.settings import load_settings
from perfgate.github.statuses import set_statuses
from perfgate.machine.fingerprint import read_build
from tests.fakes.folders import add_profiles
from tests.fakes.github.pull_requests import (
    BASE,
    HEAD,
    LEFT_AT,
    MATRIX,
    NEW,
    PUBLISH,
    SETTINGS,
    make_comment,
    make_jobs,
    make_pull,
    make_run,
    pack,
    prepare_server,
    read_replies,
    read_sections,
    report,
    say,
    set_run,
    write_event,
    zip_base64,
)

DOCS = Path(__file__).parents[3] / "docs"
SINGLE, PREFIX = "gpt-oss-20b-shape-mxfp4-c1", "gpt-oss-20b-shape-mxfp4-prefix-c16"


@pytest.fixture
def server(fake_github, monkeypatch, tmp_path):
    return prepare_server(fake_github, monkeypatch, tmp_path)


@pytest.mark.parametrize("case", [(0.0, "pass", "success"), (0.2, "regression", "failure")])
def test_publish__judges_what_this_run_left(server, tmp_path, capsys, case):
    """The verdict's own rule decides, nothing here."""
    worse, state, status = case
    set_run(server, pack(tmp_path, worse=worse))

    assert main(PUBLISH) == 0
    assert read_sections(server) == {"test-gpu": state}
    assert [found["state"] for found in server.get()["statuses"]] == [status]
    assert "| metric |" in (tmp_path / "summary").read_text()
    assert f"test-gpu: {state}: https://github.example/" in capsys.readouterr().out


def set_arms_apart(folder):
    """Write into a result folder that the arms were two builds, each with a Python of its own."""
    record = orjson.loads((folder / "session.json").read_bytes())
    for arm, found in record["arms"].items():
        found |= {"python": f"/arms/{arm}/bin/python", "argv": [f"/arms/{arm}/bin/python", "-m", "sglang.launch_server"]}
    (folder / "session.json").write_bytes(orjson.dumps(record))


@pytest.mark.parametrize("pages", [[], ["--pages", "report"]])
def test_publish__names_what_a_stranger_can_type(server, tmp_path, pages):
    """The trees of the commits that GitHub names, this side's file of the scenario, and folders that can be fetched."""
    artifact = pack(tmp_path, worse=0.2, change=set_arms_apart)
    set_run(server, artifact)

    assert main([*PUBLISH, *pages]) == 0
    (comment,) = server.get()["comments"]
    body = comment["body"]
    (command,) = re.findall(r"^perfgate gate (.+?)  # measure again$", body, re.MULTILINE)
    assert command == "unit.toml --checkout sglang-base --candidate-checkout sglang-head"
    for tree in ("sglang-base", "sglang-head"):
        (tmp_path / tree).mkdir()
    program.get_command(click.Context(program), "gate").make_context("gate", shlex.split(command))
    trees = f"git worktree add sglang-base {LEFT_AT} && git worktree add sglang-head {HEAD}"
    assert f"\ngit fetch origin {LEFT_AT} {HEAD} && {trees}\n" in body
    assert "opened/" not in body
    assert ("gh run download 11 --repo o/r --name perfgate-report --dir report" in body) is bool(pages)
    assert ("perfgate check report/test-gpu/unit" in body) is bool(pages)
    run = "https://github.com/o/r/actions/runs/11"
    shown = f"[report]({run}#artifacts)" if pages else f"[run's summary]({run})"
    assert f"Everything: {shown}." in body
    assert re.search(r"\n## ❌ REGRESSION \(uncalibrated\): .+ \(.+ to .+\), fails from .+ \(test-gpu\)\n", body)


def test_publish__status_then_comment_then_pages(server, tmp_path, capsys):
    set_run(server, pack(tmp_path, worse=0.2))

    assert main([*PUBLISH, "--pages", "report"]) == 0
    assert "report/test-gpu/unit.html\n" in capsys.readouterr().err
    assert "REGRESSION" in (tmp_path / "report" / "test-gpu" / "unit.html").read_text()
    assert main(["check", "report/test-gpu/unit"]) == 1
    written = [entry["path"].split("/")[4] for entry in server.get()["log"] if entry["method"] == "POST"]
    assert written == ["statuses", "issues"]
    assert "opened/" not in server.get()["comments"][0]["body"]


ODD_COMMENT = {"issue": "7", "body": MARK, "user": {"login": "github-actions[bot]", "type": "Bot"}}


@pytest.mark.parametrize(
    "case",
    [
        ("/jobs$", {"jobs": [{"name": "bench test-gpu unit", "labels": 5}]}, 0, "test-gpu: invalid"),
        ("/comments$", [{**ODD_COMMENT, "id": "x"}], 2, "id: missing or no number"),
        ("/comments$", [ODD_COMMENT], 2, "id: missing or no number"),
    ],
)
def test_publish__an_answer_with_an_odd_field(server, tmp_path, capsys, case):
    """A proxy, or a GitHub that changed: a line, and no success."""
    path, body, code, said = case
    set_run(server, pack(tmp_path, worse=0.2))
    server.set(faults=[{"method": "GET", "path": path, "status": 200, "body": body, "times": 9}])

    assert main(PUBLISH) == code
    assert said in "".join(capsys.readouterr())
    assert "success" not in [found["state"] for found in server.get()["statuses"]]


def test_publish__a_pull_request_with_a_large_number(server, tmp_path):
    """The largest repositories have numbered beyond 160,000."""
    set_run(server, pack(tmp_path, worse=0.2, pr=168_000))
    server.set(pulls={"168000": {**make_pull(), "number": 168_000}})

    assert main(["github", "publish", "--pr", "168000", *PUBLISH[4:]]) == 0
    assert read_sections(server) == {"test-gpu": "regression"}


def test_publish__a_head_that_moved(server, tmp_path, capsys):
    set_run(server, pack(tmp_path))
    server.set(pulls={"7": make_pull(head=NEW)})

    assert main(PUBLISH) == 2
    assert f"is at {NEW} by now" in capsys.readouterr().err
    assert server.get()["comments"] == server.get()["statuses"] == []


@pytest.mark.parametrize("is_dispatched", [True, False])
def test_publish__a_push_while_it_judges(server, tmp_path, capsys, monkeypatch, is_dispatched):
    """The status is of the commit that was measured; the comment is of the pull request, which is elsewhere by now."""
    set_run(server, pack(tmp_path))

    def push_after(*words):
        shown = set_statuses(*words)
        server.set(pulls={"7": make_pull(head=NEW)})
        return shown

    monkeypatch.setattr("perfgate.github.reporter.set_statuses", push_after)

    assert (main(PUBLISH) if is_dispatched else report(tmp_path, make_run())) == 2
    assert f"is at {NEW} by now" in capsys.readouterr().err
    assert [found["sha"] for found in server.get()["statuses"]] == [HEAD]
    assert server.get()["comments"] == []


def test_publish__jobs_and_artifacts_that_were_not_asked_for(server, tmp_path):
    set_run(server, pack(tmp_path))
    server.set(jobs={"11": [{"name": "bench test-gpu unit"}, {"name": "bench h20 unit"}, {"name": "bench test-gpu ../x"}]})

    main(PUBLISH)
    assert read_sections(server) == {"test-gpu": "pass"}


def test_publish__speaks_of_the_machines_that_were_admitted(server, tmp_path):
    """Another machine of the settings was not asked for."""
    (tmp_path / ".github" / "perfgate.toml").write_text(SETTINGS + '[hardware.h20]\nscenarios = ["unit"]\n')
    set_run(server, pack(tmp_path))
    main([*PUBLISH, "--matrix", MATRIX])
    assert read_sections(server) == {"test-gpu": "pass"}

    main([*PUBLISH, "--matrix", '[{"hardware":"h20","scenario":"unit"}]'])
    assert read_sections(server) == {"test-gpu": "pass", "h20": "invalid"}


def test_publish__names_what_the_run_was_not_to_measure(server, tmp_path):
    told = SETTINGS.replace('["unit"]', f'["unit", "{SINGLE}", "{PREFIX}"]')
    assert told != SETTINGS
    (tmp_path / ".github" / "perfgate.toml").write_text(told)
    set_run(server, pack(tmp_path))

    assert main([*PUBLISH, "--matrix", MATRIX]) == 0
    (comment,) = server.get()["comments"]
    assert f"\nNot measured in this run, and not judged: `{SINGLE}`, `{PREFIX}`.\n" in comment["body"]
    assert read_sections(server) == {"test-gpu": "pass"}


@pytest.mark.usefixtures("server")
def test_publish__without_a_token(capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_TOKEN")

    assert main(PUBLISH) == 2
    assert "GITHUB_TOKEN is not set" in capsys.readouterr().err


def run_verdict(*, action="run", result="success", matrix=MATRIX, head=HEAD):
    options = ["--action", action, "--result", result, "--matrix", matrix, "--artifacts", "artifacts"]
    return main(["github", "verdict", *options, "--pr", "7", "--head-sha", head, "--base-sha", BASE, "--scenario", "unit.toml"])


def place(tmp_path, artifact):
    folder = tmp_path / "artifacts" / "perfgate-test-gpu-unit-1"
    folder.mkdir(parents=True)
    artifact.rename(folder / artifact.name)


@pytest.mark.parametrize("case", [(0.0, 0, "notice"), (0.2, 1, "error")])
def test_verdict__is_the_worst_verdicts_code_without_a_token(server, tmp_path, capsys, monkeypatch, case):
    worse, code, level = case
    monkeypatch.delenv("GITHUB_TOKEN")
    place(tmp_path, pack(tmp_path, worse=worse))
    capsys.readouterr()

    assert run_verdict() == code
    assert capsys.readouterr().out.startswith(f"::{level} title=perfgate unit%3A ")
    assert server.get()["log"] == []


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"action": "skip", "result": "skipped"}, 0),
        ({"action": "await", "result": "skipped"}, 0),
        ({"action": "skip", "result": "success"}, 2),
        ({"action": "await", "result": "failure"}, 2),
        ({"action": "run", "result": "skipped"}, 3),
        ({"action": "run", "result": "cancelled"}, 3),
        ({"action": "run", "result": "success"}, 3),
        ({"action": "run", "result": "success", "matrix": "[]"}, 3),
        ({"action": "run", "result": "skipped", "matrix": "[]"}, 3),
        ({"action": "run", "result": "success", "matrix": "nonsense"}, 2),
    ],
)
def test_verdict__without_results(facts, code):
    assert run_verdict(**facts) == code


@pytest.mark.usefixtures("server")
def test_verdict__a_job_that_failed_after_it_handed_over(tmp_path):
    place(tmp_path, pack(tmp_path))

    assert run_verdict(result="failure") == 3


@pytest.mark.usefixtures("server")
def test_verdict__an_artifact_of_another_commit(tmp_path, capsys):
    place(tmp_path, pack(tmp_path, head=NEW))

    assert run_verdict() == 3
    assert "subject.head_sha is" in capsys.readouterr().err


def test_report__the_fold_names_kernel_and_layer_of_a_profile(server, tmp_path):
    """Numbers cross with the names of the base's kernels and our words for layers; the candidate's own kernels are digests."""
    set_run(server, pack(tmp_path, worse=0.08, change=add_profiles))
    assert report(tmp_path, make_run()) == 0
    (body,) = (one["body"] for one in server.get()["comments"])
    _, fold = body.replace("\\", "").split("<summary>Where the time went</summary>")

    assert "By layer, what differs most: MoE +112.0 us (306.0 to 418.0), dense products +2.0 us (0.0 to 2.0), attention" in fold
    named = ("fused_moe_kernel", "moe_sum_reduce", "unnamed-kernel-2f4fd1be015d")
    assert [name for name in named if f"| {name} |" not in fold] == []
    assert "cutlass" not in body


@pytest.mark.parametrize(("worse", "state"), [(0.0, "pass"), (0.2, "regression")])
def test_report__a_finished_run(server, tmp_path, worse, state):
    set_run(server, pack(tmp_path, worse=worse))

    assert report(tmp_path, make_run()) == 0
    assert read_sections(server) == {"test-gpu": state}


def test_report__from_request_to_verdict(server, tmp_path):
    states = []
    set_run(server, pack(tmp_path))
    for action in ("in_progress", "in_progress", "completed"):
        report(tmp_path, make_run(action))
        states.append((server.get()["statuses"][-1]["state"], read_sections(server).get("test-gpu")))

    assert states == [("pending", None), ("pending", None), ("success", "pass")]


def test_report__events_out_of_order(server, tmp_path, capsys):
    set_run(server, pack(tmp_path))
    report(tmp_path, make_run("completed"))

    assert report(tmp_path, make_run("in_progress")) == 0
    assert read_sections(server) == {"test-gpu": "pass"}
    assert "left as it is" in capsys.readouterr().out


def test_attack__a_fork_writes_its_own_workflow_and_artifact(server, tmp_path):
    """Its numbers may be anything: not one byte of the artifact is read, and a maintainer is asked instead."""
    set_run(server, pack(tmp_path))
    server.set(pulls={"7": make_pull("mallory/r")})

    assert report(tmp_path, make_run(head_repository={"owner": {"login": "mallory"}, "full_name": "mallory/r"})) == 0
    assert read_sections(server) == {"test-gpu": "awaiting"}
    assert f"/perfgate run test-gpu {HEAD}" in server.get()["comments"][0]["body"]
    assert not any("artifacts" in entry["path"] for entry in server.get()["log"])


@pytest.mark.parametrize(("owner", "action"), [("mallory", "completed"), ("o", "in_progress")])
def test_report__writes_no_page_of_a_fork_or_of_what_still_runs(server, tmp_path, owner, action):
    set_run(server, pack(tmp_path))
    server.set(pulls={"7": make_pull(f"{owner}/r")})
    run = make_run(action, head_repository={"owner": {"login": owner}, "full_name": f"{owner}/r"})

    options = [*write_event(tmp_path, run), "--scenario", "unit.toml", "--pages", "report"]
    assert main(["github", "report", *options]) == 0
    assert not (tmp_path / "report").exists()
    assert not any("artifacts" in entry["path"] for entry in server.get()["log"])


def test_attack__a_fork_claims_a_branch_of_this_repository(server, tmp_path, capsys):
    """The event names a branch here, whose pull request has another head."""
    set_run(server, pack(tmp_path, head=NEW))

    assert report(tmp_path, make_run(head_sha=NEW)) == 2
    assert "0 open pull requests have their head at" in capsys.readouterr().err
    assert server.get()["comments"] == []


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"run": 10}, "subject.run\\_id is 10"),
        ({"pr": 8}, "subject.pull\\_request is 8"),
        ({"head": NEW}, "subject.head\\_sha is c"),
        ({"attempt": 2}, "subject.run\\_attempt is 2"),
    ],
)
def test_attack__an_artifact_of_another_run_or_change(server, tmp_path, changes, remark):
    set_run(server, pack(tmp_path, **changes))

    assert report(tmp_path, make_run()) == 0
    assert read_sections(server) == {"test-gpu": "invalid"}
    assert remark.replace("\\", "") in server.get()["comments"][0]["body"].replace("\\", "")


@pytest.mark.parametrize("other", ["9.9.9", __version__, f"{__version__}+0123456789ab"])
def test_report__a_machine_that_has_another_perfgate(server, tmp_path, other):
    """Of another release, of no known commit, of another commit of the same release."""
    artifact = pack(tmp_path)
    artifact.write_bytes(orjson.dumps({**orjson.loads(artifact.read_bytes()), "perfgate": other}))
    set_run(server, artifact)

    assert report(tmp_path, make_run()) == 0
    assert read_sections(server) == {"test-gpu": "invalid"}
    assert f"measured by perfgate {other}, and" in server.get()["comments"][0]["body"].replace("\\", "")


def test_attack__an_artifact_that_github_files_under_another_run(server, tmp_path):
    set_run(server, pack(tmp_path), workflow_run={"id": 10})

    report(tmp_path, make_run())
    assert read_sections(server) == {"test-gpu": "invalid"}
    assert "belongs to run 10" in server.get()["comments"][0]["body"]


def test_attack__another_scenario_under_this_ones_name(server, tmp_path):
    artifact = pack(tmp_path)
    document = orjson.loads(artifact.read_bytes())
    document["scenario"] = "easier"
    artifact.write_bytes(orjson.dumps(document))
    set_run(server, artifact)

    report(tmp_path, make_run())
    assert read_sections(server) == {"test-gpu": "invalid"}
    assert "is of scenario easier; refused" in server.get()["comments"][0]["body"]


def test_report__a_sick_machine(server, tmp_path):
    set_run(server, steps=[{"name": "The machine is fit to measure", "conclusion": "failure"}])

    report(tmp_path, make_run(conclusion="failure"))
    assert read_sections(server) == {"test-gpu": "sick-runner"}


@pytest.mark.parametrize("expired", [False, True])
def test_report__a_job_that_handed_nothing_over(server, tmp_path, expired):
    if expired:
        set_run(server, pack(tmp_path), expired=True)
    else:
        set_run(server, steps=[{"name": "The machine is fit to measure", "conclusion": "success"}])

    report(tmp_path, make_run(conclusion="failure"))
    assert read_sections(server) == {"test-gpu": "invalid"}
    assert "unit: no result was handed over" in server.get()["comments"][0]["body"]


@pytest.mark.parametrize("jobs", [make_jobs("failure", "skipped"), make_jobs("cancelled", "cancelled"), {}])
def test_report__a_run_without_a_job_for_a_machine(server, tmp_path, jobs):
    """It was announced as running, and no other run would take that back."""
    report(tmp_path, make_run("in_progress"))
    server.set(jobs=jobs)

    assert report(tmp_path, make_run(conclusion="failure")) == 0
    assert read_sections(server) == {"test-gpu": "invalid"}
    assert "unit: no job ran" in server.get()["comments"][0]["body"]
    assert [status["state"] for status in server.get()["statuses"]] == ["pending", "error"]


def test_report__one_machine_of_two_had_a_job(server, tmp_path):
    set_run(server, pack(tmp_path))
    (tmp_path / ".github" / "perfgate.toml").write_text(SETTINGS + '[hardware.h20]\nscenarios = ["unit"]\n')

    report(tmp_path, make_run())
    assert read_sections(server) == {"test-gpu": "pass", "h20": "invalid"}


@pytest.mark.parametrize("jobs", [make_jobs("success", "skipped"), make_jobs("skipped", "skipped")])
def test_report__a_run_that_was_not_to_measure(server, tmp_path, capsys, jobs):
    """The label came after it, or it was about another one: the run of the label answers."""
    server.set(jobs=jobs)

    assert report(tmp_path, make_run()) == 0
    assert "was not to measure anything" in capsys.readouterr().err
    assert server.get()["comments"] == server.get()["statuses"] == []


def test_report__a_pull_request_without_the_label_gets_a_skip_status(server, tmp_path):
    """No comment, but a status: a branch that requires it would wait for ever."""
    server.set(pulls={"7": make_pull(label="docs")})
    for action in ("requested", "in_progress", "completed"):
        assert report(tmp_path, make_run(action)) == 0

    assert server.get()["comments"] == []
    (status,) = server.get()["statuses"]
    assert (status["sha"], status["context"], status["state"]) == (HEAD, "perfgate/test-gpu", "success")
    assert status["description"].startswith("not asked for")


@pytest.mark.parametrize(
    ("state", "run", "last"),
    [("failure", 9, "failure"), ("error", 9, "error"), ("pending", 11, "success"), ("pending", 9, "pending")],
)
def test_report__a_skip_status_replaces_no_answer(server, tmp_path, state, run, last):
    """Taking the label away takes neither a regression back nor what another run is still measuring."""
    server.set(pulls={"7": make_pull(label="docs")})
    url = f"https://github.com/o/r/actions/runs/{run}/attempts/1"
    server.set(statuses=[{"sha": HEAD, "context": "perfgate/test-gpu", "state": state, "target_url": url}])

    report(tmp_path, make_run())
    assert server.get()["statuses"][-1]["state"] == last


QUEUED = {"event": "merge_group", "head_branch": "gh-readonly-queue/main/pr-7-" + BASE}
SMOKE = SETTINGS + 'smoke = ["unit"]\n'


@pytest.mark.parametrize(("worse", "state"), [(0.0, "success"), (0.2, "failure")])
def test_report__the_merge_queue_gets_its_statuses(server, tmp_path, worse, state):
    (tmp_path / ".github" / "perfgate.toml").write_text(SMOKE + '[hardware.h20]\nscenarios = ["unit"]\n')
    set_run(server, pack(tmp_path, worse=worse, pr=0))
    for action in ("in_progress", "completed"):
        assert report(tmp_path, make_run(action, **QUEUED)) == 0

    found = server.get()
    assert found["comments"] == []
    assert [(status["context"], status["state"]) for status in found["statuses"]] == [
        ("perfgate/test-gpu", "pending"),
        ("perfgate/h20", "success"),
        ("perfgate/test-gpu", state),
    ]
    assert {status["sha"] for status in found["statuses"]} == {HEAD}


def test_report__a_run_of_the_merge_queue_that_broke(server, tmp_path):
    (tmp_path / ".github" / "perfgate.toml").write_text(SMOKE)
    server.set(jobs=make_jobs("failure", "skipped"))

    assert report(tmp_path, make_run(**QUEUED)) == 0
    assert [status["state"] for status in server.get()["statuses"]] == ["error"]


@pytest.mark.parametrize(
    "changes", [{"head_branch": "topic"}, {"head_repository": {"owner": {"login": "mallory"}, "full_name": "mallory/r"}}]
)
def test_report__a_merge_queue_that_is_none(server, tmp_path, capsys, changes):
    assert report(tmp_path, make_run(**{**QUEUED, **changes})) == 2
    assert "a merge queue's branch" in capsys.readouterr().err
    assert server.get()["statuses"] == []


@pytest.mark.usefixtures("server")
def test_report__a_branch_that_is_gone(tmp_path, capsys):
    assert report(tmp_path, make_run(head_repository=None)) == 2
    assert "is gone; there is nothing to report to" in capsys.readouterr().err


@pytest.mark.usefixtures("server")
def test_report__runs_of_other_events(tmp_path, capsys):
    assert report(tmp_path, make_run(event="push")) == 2
    assert "only runs of pull requests and of the merge queue are reported" in capsys.readouterr().err


@pytest.mark.usefixtures("server")
def test_plan__writes_what_the_jobs_need(tmp_path):
    event = write_event(tmp_path, {"pull_request": make_pull()})

    assert main(["github", "plan", *event, "--event-name", "pull_request"]) == 0
    written = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
    assert written["action"] == "run"
    assert (written["head_sha"], written["base_sha"]) == (HEAD, LEFT_AT)
    assert written["matrix"] == MATRIX


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"status": 404, "body": {"message": "No common ancestor"}}, "status 404: No common ancestor"),
        ({"status": 403, "body": {"message": "Resource not accessible"}}, "the token lacks a permission"),
        ({"status": 502, "times": 99}, "after 5 tries"),
        ({"status": 200, "body": {"merge_base_commit": None}}, "merge_base_commit.sha: missing"),
        ({"status": 200, "body": {"merge_base_commit": {"sha": "main"}}}, "merge_base_commit.sha: missing"),
        ({"status": 200, "body": []}, "the answer is no object"),
    ],
)
def test_plan__no_merge_base_no_measurement(server, tmp_path, capsys, fault, told):
    """Against any other commit the change would be charged with what is not its doing."""
    server.set(faults=[{"path": "/compare/", **fault}])
    event = write_event(tmp_path, {"pull_request": make_pull()})

    assert main(["github", "plan", *event, "--event-name", "pull_request"]) == 2
    assert f"nothing is measured: where {HEAD} left 'main' cannot be known" in (error := capsys.readouterr().err)
    assert told in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "output").exists()
    assert main([*ADMIT, "--head-sha", HEAD]) == (0 if "times" not in fault else 2)


@pytest.mark.parametrize("branch", [None, "", "main...evil", 7, "release/1.0"])
def test_attack__a_base_branch_without_a_gate(server, tmp_path, branch):
    """A result against an easier branch would stand on the commit, and speak for its pull request into main too."""
    pull = make_pull()
    pull["base"]["ref"] = branch

    assert main(["github", "plan", *write_event(tmp_path, {"pull_request": pull}), "--event-name", "pull_request"]) == 0
    assert "action=refuse\n" in (tmp_path / "output").read_text()
    assert server.get()["log"] == []
    assert run_verdict(action="refuse", result="skipped") == 3
    server.set(pulls={"7": pull}, jobs=make_jobs("success", "skipped"))
    assert main([*ADMIT, "--head-sha", HEAD]) == 2
    assert say(tmp_path, make_comment("/perfgate run test-gpu")) == 2
    assert server.get()["dispatches"] == server.get()["statuses"] == []
    assert report(tmp_path, make_run()) == 0
    assert [status["state"] for status in server.get()["statuses"]] == ["error"]


def test_attack__two_pull_requests_of_one_commit(server, tmp_path, capsys):
    """One goes into an easier branch: its success is that branch's, and a run that may be of either is reported for none."""
    (tmp_path / ".github" / "perfgate.toml").write_text('base_branches = ["release/1.0"]\n' + SETTINGS)
    easy = {**make_pull(), "number": 8, "base": {**make_pull()["base"], "ref": "release/1.0"}}
    server.set(
        pulls={"7": make_pull(), "8": easy}, merge_bases={f"{name}...{HEAD}": LEFT_AT for name in ("main", "release/1.0")}
    )
    set_run(server, pack(tmp_path, pr=8))

    assert report(tmp_path, make_run()) == 2
    assert "2 open pull requests have their head at" in capsys.readouterr().err
    assert server.get()["statuses"] == []
    assert main(["github", "publish", "--pr", "8", "--head-sha", HEAD, "--scenario", "unit.toml"]) == 0
    assert [(status["context"], status["state"]) for status in server.get()["statuses"]] == [
        ("perfgate/test-gpu (release/1.0)", "success")
    ]


def test_plan__a_branch_with_odd_characters(server, tmp_path):
    pull = make_pull()
    pull["base"]["ref"] = "release/1.0-a_b"
    (tmp_path / ".github" / "perfgate.toml").write_text('base_branches = ["release/1.0-a_b"]\n' + SETTINGS)
    server.set(merge_bases={f"release/1.0-a_b...{HEAD}": LEFT_AT})

    assert main(["github", "plan", *write_event(tmp_path, {"pull_request": pull}), "--event-name", "pull_request"]) == 0
    assert server.paths("GET") == [f"/repos/o/r/compare/release%2F1.0-a_b...{HEAD}"]


TOUCHED = "minutes = 15.0\n" + SETTINGS.replace('["unit"]', f'["unit", "{SINGLE}", "{PREFIX}"]')


def test_plan__by_the_paths_that_the_change_touches(server, tmp_path):
    """What no rule can name is measured always, the others where a touched part asks for them."""
    (tmp_path / ".github" / "perfgate.toml").write_text(TOUCHED)
    event = [*write_event(tmp_path, {"pull_request": make_pull()}), "--event-name", "pull_request"]

    def plan(*changed):
        server.set(changed=changed, log=[])
        assert main(["github", "plan", *event]) == 0
        matrix = re.findall("^matrix=(.*)$", (tmp_path / "output").read_text(), flags=re.MULTILINE)[-1]
        assert len(server.get()["log"]) == 1
        return [job["scenario"] for job in orjson.loads(matrix)]

    assert plan("docs/a.md") == ["unit"]
    assert plan("python/sglang/srt/layers/attention/x.py") == ["unit", SINGLE]
    assert plan({"filename": "docs/a.md", "previous_filename": "python/sglang/srt/mem_cache/x.py"}) == ["unit", PREFIX]
    assert plan(*(f"docs/{number}.md" for number in range(300))) == ["unit", SINGLE, PREFIX]


def test_report__names_what_no_touched_path_asked_for(server, tmp_path):
    (tmp_path / ".github" / "perfgate.toml").write_text(TOUCHED)
    server.set(changed=["docs/a.md"])
    set_run(server, pack(tmp_path))

    assert report(tmp_path, make_run()) == 0
    (comment,) = server.get()["comments"]
    assert f"\nNot measured in this run, and not judged: `{SINGLE}`, `{PREFIX}`.\n" in comment["body"]
    assert read_sections(server) == {"test-gpu": "pass"}


def test_attack__a_workflow_that_leaves_out_what_the_change_touches(server, tmp_path):
    """The paths are GitHub's word, asked again where the result is judged: a job that never ran is told."""
    (tmp_path / ".github" / "perfgate.toml").write_text(TOUCHED)
    server.set(changed=["python/sglang/srt/mem_cache/x.py"])
    set_run(server, pack(tmp_path))

    assert report(tmp_path, make_run()) == 0
    assert read_sections(server) == {"test-gpu": "invalid"}
    assert f"{PREFIX}: no job ran" in server.get()["comments"][0]["body"]


def test_report__expects_all_where_the_paths_are_not_known(server, tmp_path):
    (tmp_path / ".github" / "perfgate.toml").write_text(TOUCHED)
    server.set(changed=["docs/a.md"], merge_bases={})
    set_run(server, pack(tmp_path))

    assert report(tmp_path, make_run()) == 0
    assert read_sections(server) == {"test-gpu": "invalid"}


@pytest.mark.parametrize(
    ("event", "payload"),
    [
        ("pull_request", {"pull_request": make_pull(label="docs")}),
        ("pull_request", {"pull_request": make_pull("mallory/r")}),
        ("merge_group", {"merge_group": {"head_sha": HEAD, "base_sha": BASE}}),
    ],
)
def test_plan__asks_no_one_where_nothing_is_measured_or_the_queue_says_the_base(server, tmp_path, monkeypatch, event, payload):
    monkeypatch.delenv("GITHUB_TOKEN")

    assert main(["github", "plan", *write_event(tmp_path, payload), "--event-name", event]) == 0
    assert f"base_sha={BASE}" in (tmp_path / "output").read_text()
    assert server.get()["log"] == []


ADMIT = ["github", "admit", "--pr", "7"]


def test_admit__the_head_that_was_read(server, tmp_path):
    assert main([*ADMIT, "--head-sha", HEAD]) == 0
    assert f"base_sha={LEFT_AT}" in (tmp_path / "output").read_text()
    (status,) = server.get()["statuses"]
    assert (status["context"], status["state"], status["sha"]) == ("perfgate/test-gpu", "pending", HEAD)
    assert server.get()["comments"] == []


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("only", "wanted"), [("", ["other", "unit"]), ("unit", ["unit"]), ("unit, other", ["other", "unit"])])
def test_admit__scenarios_with_commas_between(tmp_path, only, wanted):
    (tmp_path / ".github" / "perfgate.toml").write_text('[hardware.test-gpu]\nscenarios = ["other", "unit"]\n')

    assert main([*ADMIT, "--head-sha", HEAD, "--only", only]) == 0
    written = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
    assert [job["scenario"] for job in orjson.loads(written["matrix"])] == wanted


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--head-sha", NEW], "is at aaaa"),
        (["--head-sha", "a" * 12], "--head-sha: missing or not"),
        (["--head-sha", ""], "--head-sha: missing or not"),
        (["--head-sha", HEAD, "--ref", "refs/heads/evil"], "the workflow runs from refs/heads/main only"),
        (["--head-sha", HEAD, "--ref", "refs/pull/7/merge"], "the workflow runs from refs/heads/main only"),
        (["--head-sha", HEAD, "--hardware", "h20"], "no such machine"),
        (["--head-sha", HEAD, "--only", "other"], "no such machine"),
        (["--head-sha", HEAD, "--only", "unit,other"], "no such machine"),
        (["--head-sha", HEAD, "--only", "unit,../x"], "no such machine"),
    ],
)
def test_attack__a_stale_or_strange_approval(tmp_path, capsys, options, reason):
    assert main([*ADMIT, *options]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "output").exists()


def test_command__starts_the_dispatch_on_main_at_the_head(server, tmp_path):
    assert say(tmp_path, make_comment("/perfgate run test-gpu")) == 0
    assert server.get()["dispatches"] == [
        {
            "workflow": "perfgate-dispatch.yml",
            "ref": "main",
            "inputs": {
                "pr": "7",
                "head_sha": HEAD,
                "hardware": "test-gpu",
                "scenario": "",
                "task": "measure",
                "base_sha": "",
                "asked_by": "ada",
            },
        }
    ]


@pytest.mark.parametrize(
    "payload",
    [
        make_comment("nice work"),
        make_comment("/perfgate run", action="edited"),
        make_comment("/perfgate run", issue={"number": 7}),
    ],
)
def test_command__what_is_no_command(server, tmp_path, capsys, payload):
    assert say(tmp_path, payload) == 0
    assert capsys.readouterr().out == "no command\n"
    assert server.get()["dispatches"] == []


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (make_comment("/perfgate run", "eve"), "eve may not start measurements"),
        (make_comment("/perfgate run", "nobody"), "theirs is none"),
        (make_comment("/perfgate run", "../../x"), "no author that could be asked about"),
        (make_comment("/perfgate run", None), "no author that could be asked about"),
        (make_comment("/perfgate run h20;id"), "no such command"),
        (make_comment("/perfgate run " + "c" * 40), "the pull request is at aaaa"),
    ],
)
def test_attack__a_command_that_may_not(server, tmp_path, capsys, payload, reason):
    assert say(tmp_path, payload) == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert said.out.startswith("::error title=perfgate%3A the command was refused::")
    assert server.get()["dispatches"] == []


def test_attack__a_fork_pushes_after_it_was_read(server, tmp_path, capsys):
    """Without the commit in the command, what is measured could be newer than what was read."""
    server.set(pulls={"7": make_pull("mallory/r", NEW)})

    assert say(tmp_path, make_comment("/perfgate run")) == 2
    assert f"read it, then name the commit, `/perfgate run {NEW}`" in capsys.readouterr().err
    assert say(tmp_path, make_comment(f"/perfgate run {HEAD}")) == 2
    # The command of the first refusal, as a reader copies it.
    (copied,) = re.findall(r"/perfgate run [^\\]+", read_replies(server)[0])
    assert say(tmp_path, make_comment(copied)) == 0
    assert [found["inputs"]["head_sha"] for found in server.get()["dispatches"]] == [NEW]


def learn(*, head=BASE):
    options = [
        "--matrix",
        MATRIX,
        "--artifacts",
        "artifacts",
        "--head-sha",
        head,
        "--to",
        "baselines",
        "--scenario",
        "unit.toml",
    ]
    return main(["github", "learn", *options])


def test_learn__adds_to_the_baseline(server, tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_TOKEN")
    place(tmp_path, pack(tmp_path, head=BASE, pr=0))

    assert learn() == 0
    (written,) = (tmp_path / "baselines").rglob("*.json")
    assert main(["baseline", "verify", str(written)]) == 0
    assert "run-11-1-test-gpu" in written.read_text()
    assert server.get()["log"] == []


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("changes", [{"pr": 7}, {"head": HEAD}, {"run": 12}])
def test_attack__a_poisoned_baseline(tmp_path, capsys, changes):
    """Only this run's measurement of the main branch may teach: not a pull request's, not another night's."""
    place(tmp_path, pack(tmp_path, **{"head": BASE, "pr": 0, **changes}))

    assert learn() == 0
    assert "::warning title=perfgate test-gpu unit::" in capsys.readouterr().out
    assert not (tmp_path / "baselines").exists()


def test_jobs__are_those_of_the_settings(server, tmp_path):
    assert main(["github", "jobs"]) == 0
    assert (tmp_path / "output").read_text() == f"matrix={MATRIX}\nbuild={read_build()}\n"
    assert server.get()["log"] == []


def read_json(capsys, code, *words):
    """Run a command with --format json; standard output must hold one document and nothing else."""
    capsys.readouterr()
    assert main(["github", *words, "--format", "json"]) == code
    return orjson.loads(capsys.readouterr().out)


JOBS = orjson.loads(MATRIX)


@pytest.mark.usefixtures("server")
def test_plan_admit_jobs__as_json(tmp_path, capsys):
    event = write_event(tmp_path, {"pull_request": make_pull()})
    planned = read_json(capsys, 0, "plan", *event, "--event-name", "pull_request")
    admitted = read_json(capsys, 0, *ADMIT[1:], "--head-sha", HEAD)

    assert (planned["action"], planned["matrix"]) == ("run", JOBS)
    assert (admitted["base_sha"], admitted["matrix"]) == (LEFT_AT, JOBS)
    assert admitted["sections"] == [{"hardware": "test-gpu", "state": "planned"}]
    assert read_json(capsys, 0, "jobs") == {"matrix": JOBS, "build": read_build()}


@pytest.mark.usefixtures("server")
def test_verdict__as_json(tmp_path, capsys):
    options = ["--action", "run", "--result", "success", "--matrix", MATRIX, "--artifacts", "artifacts"]
    words = ["verdict", *options, "--pr", "7", "--head-sha", HEAD, "--base-sha", BASE, "--scenario", "unit.toml"]

    (nothing,) = read_json(capsys, 3, *words)["jobs"]
    place(tmp_path, pack(tmp_path, worse=0.2))
    (judged,) = read_json(capsys, 1, *words)["jobs"]

    assert nothing["hardware"] == "test-gpu"
    assert "handoff-unit.json" in nothing["problem"]
    assert (judged["scenario"], judged["outcome"]) == ("unit", "REGRESSION")


@pytest.mark.usefixtures("server")
def test_learn__as_json(tmp_path, capsys):
    words = ["learn", "--matrix", MATRIX, "--artifacts", "artifacts", "--head-sha", BASE]
    words += ["--to", "baselines", "--scenario", "unit.toml"]

    (missing,) = read_json(capsys, 0, *words)["jobs"]
    place(tmp_path, pack(tmp_path, head=BASE, pr=0))
    learned = read_json(capsys, 0, *words)["jobs"]

    assert "handoff-unit.json" in missing["problem"]
    assert learned == [{"hardware": "test-gpu", "scenario": "unit"}]


def test_report__as_json(server, tmp_path, capsys):
    set_run(server, pack(tmp_path, worse=0.2))
    (said,) = read_json(capsys, 0, "report", *write_event(tmp_path, make_run()), "--scenario", "unit.toml")["sections"]

    assert (said["hardware"], said["state"]) == ("test-gpu", "regression")
    assert said["comment"].startswith("https://github.example/")


@pytest.mark.usefixtures("server")
def test_command__as_json(tmp_path, capsys):
    event = write_event(tmp_path, make_comment("/perfgate run test-gpu"))

    assert read_json(capsys, 0, "command", *event) == {
        "said": f"Started test-gpu, every scenario at {HEAD}: "
        "[runs](https://github.com/o/r/actions/workflows/perfgate-dispatch.yml)."
    }


def make_answer(state="failure", run=9, context="perfgate/test-gpu"):
    url = f"https://github.com/o/r/actions/runs/{run}/attempts/1"
    return {"sha": HEAD, "context": context, "state": state, "target_url": url, "description": "x"}


def read_statuses(server):
    return [status["state"] for status in server.get()["statuses"]]


@pytest.mark.parametrize("pull", [make_pull(label="docs"), {**make_pull(), "draft": True}], ids=["label", "draft"])
@pytest.mark.parametrize(("worse", "last"), [(0.0, "success"), (0.2, "failure")])
def test_attack__a_regression_under_a_label_or_draft(server, tmp_path, pull, worse, last):
    """The label goes, or the pull request becomes a draft, while it is measured: what was measured is said all the same."""
    set_run(server, pack(tmp_path, worse=worse))
    report(tmp_path, make_run("in_progress"))
    server.set(pulls={"7": pull})

    assert report(tmp_path, make_run()) == 0
    assert read_statuses(server) == ["pending", last]
    assert read_sections(server) == {"test-gpu": {"success": "pass", "failure": "regression"}[last]}


def test_attack__a_success_for_a_draft(server, tmp_path):
    """It would stand until the first report after the draft is ready, and merging at once is one click."""
    server.set(pulls={"7": {**make_pull("mallory/r"), "draft": True}}, jobs=make_jobs("success", "skipped"))

    assert report(tmp_path, make_run(head_repository={"owner": {"login": "mallory"}, "full_name": "mallory/r"})) == 0
    assert server.get()["statuses"] == []


@pytest.mark.parametrize(("state", "code"), [("failure", 1), ("success", 0), ("pending", 0)])
@pytest.mark.parametrize("action", ["skip", "await"])
def test_attack__a_check_made_green_by_a_run_that_measures_nothing(server, state, code, action, capsys):
    """The label is taken away after a regression, and the pull request is closed and opened again."""
    server.set(statuses=[make_answer(state)])

    assert run_verdict(action=action, result="skipped") == code
    assert ("slower, as measured before" in capsys.readouterr().out) is bool(code)


@pytest.mark.parametrize("order", [1, -1])
def test_report__failed_jobs_that_were_run_again(server, tmp_path, order):
    """One job is kept from the first attempt, the other ran again; GitHub lists artifacts and jobs in an order of its own."""
    (tmp_path / ".github" / "perfgate.toml").write_text('[hardware.test-gpu]\nscenarios = ["unit", "other"]\n')
    (tmp_path / "other.toml").write_text((tmp_path / "unit.toml").read_text().replace('name = "unit"', 'name = "other"'))
    kept, again = pack(tmp_path), pack_other(tmp_path, attempt=2)
    stale = tmp_path / "stale"
    stale.write_bytes(b"{}")
    files = {
        1: ("perfgate-test-gpu-unit-1", kept),
        2: ("perfgate-test-gpu-other-1", stale),
        3: ("perfgate-test-gpu-other-2", again),
    }
    listed = [{"id": number, "name": name, "expired": False, "workflow_run": {"id": 11}} for number, (name, _) in files.items()]
    jobs = [
        {"name": "perfgate / gpu / bench test-gpu unit"},
        {"name": "perfgate / gpu / bench test-gpu other"},
        {"name": "perfgate / gpu / bench test-gpu other", "run_attempt": 2},
    ]
    server.set(
        jobs={"11": jobs[::order]},
        runs={"11": listed[::order]},
        artifacts={str(number): f"/store/{number}" for number in files},
        files={f"/store/{number}": zip_base64(path) for number, (_, path) in files.items()},
    )
    options = ["--scenario", "unit.toml", "--scenario", "other.toml"]

    assert main(["github", "report", *write_event(tmp_path, make_run(run_attempt=2)), *options]) == 0
    assert read_sections(server) == {"test-gpu": "pass"}
    server.set(statuses=[], comments=[])
    assert main(["github", "report", *write_event(tmp_path, make_run(run_attempt=1)), *options]) == 0
    assert read_sections(server) == {"test-gpu": "invalid"}


def pack_other(tmp_path, attempt):
    """The same session as one of the scenario `other`."""
    return pack(tmp_path, attempt=attempt, worse=0.0001, change=rename_session).with_name("handoff-other.json")


def rename_session(folder):
    record = orjson.loads((folder / "session.json").read_bytes())
    (folder / "session.json").write_bytes(orjson.dumps({**record, "scenario": "other"}))


def test_report__two_artifacts_of_one_name(server, tmp_path):
    set_run(server, pack(tmp_path))
    (one,) = server.get()["runs"]["11"]
    server.set(runs={"11": [one, {**one, "id": 6}]})

    report(tmp_path, make_run())
    assert read_sections(server) == {"test-gpu": "invalid"}
    assert "2 artifacts have the name of its hand-off" in server.get()["comments"][0]["body"]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"labels": ["ubuntu-latest"], "runner_name": "GitHub Actions 17"}, "the label self-hosted"),
        ({"labels": ["self-hosted", "linux", "perfgate", "h20"]}, "the label test-gpu"),
        ({"runner_name": "laptop"}, "its job ran on"),
    ],
)
def test_attack__a_job_that_ran_somewhere_else(server, tmp_path, facts, told):
    """A workflow file of the branch calls a job as the measuring one is called, and uploads numbers of its own."""
    set_run(server, pack(tmp_path))
    server.set(jobs={"11": [{"name": "gpu / bench test-gpu unit", **facts}]})

    report(tmp_path, make_run())
    assert read_sections(server) == {"test-gpu": "invalid"}
    assert told in server.get()["comments"][0]["body"]
    assert server.paths("GET").count("/repos/o/r/actions/artifacts/5/zip") == 0


def test_report__a_runner_that_the_settings_name(server, tmp_path):
    (tmp_path / ".github" / "perfgate.toml").write_text(SETTINGS + 'runs_on = ["perfgate-fleet"]\n')
    set_run(server, pack(tmp_path))
    server.set(jobs={"11": [{"name": "gpu / bench test-gpu unit", "labels": ["perfgate-fleet"], "runner_name": "perfgate-x"}]})

    report(tmp_path, make_run())
    assert read_sections(server) == {"test-gpu": "pass"}


def test_attack__a_section_that_another_workflow_forged(server, tmp_path):
    """The bot's name is every workflow's. A run from the future, in a comment, keeps no verdict back."""
    set_run(server, pack(tmp_path, worse=0.2))
    subject = HandoffSubject(
        repository="o/r", pull_request=7, head_sha=HEAD, run_id=9007199254740991, run_attempt=1, hardware="test-gpu"
    )
    forged = render({"test-gpu": build_section(subject, State.PASS, "2026-11-21T10:00:00Z")}, "x")
    bot = {"login": "github-actions[bot]", "type": "Bot"}
    server.set(comments=[{"id": 5, "issue": "7", "body": forged, "user": bot, "html_url": "x"}])

    assert report(tmp_path, make_run()) == 0
    assert read_sections(server) == {"test-gpu": "regression"}
    assert read_statuses(server) == ["failure"]


@pytest.mark.parametrize("fault", [{"status": 403, "body": {"message": "This issue is locked"}}, {"status": 500, "times": 99}])
def test_attack__a_comment_that_cannot_be_written(server, tmp_path, fault):
    """Locked, flooded or limited: the status stands on the commit all the same."""
    set_run(server, pack(tmp_path, worse=0.2))
    server.set(faults=[{"path": "/issues/", "times": 99, **fault}])

    assert report(tmp_path, make_run()) == 2
    assert read_statuses(server) == ["failure"]


def test_attack__a_limit_that_ends_in_an_hour(server, tmp_path, monkeypatch):
    """Other workflows of the repository used up the hour's requests: the job waits until it starts anew."""
    set_run(server, pack(tmp_path, worse=0.2))
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        server.set(limit=None)

    monkeypatch.setattr("time.sleep", sleep)
    server.set(limit={"remaining": 4, "reset": int(time.time()) + 3000})

    assert report(tmp_path, make_run()) == 0
    assert 2900 < max(waits) <= 3000
    assert read_statuses(server) == ["failure"]


def test_attack__two_commits_with_the_same_first_twelve_digits(server, tmp_path, capsys):
    """Made by search in seconds: the harmless one is shown, the other is pushed."""
    shown, pushed = "84344f802934" + "5" * 28, "84344f802934" + "7" * 28
    server.set(pulls={"7": make_pull("mallory/r", pushed)})

    for sha in (shown[:12], shown, pushed[:12], pushed[:39]):
        assert say(tmp_path, make_comment(f"/perfgate run {sha}")) == 2
    assert "all 40 digits" in capsys.readouterr().err
    assert server.get()["dispatches"] == []
    assert say(tmp_path, make_comment(f"/perfgate run {pushed}")) == 0


def test_attack__a_closed_pull_request_costs_no_gpu(server, tmp_path, capsys):
    server.set(pulls={"7": {**make_pull(), "state": "closed"}})

    assert main([*ADMIT, "--head-sha", HEAD]) == 2
    assert say(tmp_path, make_comment("/perfgate run")) == 2
    assert capsys.readouterr().err.count("pull request 7 is closed") == 2
    assert server.get()["dispatches"] == server.get()["statuses"] == []


def test_attack__a_fork_that_was_deleted(server, tmp_path):
    """GitHub names no repository of its head any more: it is a fork still, whose code takes a commit that a writer names."""
    server.set(pulls={"7": {**make_pull(), "head": {"sha": HEAD, "ref": "main", "repo": None}}})

    assert say(tmp_path, make_comment("/perfgate run")) == 2
    assert server.get()["dispatches"] == []
    assert say(tmp_path, make_comment(f"/perfgate run {HEAD}")) == 0
    assert [found["inputs"]["head_sha"] for found in server.get()["dispatches"]] == [HEAD]


@pytest.mark.parametrize(
    "reason",
    [
        "--> <img src=x> @all o/r#1",
        "<!-- perfgate:end {} --> <!-- perfgate:v1 -->",
        "[fixed](https://example.org) | GH-1 $x$",
    ],
)
def test_attack__a_reason_that_says_more_than_text(server, tmp_path, reason):
    """The bot repeats it in a comment that programs read."""
    set_run(server, pack(tmp_path, worse=0.2))
    report(tmp_path, make_run())
    fail_check(server)

    assert say(tmp_path, make_comment(f'/perfgate accept "{reason}"', "mia")) == 0
    record = next(body for body in read_replies(server) if "**Accepted**" in body)
    mark, shown = record.split("\n", 1)
    assert mark.count("<!--") == mark.count("-->") == 1
    assert mark.endswith("-->")
    assert not {found for found in ("<", "-->", "@all", "r#1", "[fixed]", "GH-1", "https://", "$x") if found in shown}


def test_command__a_name_of_a_managed_user(server, tmp_path):
    server.set(permissions={"ada_corp": "write"})

    assert say(tmp_path, make_comment("/perfgate run", "ada_corp")) == 0


def test_command__is_answered_on_the_pull_request(server, tmp_path):
    server.set(rights={"actions": "write", "contents": "read", "pull-requests": "write", "statuses": "write"})

    assert say(tmp_path, make_comment("/perfgate run test-gpu")) == 0
    assert say(tmp_path, make_comment("/perfgate run nonsense")) == 2
    assert say(tmp_path, make_comment("/perfgate run", "eve")) == 2
    started, refused = read_replies(server)
    assert "[runs](https://github.com/o/r/actions/workflows/perfgate-dispatch.yml)" in started
    assert refused.startswith("Refused: nonsense is no machine")
    assert server.get()["reactions"] == [{"comment": 77, "content": word} for word in ("+1", "confused", "confused")]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"status": 404, "path": "dispatches", "body": {"message": "Not Found"}}, "status 404: Not Found"),
        ({"status": 422, "path": "dispatches", "body": {"message": "Unexpected inputs"}}, "status 422: Unexpected inputs"),
        ({"status": 502, "path": "dispatches", "after": True}, "it may have been carried out"),
        ({"status": 404, "path": "pulls/7", "body": {"message": "Not Found"}}, "pulls/7: status 404"),
    ],
)
def test_command__what_github_refuses_is_told(server, tmp_path, capsys, fault, told):
    """Once: a dispatch that may have been carried out is not sent again, for each would measure."""
    server.set(faults=[fault])

    assert say(tmp_path, make_comment("/perfgate run")) == 2
    assert told in capsys.readouterr().err
    (refused,) = read_replies(server)
    assert told in refused
    assert [found["content"] for found in server.get()["reactions"]] == ["confused"]
    assert len(server.get()["dispatches"]) == fault.get("after", 0)


@pytest.mark.parametrize("case", [("run", 0, "Started every machine"), ("run x", 2, "x is no machine")])
def test_command__a_locked_conversation_hides_nothing_from_the_log(server, tmp_path, capsys, case):
    words, code, told = case
    server.set(faults=[{"status": 403, "method": "POST", "path": "/comments$", "body": {"message": "locked"}, "times": 9}])

    assert say(tmp_path, make_comment(f"/perfgate {words}")) == code
    said = capsys.readouterr()
    assert told in said.out
    assert ("nothing was started" in said.err) is bool(code)


def make_measuring(number, **changes):
    path = ".github/workflows/perfgate-pr.yml"
    return {"id": number, "event": "pull_request", "status": "in_progress", "head_sha": HEAD, "path": path, **changes}


def set_measuring(server, *runs):
    server.set(run_facts={str(run["id"]): run for run in runs})


@pytest.mark.parametrize("words", ["cancel", "cancel test-gpu"])
def test_command__cancel_ends_what_measures_the_head(server, tmp_path, words):
    server.set(statuses=[make_answer("pending", run=12), make_answer("failure", run=9, context="perfgate/h20")])
    set_measuring(server, make_measuring(12), make_measuring(13, head_sha=NEW), make_measuring(14, status="completed"))

    assert say(tmp_path, make_comment(f"/perfgate {words}")) == 0
    assert server.get()["cancelled"] == [12]
    server.set(statuses=[make_answer("failure")])
    set_measuring(server)
    assert say(tmp_path, make_comment(f"/perfgate {words}")) == 2
    assert "nothing of this commit is being measured" in read_replies(server)[-1]


@pytest.mark.parametrize("words", ["cancel", "cancel test-gpu"])
def test_attack__a_status_that_names_another_s_run(server, tmp_path, words):
    """Who may set a status chooses its address: a release of this repository, or text for the bot to repeat."""
    release = make_measuring(99, path=".github/workflows/release.yml", event="push")
    set_measuring(server, release, make_measuring(98, event="merge_group"))
    server.set(statuses=[make_answer("pending", run=number) for number in (98, 99)])

    assert say(tmp_path, make_comment(f"/perfgate {words}")) == 2
    assert server.get()["cancelled"] == []

    server.set(statuses=[{**make_answer("pending"), "target_url": "https://evil.example/x) @all [y](z/actions/runs/5"}])
    assert say(tmp_path, make_comment("/perfgate explain")) == 0
    assert "([run](https://github.com/o/r/actions/runs/5/attempts/1))" in read_replies(server)[-1]
    assert "evil" not in read_replies(server)[-1]


def test_command__explain_says_what_stands(server, tmp_path):
    set_run(server, pack(tmp_path, worse=0.2))
    report(tmp_path, make_run())

    assert say(tmp_path, make_comment("/perfgate explain")) == 0
    (said,) = read_replies(server)
    assert "- test-gpu: failure, slower ([run](https://github.com/o/r/actions/runs/11/attempts/1))" in said
    assert "Everything in full: [comment](https://github.example/" in said


ACCEPT = '/perfgate accept "the new router is worth it"'


def fail_check(server):
    jobs = server.get()["jobs"]["11"]
    server.set(jobs={"11": [*jobs[:2], {"name": "perfgate / perfgate verdict", "conclusion": "failure", "id": 31}]})


def test_command__accept_is_bound_to_head_metric_and_size(server, tmp_path, capsys):
    """The same loss of the same commit reads accepted, never PASS; a larger one fails again, and so does another commit."""
    artifact = pack(tmp_path, worse=0.2)
    set_run(server, artifact)
    report(tmp_path, make_run())
    fail_check(server)
    place(tmp_path, artifact)
    assert run_verdict() == 1

    assert say(tmp_path, make_comment(ACCEPT, "mia")) == 0
    record, said = read_replies(server)
    assert "**Accepted** for test-gpu at commit aaaaaaaaaaaa by mia: the new router is worth it" in record
    assert said == "Accepted for test-gpu at commit aaaaaaaaaaaa. The required check is asked again."
    assert server.get()["reruns"] == [31]
    assert server.get()["statuses"][-1]["description"] == "accepted by mia: the new router is worth it"
    assert read_statuses(server) == ["failure", "success"]

    assert run_verdict() == 0
    assert "accepted by a maintainer" in capsys.readouterr().out
    report(tmp_path, make_run())
    assert read_sections(server) == {"test-gpu": "accepted"}
    assert read_statuses(server)[-1] == "success"

    set_run(server, pack(tmp_path, worse=0.4))
    report(tmp_path, make_run())
    assert read_sections(server) == {"test-gpu": "regression"}
    assert read_statuses(server)[-1] == "failure"


@pytest.mark.parametrize(
    "case",
    [
        (ACCEPT, "ada", "accept takes one of the roles admin, maintain, and ada has write"),
        ("/perfgate accept", "mia", "in quotes"),
        ('/perfgate accept ""', "mia", "a reason of 8 to 300 characters"),
        ('/perfgate run "because I say so"', "mia", "in quotes"),
        (ACCEPT.replace("accept", f"accept {NEW}"), "mia", "the pull request is at aaaa"),
    ],
)
def test_attack__an_acceptance_that_may_not(server, tmp_path, capsys, case):
    body, login, reason = case
    set_run(server, pack(tmp_path, worse=0.2))
    report(tmp_path, make_run())

    assert say(tmp_path, make_comment(body, login)) == 2
    assert reason in capsys.readouterr().err
    assert read_statuses(server) == ["failure"]


@pytest.mark.parametrize("user", [{"login": "mallory", "type": "User"}, {"login": "github-actions[bot]", "type": "User"}, None])
def test_attack__a_planted_acceptance(server, tmp_path, user):
    artifact = pack(tmp_path, worse=0.2)
    set_run(server, artifact)
    report(tmp_path, make_run())
    say(tmp_path, make_comment(ACCEPT, "mia"))
    comments = [{**one, "user": user} if "perfgate:accepted" in one["body"] else one for one in server.get()["comments"]]
    server.set(comments=comments, statuses=[])

    report(tmp_path, make_run())
    assert read_sections(server) == {"test-gpu": "regression"}


def test_command__nothing_to_accept(server, tmp_path):
    set_run(server, pack(tmp_path))
    report(tmp_path, make_run())

    assert say(tmp_path, make_comment(ACCEPT, "mia")) == 2
    assert "nothing to accept" in read_replies(server)[-1]


def make_checkout(tmp_path):
    root = tmp_path / "adopting"
    (root / ".git").mkdir(parents=True)
    return root


def make_settings(tmp_path, text):
    """Settings that are in a checkout already."""
    settings = make_checkout(tmp_path) / ".github" / "perfgate.toml"
    settings.parent.mkdir()
    settings.write_text(text)
    return settings


def adopt(tmp_path, *more, commit=NEW, scenario="gpt-oss-20b-shape-mxfp4-mixed-c16"):
    options = ["--repository", "sgl/sglang", "--commit", commit, "--hardware", "h20", "--hardware", "h100"]
    return main(["github", "init", *options, "--to", str(tmp_path), "--scenario", scenario, *more])


@pytest.mark.parametrize("rights", [{"issues": "write"}, {}], ids=["may", "may not"])
def test_init__writes_the_files_and_says_what_a_person_must_do(server, tmp_path, capsys, rights):
    """What the documentation shows is what is written; the settings are read as the workflows read them."""
    root = make_checkout(tmp_path)
    server.set(rights=rights, labels=[])

    assert adopt(root) == 0
    said = capsys.readouterr().out
    shown = re.findall(r"```yaml\n(.*?)```", (DOCS / "how-to" / "github.md").read_text(), re.DOTALL)
    written = {path.read_text() for path in (root / ".github" / "workflows").iterdir()}
    assert written == {text.replace("@COMMIT", f"@{NEW}") for text in shown}
    assert {job.hardware for job in load_settings(root / ".github" / "perfgate.toml").list_jobs()} == {"h20", "h100"}
    assert bool(server.get()["labels"]) is bool(rights)
    assert ("Create the label perfgate: https://github.com/sgl/sglang/labels" in said) is not bool(rights)
    assert "Require the check 'perfgate / perfgate verdict' and the statuses perfgate/h100, perfgate/h20" in said
    steps = re.findall(r"^(\d+)\. .*: https://github.com/\S+$", said, re.MULTILINE)
    assert steps == [str(number) for number in range(1, len(steps) + 1)]
    assert len(steps) == (8 if rights else 9)
    (page,) = re.findall(r"/blob/main/(\S+)", said)
    assert (DOCS.parent / page).exists()
    assert adopt(root) == 0
    assert ("label perfgate: there already" in capsys.readouterr().out) is bool(rights)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"commit": "c" * 12}, "perfgate: --commit: missing or not a commit's 40 hexadecimal digits"),
        ({"scenario": "nonsense"}, "--scenario nonsense: does not ship"),
        ({"scenario": '"]\n[x'}, "not a valid name"),
        ({"scenario": "gpt-oss-20b-shape-mxfp4-tp2-closed-c16"}, "--hardware h20: gpt-oss-20b-shape-mxfp4-tp2-closed-c16"),
    ],
)
def test_init__writes_nothing_that_would_not_work(tmp_path, capsys, options, reason):
    root = make_checkout(tmp_path)

    assert adopt(root, **options) == 2
    assert reason in capsys.readouterr().err
    assert [path.name for path in root.iterdir()] == [".git"]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("name", [".github", "misspelt"])
def test_init__into_no_checkout(tmp_path, capsys, name):
    before = set(tmp_path.rglob("*"))

    assert adopt(tmp_path / name) == 2
    assert "no checkout of a git repository; give the top folder of one of sgl/sglang" in capsys.readouterr().err
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("server")
def test_init__brings_a_repository_to_another_commit(tmp_path, capsys):
    """Workflow files of the older commit are removed by a person; the settings, which a person writes, stay."""
    root = make_checkout(tmp_path)
    settings, workflows = root / ".github" / "perfgate.toml", root / ".github" / "workflows"
    adopt(root)
    settings.write_text(f"minutes = 20\n{settings.read_text()}")
    before = settings.read_text()
    capsys.readouterr()

    assert adopt(root, commit="d" * 40) == 2
    told = capsys.readouterr().err
    assert "perfgate-pr.yml: is there and says another thing (and 5 more); a file of another commit of perfgate: remove" in told
    for path in workflows.glob("perfgate-*.yml"):
        path.unlink()
    assert adopt(root, commit="d" * 40) == 0
    assert f"{settings}: there already, left as it is" in capsys.readouterr().out
    assert settings.read_text() == before
    assert all(f"@{'d' * 40}" in path.read_text() for path in workflows.iterdir())


@pytest.mark.usefixtures("server")
def test_init__names_the_machines_of_the_settings_that_it_keeps(tmp_path, capsys):
    """A required status of a machine that no settings have would never come."""
    settings = make_settings(tmp_path, '[hardware.h200]\nscenarios = ["gpt-oss-20b-shape-mxfp4-mixed-c16"]\n')

    assert adopt(settings.parents[1]) == 0
    said = capsys.readouterr().out
    assert "the statuses perfgate/h200 of the default branch" in said
    assert "A machine of each kind: h200: " in said


@pytest.mark.usefixtures("server")
def test_init__keeps_no_settings_that_it_cannot_read(tmp_path, capsys):
    settings = make_settings(tmp_path, "[hardware.h200]\nscenarios = []\n")

    assert adopt(settings.parents[1]) == 2
    assert f"{settings}: hardware.h200.scenarios: " in capsys.readouterr().err
    assert not (settings.parent / "workflows").exists()


@pytest.mark.usefixtures("server")
def test_init__overwrites_no_file(tmp_path, capsys):
    path = make_checkout(tmp_path) / ".github" / "workflows" / "perfgate-report.yml"
    path.parent.mkdir(parents=True)
    path.write_text("name: mine\n")

    assert adopt(tmp_path / "adopting") == 2
    assert "perfgate-report.yml: is there and says another thing" in capsys.readouterr().err
    assert [found.name for found in (tmp_path / "adopting").rglob("*.*") if found.is_file()] == ["perfgate-report.yml"]
