"""A pull request at the fake GitHub, what a run of its workflow left there, and the steps of the workflows as typed."""

from __future__ import annotations

import base64
import io
import zipfile

import orjson

from perfgate.cli import main
from perfgate.github.comment.sections import parse
from tests.fakes.sessions import SCENARIO_TEXT, make_scenario, make_session, write_folder

HEAD, BASE, NEW, LEFT_AT = "a" * 40, "b" * 40, "c" * 40, "d" * 40
SCENARIO = make_scenario()
SETTINGS = '[hardware.test-gpu]\nscenarios = ["unit"]\n'


def make_pull(repository="o/r", head=HEAD, label="perfgate"):
    return {
        "number": 7,
        "state": "open",
        "draft": False,
        "labels": [{"name": label}],
        "head": {"sha": head, "ref": "topic", "repo": {"full_name": repository}},
        "base": {"sha": BASE, "ref": "main", "repo": {"full_name": "o/r", "default_branch": "main"}},
    }


def prepare_server(fake_github, monkeypatch, tmp_path):
    """A pull request of a branch, its people, and a job's surroundings."""
    fake_github.set(faults=[], log=[], comments=[], statuses=[], dispatches=[], jobs={}, runs={}, artifacts={}, files={})
    fake_github.set(limit=None, rights=None, rerun_runs=[], refs={}, commits={}, run_facts={}, issues=[], ahead_by=3)
    fake_github.set(workflows={}, changed=[])
    fake_github.set(
        pulls={"7": make_pull()},
        permissions={"ada": "write", "eve": "read", "mia": "maintain"},
        reactions=[],
        reruns=[],
        cancelled=[],
        merge_bases={f"main...{HEAD}": LEFT_AT},
    )
    for name, value in {
        "GITHUB_API_URL": fake_github.url,
        "GITHUB_TOKEN": "t0ken",
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_RUN_ID": "11",
        "GITHUB_RUN_ATTEMPT": "1",
        "GITHUB_REF": "refs/heads/main",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "PERFGATE_STATE": str(tmp_path / "state"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".github").mkdir()
    (tmp_path / ".github" / "perfgate.toml").write_text(SETTINGS)
    (tmp_path / "unit.toml").write_text(SCENARIO_TEXT + "[equivalence]\nenabled = false\n")
    return fake_github


def pack(tmp_path, *, worse=0.0, head=HEAD, run=11, attempt=1, pr=7, change=None, hardware="test-gpu", options=()):
    """Measure and pack, as the GPU job does; return the artifact's file."""
    folder = write_folder(
        tmp_path / f"measured-{worse}-{run}-{len(list(tmp_path.glob('measured-*')))}", make_session(SCENARIO, worse=worse)
    )
    if change:
        change(folder)
    identity = ["--repository", "o/r", "--pr", str(pr), "--head-sha", head, "--run-id", str(run), "--run-attempt", str(attempt)]
    words = [*identity, "--hardware", hardware, *options]
    assert main(["handoff", "pack", str(folder), "-o", str(tmp_path / "packed"), *words]) == 0
    return tmp_path / "packed" / "handoff-unit.json"


def zip_base64(path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(path, path.name)
    return "base64:" + base64.b64encode(buffer.getvalue()).decode()


def read_sections(server):
    return {
        name: section.entry.state.value
        for comment in server.get()["comments"]
        for name, section in parse(comment["body"]).items()
    }


def write_event(tmp_path, payload):
    (tmp_path / "event.json").write_bytes(orjson.dumps(payload))
    return ["--event", str(tmp_path / "event.json")]


MATRIX = '[{"hardware":"test-gpu","scenario":"unit","runs_on":["self-hosted","linux","perfgate","test-gpu"]}]'
PUBLISH = ["github", "publish", "--pr", "7", "--head-sha", HEAD, "--scenario", "unit.toml"]


def make_run(action="completed", **changes):
    run = {
        "id": 11,
        "run_attempt": 1,
        "event": "pull_request",
        "head_sha": HEAD,
        "head_branch": "topic",
        "head_repository": {"owner": {"login": "o"}, "full_name": "o/r"},
        "conclusion": "success",
        "pull_requests": [],
    }
    repository = {"full_name": "o/r", "default_branch": "main"}
    return {"action": action, "repository": repository, "workflow_run": {**run, **changes}}


def set_run(server, artifact=None, *, steps=(), name="perfgate-test-gpu-unit-1", **facts):
    """What a finished run left at GitHub."""
    jobs = [{"name": "plan"}, {"name": "gpu / bench test-gpu unit", "steps": list(steps)}, {"name": "perfgate verdict"}]
    server.set(jobs={"11": jobs})
    if artifact:
        found = {"id": 5, "name": name, "expired": False, "workflow_run": {"id": 11}, **facts}
        server.set(runs={"11": [found]}, artifacts={"5": "/store/5"}, files={"/store/5": zip_base64(artifact)})


def report(tmp_path, payload):
    return main(["github", "report", *write_event(tmp_path, payload), "--scenario", "unit.toml"])


def make_jobs(plan, gpu, *more):
    return {"11": [{"name": "perfgate / plan", "conclusion": plan}, {"name": "perfgate / gpu", "conclusion": gpu}, *more]}


def make_comment(body, login="ada", **changes):
    issue = {"number": 7, "pull_request": {"url": "x"}}
    event = {"action": "created", "issue": issue, "comment": {"id": 77, "body": body, "user": {"login": login}}}
    return {**event, "repository": {"full_name": "o/r", "default_branch": "main"}, **changes}


def say(tmp_path, payload):
    return main(["github", "command", *write_event(tmp_path, payload)])


def read_replies(server):
    return [comment["body"] for comment in server.get()["comments"] if not comment["body"].startswith("<!-- perfgate:v1")]
