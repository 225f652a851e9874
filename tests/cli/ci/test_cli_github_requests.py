"""How many requests each kind of event costs, with two machines: GitHub gives a repository 1,000 an hour."""

from __future__ import annotations

import orjson
import pytest

from perfgate.cli import main
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
    report,
    say,
    set_run,
    write_event,
)

MOST = 13
NAMES = ("test-gpu", "h20")
REPORT = {"actions": "write", "contents": "read", "pull-requests": "write", "statuses": "write"}
COMMAND = REPORT
DISPATCH = {**REPORT, "actions": "read"}
NIGHT = {"contents": "write", "issues": "write", "pull-requests": "write"}
JOBS = orjson.dumps([{**orjson.loads(MATRIX)[0], "hardware": name, "runs_on": []} for name in NAMES]).decode()
DEAD = [{"name": "Build both arms", "status": "in_progress", "conclusion": None}]


@pytest.fixture
def server(fake_github, monkeypatch, tmp_path):
    found = prepare_server(fake_github, monkeypatch, tmp_path)
    # Between two events of a pull request minutes go by.
    times = (f"2026-11-25T18:{minute:02}:00Z" for minute in range(60))
    monkeypatch.setattr("perfgate.cli.ci.speaking.write_utc", lambda: next(times))
    (tmp_path / ".github" / "perfgate.toml").write_text(
        f'{SETTINGS}smoke = ["unit"]\n[hardware.h20]\nscenarios = ["unit"]\nsmoke = ["unit"]\n'
    )
    return found


def leave_results(server, tmp_path, worse):
    """Both machines' jobs and artifacts; the content is one hand-off, which only the first machine can have measured."""
    set_run(server, pack(tmp_path, worse=worse))
    (one,) = server.get()["runs"]["11"]
    server.set(jobs={"11": [{"name": f"gpu / bench {name} unit"} for name in NAMES]})
    server.set(runs={"11": [{**one, "name": f"perfgate-{name}-unit-1"} for name in NAMES]})


def count(server, rights, code, *steps):
    """Requests of some steps that hold `rights`; the last one is what is counted."""
    for step in steps[:-1]:
        step()
    server.set(log=[], rights=rights)
    assert steps[-1]() in code
    answers = [entry["path"] for entry in server.get()["log"] if not entry["path"].startswith("/store/")]
    server.set(rights=None)
    return len(answers)


def end(tmp_path, **changes):
    return lambda: report(tmp_path, make_run(**changes))


def fork(action):
    return make_run(action, head_repository={"owner": {"login": "mallory"}, "full_name": "mallory/r"})


QUEUE = {"event": "merge_group", "head_branch": "gh-readonly-queue/main/pr-7-abc"}


@pytest.mark.parametrize(
    ("pull", "event", "most"),
    [
        (make_pull(), ("in_progress", 0.0), 5),
        (make_pull(), ("completed", 0.0), 13),
        (make_pull(), ("completed", 0.2), 13),
        (make_pull(label="docs"), ("in_progress", None), 2),
        (make_pull(label="docs"), ("completed", None), 5),
        ({**make_pull(), "draft": True}, ("completed", None), 2),
    ],
    ids=["begin", "end", "slower", "unlabelled begin", "unlabelled end", "draft end"],
)
def test_report__requests_of_a_pull_request(server, tmp_path, pull, event, most):
    action, worse = event
    server.set(pulls={"7": pull}, jobs=make_jobs("success", "skipped"))
    if worse is not None:
        leave_results(server, tmp_path, worse)

    assert count(server, REPORT, {0}, end(tmp_path, action=action)) == most <= MOST


@pytest.mark.parametrize("merge_bases", [{f"main...{HEAD}": LEFT_AT}, {}], ids=["paths known", "no answer"])
def test_report__requests_where_paths_choose_the_scenarios(server, tmp_path, merge_bases):
    """One answer tells the paths and the commit that was compared with."""
    settings = tmp_path / ".github" / "perfgate.toml"
    settings.write_text("minutes = 15\n" + settings.read_text())
    server.set(merge_bases=merge_bases)
    leave_results(server, tmp_path, 0.0)

    assert count(server, REPORT, {0}, end(tmp_path)) == MOST


@pytest.mark.parametrize(("action", "most"), [("in_progress", 9), ("completed", 4)])
def test_report__requests_of_a_fork(server, tmp_path, action, most):
    """The first of both events writes the comment."""
    server.set(pulls={"7": make_pull("mallory/r")}, jobs=make_jobs("success", "skipped"))
    step = lambda name: lambda: main(["github", "report", *write_event(tmp_path, fork(name)), "--scenario", "unit.toml"])  # noqa: E731
    before = [step("in_progress")] if action == "completed" else []

    assert count(server, REPORT, {0}, *before, step(action)) == most <= MOST


@pytest.mark.parametrize(("action", "most"), [("in_progress", 3), ("completed", 8)])
def test_report__requests_of_the_merge_queue(server, tmp_path, action, most):
    leave_results(server, tmp_path, 0.0)

    assert count(server, REPORT, {0}, end(tmp_path, action=action, **QUEUE)) == most <= MOST


