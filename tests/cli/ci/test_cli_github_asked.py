"""Comparisons and searches that a comment asks for, what a newer commit overtakes, and runs that are run again."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import yaml

from perfgate.bisection.search import Ending
from perfgate.cli import main
from perfgate.github.comment.sections import parse
from tests.fakes.github.pull_requests import (
    BASE,
    HEAD,
    LEFT_AT,
    MATRIX,
    NEW,
    SETTINGS,
    make_comment,
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

ROOT = Path(__file__).parents[3]
REFS = {"heads/main": BASE, "heads/topic": HEAD, "tags/v0.5": LEFT_AT, NEW: NEW, HEAD: HEAD}
TITLE = "perfgate measure #7 "


@pytest.fixture
def server(fake_github, monkeypatch, tmp_path):
    return prepare_server(fake_github, monkeypatch, tmp_path)


def read_inputs(server):
    return [found["inputs"] for found in server.get()["dispatches"]]


@pytest.mark.parametrize(
    ("words", "base", "candidate"),
    [("main topic", BASE, HEAD), ("v0.5 main test-gpu unit", LEFT_AT, BASE), (f"main {NEW}", BASE, NEW)],
)
def test_compare__two_commits_are_dispatched(server, tmp_path, words, base, candidate):
    """Branches and tags are commits from the moment on that the command is read."""
    server.set(refs=REFS)

    assert say(tmp_path, make_comment(f"/perfgate compare {words}")) == 0
    (inputs,) = read_inputs(server)
    assert (inputs["task"], inputs["base_sha"], inputs["head_sha"]) == ("compare", base, candidate)
    assert inputs["asked_by"] == "ada"
    (said,) = read_replies(server)
    assert f"{candidate} with {base}" in said
    assert "/actions/workflows/perfgate-dispatch.yml)" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("main main", "are the same commit"),
        ("main nowhere", "is no commit with all its digits, and no branch or tag"),
        ("main refs/pull/7/head", "no branch or tag of o/r"),
        ("main pull/7/head", "no branch or tag of o/r"),
        (f"main {HEAD[:12]}", "names a commit by half"),
        (f"main {'9' * 40}", "is no commit with all its digits"),
        ("main topic h20", "h20 is no machine"),
        (f"main topic {HEAD}", "second sha"),
        ("main", "no such command"),
        ("main ../../x", "no such command"),
        ("main a..b", "is no branch, tag or commit"),
    ],
)
def test_attack__a_comparison_of_an_unnamed_commit(server, tmp_path, capsys, words, told):
    """A ref that GitHub makes for a pull request holds a fork's code, and half of a commit names two."""
    server.set(refs={**REFS, "refs/pull/7/head": NEW, "pull/7/head": NEW})

    assert say(tmp_path, make_comment(f"/perfgate compare {words}")) == 2
    assert told in capsys.readouterr().err
    assert read_inputs(server) == []


def test_cancel__runs_that_are_no_list(server, tmp_path):
    server.set(faults=[{"method": "GET", "path": "/runs$", "status": 200, "body": {"workflow_runs": 5}, "times": 9}])

    assert say(tmp_path, make_comment("/perfgate cancel")) == 2
    assert read_replies(server) == ["Refused: nothing of this commit is being measured"]


def answer(task, **options):
    words = {"pr": "7", "head-sha": HEAD, "base-sha": BASE, "matrix": MATRIX, "scenario": "unit.toml", **options}
    return main(["github", "answer", "--task", task, *(part for name, value in words.items() for part in (f"--{name}", value))])


@pytest.mark.parametrize(("worse", "word"), [(0.0, "PASS"), (0.2, "REGRESSION")])
def test_answer__a_comparison_in_a_comment_of_its_own(server, tmp_path, worse, word):
    set_run(server, pack(tmp_path, worse=worse, head=NEW))

    assert answer("compare", **{"head-sha": NEW}) == 0
    (said,) = read_replies(server)
    assert f"[`{NEW[:12]}`](https://github.com/o/r/commit/{NEW}) with [`{BASE[:12]}`]" in said
    assert word in said
    assert "(test-gpu)" in said
    assert parse(said) == {}


