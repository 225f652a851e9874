"""From a night's job on the main branch to the seed of the next jobs, on a slot that root prepares and cleans."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from perfgate.errors import RunnerError
from perfgate.runner.admission import Rules
from perfgate.runner.harvest import Claim, Origin, build_claim, find_fault, offer
from perfgate.runner.harvest import harvest as harvest_offer
from perfgate.runner.setup.seeds import seed, verify
from tests.fakes.machines import NEEDS, Machine, make_key
from tests.fakes.sick_gpu import build_library

# One group: what starts a process of the slot's user disturbs who looks for one.
pytestmark = pytest.mark.xdist_group("scrubbed-user")

needs_root, needs_openssl = NEEDS
RULES = Rules(repositories=frozenset({"o/r"}), workflows=frozenset())
CLAIM = Claim(repository="o/r", run_id=21, run_attempt=1)
NIGHT = {
    "id": 21,
    "event": "schedule",
    "head_branch": "main",
    "path": ".github/workflows/perfgate-baseline.yml",
    "repository": {"full_name": "o/r"},
    "head_repository": {"full_name": "o/r"},
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    return build_library(folder), make_key(folder)


@pytest.fixture
def machine(fake_github, parts, tmp_path):
    fake_github.set(faults=[], log=[], runner_status=201, run_facts={"21": NIGHT}, jobs={"21": []})
    return Machine(tmp_path, *parts, fake_github.url)


def prepare(machine, fake_github):
    """Prepare the slot, and tell which runner GitHub knows it by."""
    done = machine.run("runner", "prepare", "--slot", "0")
    assert done.returncode == 0, done.stderr
    return fake_github.get()["log"][-1]["body"]["name"]


def compile_and_offer(machine, content=b"code", **claim):
    caches = machine.home / "work" / "caches"
    lent = machine.run_job("runner", "cache", "lend", str(caches / "base"))
    (caches / "base" / "kernel.cubin").write_bytes(content)
    done = machine.run_job("runner", "cache", "offer", str(caches / "base"), **claim)
    assert done.returncode == 0, done.stderr
    return lent.stdout


def harvest(machine):
    return machine.run("runner", "cache", "harvest", "--slot", "0")


@needs_root
@needs_openssl
def test_harvest__a_night_on_main_becomes_the_next_jobs_seed(machine, fake_github):
    registered = prepare(machine, fake_github)
    assert "empty, as there is no seed for sm90-1.2.3-" in compile_and_offer(machine)
    fake_github.set(jobs={"21": [{"name": "plan", "runner_name": "ubuntu"}, {"name": "gpu", "runner_name": registered}]})
    done = harvest(machine)

    assert (done.returncode, f"by {registered}" in done.stdout) == (0, True), done.stderr
    (made,) = machine.cache.iterdir()
    assert verify(machine.cache, made.name) == 1
    assert not (machine.home / "offer").exists()
    assert f"1 files of {made.name}" in machine.run_job("runner", "cache", "lend", str(machine.home / "next")).stdout
    assert (machine.home / "next" / "kernel.cubin").read_bytes() == b"code"


@needs_root
@needs_openssl
def test_harvest__nothing_offered_asks_no_one(machine, fake_github):
    prepare(machine, fake_github)
    before = len(fake_github.get()["log"])

    assert harvest(machine).stdout == "nothing offered\n"
    assert len(fake_github.get()["log"]) == before


@needs_root
@needs_openssl
def test_attack__a_process_that_lives_while_root_harvests(machine, fake_github):
    """It could change what root copies after root looked; the unit ends all processes first, and the harvest looks again."""
    registered = prepare(machine, fake_github)
    compile_and_offer(machine)
    fake_github.set(jobs={"21": [{"runner_name": registered}]})
    with subprocess.Popen(["/bin/sleep", "600"], user="nobody", cwd="/") as left:
        done = harvest(machine)
        left.kill()

    assert (done.returncode, f"process {left.pid} of slot 0 still runs" in done.stderr) == (3, True), done.stderr
    assert not machine.cache.exists()


@needs_root
@needs_openssl
def test_harvest__keeps_the_last_three(machine, fake_github):
    for second in range(4):
        (machine.cache / f"old-{second}" / "files").mkdir(parents=True)
        (machine.cache / f"old-{second}" / "manifest.json").write_text(f'{{"made": {second}, "files": {{}}}}')
    registered = prepare(machine, fake_github)
    compile_and_offer(machine)
    fake_github.set(jobs={"21": [{"runner_name": registered}]})
    harvest(machine)

    names = sorted(path.name for path in machine.cache.iterdir())
    assert names[:2] == ["old-2", "old-3"]
    assert len(names) == 3


@needs_root
@needs_openssl
def test_prepare__every_job_has_a_name_of_its_own(machine, fake_github):
    first, second = prepare(machine, fake_github), prepare(machine, fake_github)

    assert first != second
    assert (machine.place / "slots" / "0.name").read_text() == second
    assert (machine.place / "slots" / "0.name").stat().st_uid == 0


@needs_root
@needs_openssl
def test_attack__a_poisoned_copy_reaches_no_job(machine, fake_github):
    """A pull request's job lends, poisons, and offers under its own run; then under the run of a night on main."""
    registered = prepare(machine, fake_github)
    compile_and_offer(machine)
    fake_github.set(jobs={"21": [{"runner_name": registered}]})
    harvest(machine)
    (made,) = machine.cache.iterdir()

    fake_github.set(run_facts={"21": NIGHT, "22": {**NIGHT, "event": "pull_request", "head_branch": "topic"}})
    fake_github.set(jobs={"21": [{"runner_name": registered}], "22": [{"runner_name": prepare(machine, fake_github)}]})
    for run, reason in ((22, "was started by pull_request"), (21, "no job of the run was on perfgate-")):
        compile_and_offer(machine, content=b"evil", run=run)
        done = harvest(machine)
        assert (done.returncode, reason in done.stderr) == (3, True), done.stderr
        assert not (machine.home / "offer").exists()

    assert [path.name for path in machine.cache.iterdir()] == [made.name]
    assert verify(machine.cache, made.name) == 1
    machine.run_job("runner", "cache", "lend", str(machine.home / "next"))
    assert (machine.home / "next" / "kernel.cubin").read_bytes() == b"code"