def test_report__requests_of_what_a_push_overtook(server, tmp_path):
    """However many there are."""
    runs = {
        str(number): {
            "id": number,
            "display_title": f"perfgate measure #7 {NEW}",
            "status": "queued",
            "event": "workflow_dispatch",
            "path": ".github/workflows/perfgate-dispatch.yml",
        }
        for number in range(50, 70)
    }
    server.set(run_facts=runs)

    assert count(server, REPORT, {0}, end(tmp_path, action="in_progress")) <= MOST
    assert count(server, COMMAND, {0}, lambda: say(tmp_path, make_comment("/perfgate run"))) <= MOST
    assert count(server, COMMAND, {0}, lambda: say(tmp_path, make_comment("/perfgate cancel"))) <= MOST


def test_report__requests_of_a_runner_that_died(server, tmp_path):
    jobs = [{"name": f"gpu / bench {name} unit", "steps": DEAD, "conclusion": "failure"} for name in NAMES]
    server.set(jobs={"11": jobs}, runs={"11": []})

    assert count(server, REPORT, {0}, end(tmp_path)) <= MOST
    assert server.get()["rerun_runs"] == [11]
    title = f"perfgate measure #7 {HEAD}"
    dispatched = make_run(event="workflow_dispatch", head_sha=BASE, head_branch="main", display_title=title)
    assert count(server, REPORT, {0}, lambda: report(tmp_path, dispatched)) <= 4


@pytest.mark.parametrize("worse", [0.0, 0.2])
def test_publish__requests_of_a_dispatched_measurement(server, tmp_path, worse):
    leave_results(server, tmp_path, worse)

    admit = ["github", "admit", "--pr", "7", "--head-sha", HEAD]
    assert count(server, DISPATCH, {0}, lambda: main(admit)) == 5
    assert count(server, DISPATCH, {0}, lambda: main([*PUBLISH, "--matrix", JOBS])) == MOST


def test_answer__requests_of_a_comparison_and_a_search(server, tmp_path):
    leave_results(server, tmp_path, 0.2)
    words = ["--pr", "7", "--head-sha", HEAD, "--base-sha", BASE, "--scenario", "unit.toml"]

    for task, matrix, admitted, answered in (("compare", JOBS, 1, 6), ("bisect", MATRIX, 2, 3)):
        admit = ["github", "admit", "--pr", "7", "--head-sha", HEAD, "--task", task, "--hardware", "h20"]
        admit += ["--base-sha", BASE] if task == "compare" else []
        assert count(server, DISPATCH, {0}, lambda admit=admit: main(admit)) == admitted
        step = ["github", "answer", "--task", task, *words, "--matrix", matrix]
        assert count(server, DISPATCH, {0}, lambda step=step: main(step)) == answered


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ("run", 6),
        ("rerun h20", 6),
        ("compare main v0.5", 8),
        ("bisect h20 unit", 6),
        ("cancel", 7),
        ("explain", 6),
        ('accept "the router is worth it"', 10),
    ],
)
def test_command__requests_of_each(server, tmp_path, body, most):
    """Where both machines found the commit slower, or measure it."""
    leave_results(server, tmp_path, 0.2)
    report(tmp_path, make_run())
    statuses = [
        {**found, "state": "pending" if body == "cancel" else "failure"}
        for found in server.get()["statuses"]
        if found["context"]
    ]
    jobs = [*server.get()["jobs"]["11"], {"name": "perfgate verdict", "conclusion": "failure", "id": 31}]
    measures = {"id": 11, "path": ".github/workflows/perfgate-pr.yml", "event": "pull_request", "head_sha": HEAD}
    server.set(statuses=statuses, jobs={"11": jobs}, refs={"heads/main": BASE, "tags/v0.5": NEW}, run_facts={"11": measures})
    comments = server.get()["comments"]
    if body.startswith("accept"):
        server.set(statuses=[found for found in statuses if found["context"] == "perfgate/test-gpu"], comments=comments)

    assert count(server, COMMAND, {0}, lambda: say(tmp_path, make_comment(f"/perfgate {body}", "mia"))) == most <= MOST


@pytest.mark.parametrize("worse", [0.0, 0.2])
def test_verdict__requests_of_the_check(server, tmp_path, worse):
    """One for what was accepted, however many jobs were slower."""
    artifact = pack(tmp_path, worse=worse)
    for name in NAMES:
        folder = tmp_path / "artifacts" / f"perfgate-{name}-unit-1"
        folder.mkdir(parents=True)
        (folder / artifact.name).write_bytes(artifact.read_bytes())
    words = ["--action", "run", "--result", "success", "--matrix", JOBS, "--artifacts", "artifacts", "--pr", "7"]
    step = ["github", "verdict", *words, "--head-sha", HEAD, "--base-sha", BASE, "--scenario", "unit.toml"]

    assert count(server, {"pull-requests": "read", "statuses": "read"}, {1, 3}, lambda: main(step)) == bool(worse)


def test_umbrella__requests_of_a_night(server, tmp_path):
    """Opened, updated, closed."""
    counts = []
    for number, slower in enumerate(("a", "b", "")):
        jobs = [
            {"hardware": name, "scenario": "unit", **({"slower": slower, "problem": "x"} if slower else {})} for name in NAMES
        ]
        (tmp_path / "lessons.json").write_bytes(orjson.dumps({"jobs": jobs}))
        step = ["github", "umbrella", "--lessons", "lessons.json", "--head-sha", HEAD, "--run-id", str(number + 1)]
        counts.append(count(server, NIGHT, {0}, lambda step=step: main(step)))

    assert counts == [3, 2, 2]
    assert [issue["state"] for issue in server.get()["issues"]] == ["closed"]