@pytest.mark.parametrize("worse", [0.0, 0.2])
def test_attack__a_comparison_that_answers_for_a_pull_request(server, tmp_path, worse):
    """A writer names an easier base, or the head against itself: neither the status nor the section moves."""
    set_run(server, pack(tmp_path, worse=0.3))
    report(tmp_path, make_run())
    before = (server.get()["statuses"], read_sections(server))
    set_run(server, pack(tmp_path, worse=worse))

    assert answer("compare", **{"base-sha": NEW}) == 0
    assert (server.get()["statuses"], read_sections(server)) == before


def test_admit__a_comparison_announces_nothing(server, tmp_path):
    admit = ["github", "admit", "--pr", "7", "--head-sha", NEW, "--task", "compare"]
    assert main([*admit, "--base-sha", BASE]) == 0
    written = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
    assert (written["head_sha"], written["base_sha"], written["task"]) == (NEW, BASE, "compare")
    assert server.get()["statuses"] == []

    assert main(admit) == 2
    assert main(["github", "admit", "--pr", "7", "--head-sha", HEAD, "--base-sha", BASE]) == 2


def test_bisect__the_pull_request_is_searched(server, tmp_path):
    """On request, at the priority of the night; the head is the one that was asked for."""
    (tmp_path / ".github" / "perfgate.toml").write_text(f"priorities = true\n{SETTINGS}")

    assert say(tmp_path, make_comment("/perfgate bisect")) == 0
    (inputs,) = read_inputs(server)
    assert (inputs["task"], inputs["head_sha"], inputs["base_sha"]) == ("bisect", HEAD, "")
    assert f"Started a search of 3 commits, from {LEFT_AT} to {HEAD}, on test-gpu, unit" in read_replies(server)[0]
    assert main(["github", "admit", "--pr", "7", "--head-sha", HEAD, "--task", "bisect"]) == 0
    written = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
    assert (written["base_sha"], written["task"]) == (LEFT_AT, "bisect")
    assert orjson.loads(written["matrix"])[0]["runs_on"][-1] == "perfgate-night"
    assert server.get()["statuses"] == []


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"ahead_by": 1}, "is the only commit since"),
        ({"pulls": {"7": make_pull(head=NEW)}, "merge_bases": {}}, "cannot be known"),
    ],
)
def test_bisect__nothing_to_search(server, tmp_path, capsys, facts, told):
    server.set(**facts)

    assert say(tmp_path, make_comment("/perfgate bisect")) == 2
    assert told in capsys.readouterr().err
    assert read_inputs(server) == []


def test_bisect__names_what_it_could_search(server, tmp_path):
    (tmp_path / ".github" / "perfgate.toml").write_text(SETTINGS + '[hardware.h20]\nscenarios = ["unit"]\n')

    assert say(tmp_path, make_comment("/perfgate bisect")) == 2
    assert "name one of" in read_replies(server)[-1]
    assert say(tmp_path, make_comment("/perfgate bisect h20")) == 0


def test_attack__a_search_through_a_fork_s_commits(server, tmp_path, capsys):
    """What its diff shows is the last commit; the search would run those before it as well."""
    server.set(pulls={"7": make_pull("mallory/r")})

    assert say(tmp_path, make_comment(f"/perfgate bisect {HEAD}")) == 2
    assert main(["github", "admit", "--pr", "7", "--head-sha", HEAD, "--task", "bisect"]) == 2
    assert capsys.readouterr().err.count("a fork's commits are not searched") == 2
    assert read_inputs(server) == []


FOUND = {
    "outcome": "FOUND",
    "meaning": "this commit made it slower",
    "reason": "@everybody, look",
    "culprit": NEW,
    "command": "rm -rf /",
    "confidence": 0.95,
    "credible": [NEW],
    "metric": "output_tok_per_s",
    "good": BASE,
    "bad": HEAD,
    "minutes": 34.2,
    "blocks": 9,
    "commits": [{"commit": NEW, "change": -0.062, "subject": "<script>"}],
}