@needs_root
@needs_openssl
@pytest.mark.parametrize("repository", ["mallory/r", "o/r"])
def test_attack__a_night_that_is_not_mine(machine, fake_github, repository):
    """A repository that may not use this machine is not even asked about; a run that GitHub does not know is refused."""
    prepare(machine, fake_github)
    before = len(fake_github.get()["log"])
    compile_and_offer(machine, repository=repository, run=99)
    done = harvest(machine)

    assert done.returncode != 0
    assert not machine.cache.exists()
    assert (len(fake_github.get()["log"]) == before) == (repository == "mallory/r")


@pytest.mark.parametrize("kind", ["offer", "files", "claim", "pipe", "folder", "no claim", "link inside"])
def test_attack__an_offer_that_leads_elsewhere(tmp_path, kind):
    """Root reads what a job left: no link is followed, and nothing else is waited for."""
    home, elsewhere, caches = tmp_path / "home", tmp_path / "elsewhere", tmp_path / "caches"
    for folder in (home, elsewhere, caches):
        folder.mkdir()
    (caches / "kernel.cubin").write_bytes(b"code")
    (elsewhere / "secret").write_text("key")
    left = offer(caches, home, CLAIM)
    twist(left, elsewhere, kind)

    with pytest.raises(RunnerError, match=r"link|no claim|no file"):
        harvest_offer(home, "mine", lambda _: None, lambda files: seed(files, tmp_path / "seeds", "key"))
    assert not (tmp_path / "seeds").exists() or list((tmp_path / "seeds").iterdir()) == []
    assert (elsewhere / "secret").read_text() == "key"


def test_attack__an_offer_deeper_than_a_walk_gets(tmp_path, monkeypatch):
    """What root refuses it deletes, at any depth, and says why it was refused."""
    (tmp_path / "caches").mkdir()
    monkeypatch.chdir(offer(tmp_path / "caches", tmp_path, CLAIM) / "files")
    for _ in range(3000):
        Path("d").mkdir()
        os.chdir("d")
    os.chdir(tmp_path)

    with pytest.raises(RunnerError, match="offered cache refused: not of main"):
        harvest_offer(tmp_path, "mine", lambda _: "not of main", seed)
    assert list(tmp_path.iterdir()) == []


def twist(left, elsewhere, kind):
    """Make an offer lead to another place."""
    if kind == "offer":
        left.rename(elsewhere / "offer")
        left.symlink_to(elsewhere / "offer")
    elif kind == "files":
        (left / "files").rename(elsewhere / "files")
        (left / "files").symlink_to(elsewhere / "files")
    elif kind == "link inside":
        (left / "files" / "x").symlink_to(elsewhere / "secret")
    else:
        (left / "claim.json").unlink()
        if kind == "claim":
            (left / "claim.json").symlink_to(elsewhere / "secret")
        elif kind == "pipe":
            os.mkfifo(left / "claim.json")
        elif kind == "folder":
            (left / "claim.json").mkdir()
        else:
            (left / "claim.json").write_text("{" * 5000)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"event": "workflow_dispatch"}, None),
        ({"path": ".github/workflows/perfgate-baseline.yml@refs/heads/main"}, None),
        ({"event": "pull_request"}, "was started by pull_request"),
        ({"head_branch": "topic"}, "not of the main branch"),
        ({"path": ".github/workflows/perfgate-dispatch.yml"}, "workflow perfgate-dispatch.yml makes no seeds"),
        ({"repository": {"full_name": "o/other"}}, "of another repository"),
        ({"head_repository": {"full_name": "mallory/r"}}, "comes from a fork"),
        ({"head_repository": None}, "comes from a fork"),
    ],
)
def test_find_fault__what_a_run_must_be(changes, reason):
    origin = Origin(run={**NIGHT, **changes}, runners=("ubuntu", "mine"))
    fault = find_fault(CLAIM, origin, "mine", RULES, ["perfgate-baseline.yml"])

    assert fault is None if reason is None else reason in fault


@pytest.mark.parametrize("runners", [(), ("mine-2",), ("mine", "mine"), ("None",)])
def test_find_fault__the_runner_must_be_this_slots(runners):
    fault = find_fault(CLAIM, Origin(run=NIGHT, runners=runners), "mine", RULES, ["perfgate-baseline.yml"])

    assert fault == "no job of the run was on mine"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "x", "GITHUB_RUN_ATTEMPT": "1"},
        {"GITHUB_REPOSITORY": "../r", "GITHUB_RUN_ID": "1", "GITHUB_RUN_ATTEMPT": "1"},
    ],
)
def test_build_claim__outside_of_a_job(environment):
    with pytest.raises(RunnerError, match="no job runs here"):
        build_claim(environment)