def set_search(server, tmp_path, name="handoff-search.json", **changes):
    (tmp_path / name).write_bytes(orjson.dumps({**FOUND, **changes}))
    found = {"id": 6, "name": "perfgate-search-test-gpu-unit-1", "expired": False, "workflow_run": {"id": 11}}
    labels = {"labels": ["self-hosted", "linux", "perfgate", "test-gpu"], "runner_name": "perfgate-host-0-1"}
    server.set(runs={"11": [found]}, artifacts={"6": "/store/6"}, files={"/store/6": zip_base64(tmp_path / name)})
    server.set(jobs={"11": [{"name": "search / search test-gpu unit", **labels}]}, commits={"7": ["5" * 40, NEW, HEAD]})


def test_answer__a_search_names_the_commit(server, tmp_path):
    set_search(server, tmp_path)

    assert answer("bisect") == 0
    (said,) = read_replies(server)
    assert said.startswith(f"**FOUND**: [`{NEW[:12]}`](https://github.com/o/r/commit/{NEW}) made it slower: ")
    assert "-6.2 %; 95 % sure or more" in said
    assert "test-gpu, unit, [run](https://github.com/o/r/actions/runs/11); 34 GPU-minutes, 9 blocks" in said
    assert not any(word in said for word in ("everybody", "script", "rm -rf"))
    assert server.get()["statuses"] == []


@pytest.mark.parametrize("ending", [ending for ending in Ending if ending is not Ending.FOUND])
def test_answer__a_search_that_named_no_commit(server, tmp_path, ending):
    set_search(server, tmp_path, outcome=ending.value, culprit=None, credible=[NEW, HEAD])

    assert answer("bisect") == 0
    assert f"one of [`{NEW[:12]}`]" in read_replies(server)[0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"culprit": "9" * 40}, "none of the pull request's"),
        ({"credible": ["9" * 40]}, "none of the pull request's"),
        ({"good": NEW}, "none of the pull request's"),
        ({"bad": NEW}, "none of the pull request's"),
        ({"culprit": None}, "contradict each other"),
        ({"outcome": "NO_DIFFERENCE"}, "contradict each other"),
        ({"culprit": "[x](https://evil)"}, "culprit"),
        ({"metric": "<b>"}, "metric"),
        ({"minutes": 1e99}, "minutes"),
        ({"commits": [{"commit": NEW, "change": "much"}]}, "commits.0.change"),
        ({"credible": [NEW] * 1001}, "credible"),
        ({"name": "../x.json"}, "its name is not"),
    ],
)
def test_attack__a_search_result_that_says_more_than_it_may(server, tmp_path, changes, told):
    """The job that searches runs the change's code, and writes what it likes."""
    (tmp_path / "sub").mkdir()
    name = changes.pop("name", None)
    set_search(server, tmp_path, **changes)
    if name:
        (tmp_path / "x.json").write_bytes(orjson.dumps(FOUND))
        server.set(files={"/store/6": zip_base64(tmp_path / "x.json")})

    assert answer("bisect") == 0
    (said,) = read_replies(server)
    assert said.startswith("The search ended without an answer: ")
    assert told in said
    assert "evil" not in said


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"jobs": {"11": []}}, "no job ran"),
        ({"runs": {"11": []}}, "left no result"),
        ({"jobs": {"11": [{"name": "search test-gpu unit", "labels": ["ubuntu-24.04"]}]}}, "did not ask for a runner"),
    ],
)
def test_answer__a_search_that_left_nothing(server, tmp_path, facts, told):
    set_search(server, tmp_path)
    server.set(**facts)

    assert answer("bisect") == 0
    assert told in read_replies(server)[0]


@pytest.mark.parametrize("verb", ["run", "rerun", "compare main topic", "bisect", "cancel", "explain", 'accept "long enough"'])
@pytest.mark.parametrize("login", ["eve", "nobody"])
def test_attack__a_command_without_write_access(server, tmp_path, verb, login):
    server.set(refs=REFS)

    assert say(tmp_path, make_comment(f"/perfgate {verb}", login)) == 2
    state = server.get()
    assert state["dispatches"] == state["cancelled"] == state["comments"] == state["statuses"] == []


def make_dispatched(number, sha=NEW, *, task="measure", pull=7, status="in_progress", event="workflow_dispatch"):
    title = f"perfgate {task} #{pull} {sha}"
    path = ".github/workflows/perfgate-dispatch.yml"
    return {"id": number, "display_title": title, "status": status, "event": event, "path": path, "head_sha": BASE}


RUNS = [
    make_dispatched(21),
    make_dispatched(22, status="queued"),
    make_dispatched(23, task="bisect"),
    make_dispatched(31, HEAD),
    make_dispatched(32, pull=8),
    make_dispatched(33, status="completed"),
    make_dispatched(34, task="compare"),
    make_dispatched(35, event="merge_group"),
    {**make_dispatched(36), "path": ".github/workflows/perfgate-pr.yml", "event": "merge_group"},
    {**make_dispatched(37), "display_title": f"perfgate measure #7 {NEW} and more"},
    {**make_dispatched(38), "display_title": None},
]


def set_runs(server, runs):
    server.set(run_facts={str(run["id"]): run for run in runs})


@pytest.mark.parametrize("label", ["perfgate", "docs"])
def test_report__a_push_ends_what_measures_an_older_head(server, tmp_path, capsys, label):
    """Queued or running; not the head's own, another pull request's, a comparison, and never one of the merge queue."""
    server.set(pulls={"7": make_pull(label=label)})
    set_runs(server, RUNS)

    assert report(tmp_path, make_run("in_progress")) == 0
    assert server.get()["cancelled"] == [21, 22, 23]
    assert "run 21 measured an older head: cancelled" in capsys.readouterr().err


def test_report__what_ended_meanwhile_is_no_fault(server, tmp_path):
    set_runs(server, [make_dispatched(21)])
    server.set(faults=[{"method": "POST", "path": "runs/21/cancel", "status": 409, "body": {"message": "completed"}}])

    assert report(tmp_path, make_run("in_progress")) == 0
    assert [status["state"] for status in server.get()["statuses"]] == ["pending"]


def test_report__what_cannot_be_cancelled_keeps_no_status_back(server, tmp_path, capsys):
    server.set(rights={"contents": "read", "pull-requests": "write", "statuses": "write"})

    assert report(tmp_path, make_run("in_progress")) == 0
    assert "was not cancelled" in capsys.readouterr().err
    assert [status["state"] for status in server.get()["statuses"]] == ["pending"]


def test_report__the_merge_queue_cancels_nothing(server, tmp_path):
    set_runs(server, RUNS)
    queue = make_run("in_progress", event="merge_group", head_branch="gh-readonly-queue/main/pr-7-abc")
    (tmp_path / ".github" / "perfgate.toml").write_text(f'{SETTINGS}smoke = ["unit"]\n')

    assert report(tmp_path, queue) == 0
    assert server.get()["cancelled"] == []


def test_command__run_ends_what_measures_an_older_head(server, tmp_path):
    set_runs(server, RUNS)

    assert say(tmp_path, make_comment("/perfgate run")) == 0
    assert server.get()["cancelled"] == [21, 22, 23]
    assert "Cancelled, as it measured an older head: 21, 22, 23." in read_replies(server)[0]


def test_command__cancel_ends_comparisons_and_searches_too(server, tmp_path):
    set_runs(server, RUNS)
    server.set(statuses=[])

    assert say(tmp_path, make_comment("/perfgate cancel")) == 0
    assert server.get()["cancelled"] == [21, 22, 23, 31, 34]


DISPATCH = yaml.safe_load((ROOT / ".github" / "workflows" / "perfgate-dispatch.yml").read_text())


@pytest.mark.parametrize(
    ("rules", "alive"),
    [
        (DISPATCH["concurrency"], ["in_progress", "queued", "queued"]),
        ({**DISPATCH["concurrency"], "queue": None}, ["in_progress", "completed", "queued"]),
    ],
    ids=["as the file has it", "one pending, as GitHub does by default"],
)
def test_command__three_requests_wait_for_one_machine(server, tmp_path, rules, alive):
    """By default the third would push the second out, and its author would wait for ever."""
    server.set(workflows={"perfgate-dispatch.yml": {"run-name": DISPATCH["run-name"], "concurrency": rules}}, refs=REFS)

    for words in ("main topic", "v0.5 topic", "v0.5 main"):
        assert say(tmp_path, make_comment(f"/perfgate compare {words} test-gpu")) == 0
    runs = server.get()["run_facts"]
    assert [run["status"] for run in runs.values()] == alive

    assert say(tmp_path, make_comment("/perfgate cancel")) == 0
    ended = server.get()
    assert {run["status"] for run in ended["run_facts"].values()} == {"completed"}
    assert ended["cancelled"] == [int(number) for number, run in runs.items() if run["status"] != "completed"]


DONE = {"status": "completed", "conclusion": "success"}
FAILED = {"status": "completed", "conclusion": "failure"}
OPEN = {"status": "in_progress", "conclusion": None}
WAITS = {"status": "queued", "conclusion": None}
FIT = "The machine is fit to measure"
DIED = {
    "nothing began": [],
    "set up": [{"name": "Set up job", **OPEN}],
    "built": [
        {"name": FIT, **DONE},
        {"name": "Build both arms", **OPEN},
        {"name": "Measure", **WAITS},
    ],
}
ENDED = {
    "measured": [{"name": "Build both arms", **DONE}, {"name": "Measure", **OPEN}],
    "measured and died later": [{"name": "Measure", **DONE}, {"name": "Hand over", **OPEN}],
    "did not build": [
        {"name": "Build both arms", **FAILED},
        {"name": "Measure", **WAITS},
    ],
    "ended": [{"name": "Set up job", **DONE}],
    "sick": [{"name": FIT, **FAILED}],
}


def set_failed(server, steps, *more, attempt=1, conclusion="failure"):
    job = {"name": "gpu / bench test-gpu unit", "steps": steps, "conclusion": conclusion, "run_attempt": attempt}
    verdict = {"name": "perfgate verdict", "conclusion": "failure"}
    server.set(jobs={"11": [{"name": "plan", "conclusion": "success"}, job, *more, verdict]}, runs={"11": []})


@pytest.mark.parametrize("steps", DIED.values(), ids=DIED)
def test_report__a_runner_that_died_is_tried_again_once(server, tmp_path, capsys, steps):
    set_failed(server, steps)

    assert report(tmp_path, make_run()) == 0
    assert server.get()["rerun_runs"] == [11]
    assert read_sections(server) == {"test-gpu": "planned"}
    assert [status["state"] for status in server.get()["statuses"]] == ["pending"]
    assert "its runner died before it measured; run again" in capsys.readouterr().err
    assert "It is run again, once, by itself." in server.get()["comments"][0]["body"]

    set_failed(server, steps, attempt=2)
    assert report(tmp_path, make_run(run_attempt=2)) == 0
    assert server.get()["rerun_runs"] == [11]
    assert read_sections(server) == {"test-gpu": "invalid"}
    assert "its runner died before it measured" in server.get()["comments"][0]["body"]


@pytest.mark.parametrize("steps", ENDED.values(), ids=ENDED)
def test_report__a_job_that_measured_or_failed_is_never_tried_again(server, tmp_path, steps):
    set_failed(server, steps)

    assert report(tmp_path, make_run()) == 0
    assert server.get()["rerun_runs"] == []


def test_report__a_cancelled_job_is_not_tried_again(server, tmp_path):
    set_failed(server, DIED["built"], conclusion="cancelled")

    assert report(tmp_path, make_run()) == 0
    assert server.get()["rerun_runs"] == []


def test_report__an_artifact_is_proof_that_it_measured(server, tmp_path):
    set_run(server, pack(tmp_path), steps=DIED["built"])
    jobs = [{**job, "conclusion": "failure"} for job in server.get()["jobs"]["11"]]
    server.set(jobs={"11": jobs})

    assert report(tmp_path, make_run()) == 0
    assert server.get()["rerun_runs"] == []
    assert read_sections(server) == {"test-gpu": "pass"}


def test_report__another_job_that_failed_is_not_run_again_with_it(server, tmp_path):
    (tmp_path / ".github" / "perfgate.toml").write_text(SETTINGS + '[hardware.h20]\nscenarios = ["unit"]\n')
    set_failed(server, DIED["built"], {"name": "gpu / bench h20 unit", "steps": ENDED["measured"], "conclusion": "failure"})

    assert report(tmp_path, make_run()) == 0
    assert server.get()["rerun_runs"] == []
    assert read_sections(server) == {"test-gpu": "invalid", "h20": "invalid"}


def test_report__the_other_machine_speaks_while_one_is_tried_again(server, tmp_path):
    (tmp_path / ".github" / "perfgate.toml").write_text(SETTINGS + '[hardware.h20]\nscenarios = ["unit"]\n')
    set_run(server, pack(tmp_path, worse=0.2))
    died = {"name": "gpu / bench h20 unit", "steps": DIED["built"], "conclusion": "failure"}
    server.set(jobs={"11": [*server.get()["jobs"]["11"], died]})

    assert report(tmp_path, make_run()) == 0
    assert server.get()["rerun_runs"] == [11]
    assert read_sections(server) == {"test-gpu": "regression", "h20": "planned"}


def test_report__what_cannot_be_run_again_says_so(server, tmp_path, capsys):
    set_failed(server, DIED["built"])
    server.set(faults=[{"method": "POST", "path": "rerun-failed-jobs", "status": 403, "body": {"message": "no"}}])

    assert report(tmp_path, make_run()) == 0
    assert "not run again by itself" in capsys.readouterr().err
    assert read_sections(server) == {"test-gpu": "invalid"}


@pytest.mark.parametrize(("kind", "runs"), [(DIED["built"], [11]), (ENDED["measured"], [])])
def test_report__a_dispatched_run_is_tried_again_too(server, tmp_path, kind, runs):
    """It said by itself what it measured; only that it is run again is left to do."""
    set_failed(server, kind)

    assert report(tmp_path, make_ended()) == 0
    state = server.get()
    assert state["rerun_runs"] == runs
    assert state["statuses"] == state["comments"] == []


def make_ended(task="measure", sha=HEAD, **changes):
    """A dispatched run that has ended, as the event tells of it."""
    title = f"perfgate {task} #7 {sha}"
    facts = {"event": "workflow_dispatch", "head_sha": BASE, "head_branch": "main", "display_title": title}
    return make_run(**{**facts, **changes})


@pytest.mark.parametrize(
    ("event", "state", "runs"),
    [
        (make_ended("compare", NEW), "open", [11]),
        (make_ended(sha=NEW), "open", []),
        (make_ended(), "closed", []),
        (make_ended("compare", NEW), "closed", []),
        (make_ended(display_title="another's own"), "open", []),
    ],
    ids=["comparison", "head moved on", "closed", "comparison of a closed one", "no title"],
)
def test_report__what_would_not_be_shown_is_not_run_again(server, tmp_path, event, state, runs):
    """A push that came after the runner had died cancels nothing, as the run has ended."""
    server.set(pulls={"7": {**make_pull(), "state": state}})
    set_failed(server, DIED["built"])

    assert report(tmp_path, event) == 0
    assert server.get()["rerun_runs"] == runs


@pytest.mark.parametrize("job", [{"conclusion": "cancelled"}, {"conclusion": "cancelled", "steps": DIED["built"]}, None])
def test_attack__a_run_that_another_s_workflow_file_cancelled(server, tmp_path, job):
    """Groups of concurrency are the repository's, so a pull request's own file can name another's, and end what measures it."""
    bench = [{"name": "gpu / bench test-gpu unit", **job}] if job else []
    server.set(jobs={"11": [{"name": "plan", "conclusion": "success" if job else "cancelled"}, *bench]}, runs={"11": []})

    assert report(tmp_path, make_run(conclusion="cancelled")) == 0
    state = server.get()
    assert [status["state"] for status in state["statuses"]] == ["error"]
    assert state["rerun_runs"] == []
    assert read_sections(server) == {"test-gpu": "invalid"}


def test_attack__a_fork_s_run_is_never_run_again(server, tmp_path):
    """Its workflow file is its own, and so are the names and steps of its jobs."""
    server.set(pulls={"7": make_pull("mallory/r")})
    set_failed(server, DIED["built"])
    fork = {"owner": {"login": "mallory"}, "full_name": "mallory/r"}

    assert main(["github", "report", *write_event(tmp_path, make_run(head_repository=fork)), "--scenario", "unit.toml"]) == 0
    assert server.get()["rerun_runs"] == []
