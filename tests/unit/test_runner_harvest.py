"""From a night's job on the main branch to the seed of the next jobs, on a slot that root prepares and cleans."""

from __future__ import annotations

import pytest

from perfgate.errors import RunnerError
from perfgate.runner.admission import Rules
from perfgate.runner.harvest import Claim, Origin, build_claim, find_fault
from perfgate.runner.seeds import verify
from tests.fakes.github_server import run_fake_github
from tests.fakes.machines import NEEDS, Machine, make_key
from tests.fakes.sick_gpu import build_library

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
def process():
    with run_fake_github() as fake:
        yield fake


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    return build_library(folder), make_key(folder)


@pytest.fixture
def machine(process, parts, tmp_path):
    process.set(faults=[], log=[], runner_status=201, run_facts={"21": NIGHT}, jobs={"21": []})
    return Machine(tmp_path, *parts, process.url)


def prepare(machine, process):
    """Prepare the slot, and tell which runner GitHub knows it by."""
    done = machine.run("runner", "prepare", "--slot", "0")
    assert done.returncode == 0, done.stderr
    return process.get()["log"][-1]["body"]["name"]


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
def test_harvest__a_night_on_main_becomes_the_next_jobs_seed(machine, process):
    registered = prepare(machine, process)
    assert "empty, as there is no seed for sm90-1.2.3-" in compile_and_offer(machine)
    process.set(jobs={"21": [{"name": "plan", "runner_name": "ubuntu"}, {"name": "gpu", "runner_name": registered}]})
    done = harvest(machine)

    assert (done.returncode, f"by {registered}" in done.stdout) == (0, True), done.stderr
    (seed,) = machine.cache.iterdir()
    assert verify(machine.cache, seed.name) == 1
    assert not (machine.home / "offer").exists()
    assert f"1 files of {seed.name}" in machine.run_job("runner", "cache", "lend", str(machine.home / "next")).stdout
    assert (machine.home / "next" / "kernel.cubin").read_bytes() == b"code"


@needs_root
@needs_openssl
def test_harvest__nothing_offered_asks_nobody(machine, process):
    prepare(machine, process)
    before = len(process.get()["log"])

    assert harvest(machine).stdout == "nothing offered\n"
    assert len(process.get()["log"]) == before


@needs_root
@needs_openssl
def test_harvest__keeps_the_last_three(machine, process):
    for second in range(4):
        (machine.cache / f"old-{second}" / "files").mkdir(parents=True)
        (machine.cache / f"old-{second}" / "manifest.json").write_text(f'{{"made": {second}, "files": {{}}}}')
    registered = prepare(machine, process)
    compile_and_offer(machine)
    process.set(jobs={"21": [{"runner_name": registered}]})
    harvest(machine)

    names = sorted(path.name for path in machine.cache.iterdir())
    assert names[:2] == ["old-2", "old-3"]
    assert len(names) == 3


@needs_root
@needs_openssl
def test_prepare__every_job_has_a_name_of_its_own(machine, process):
    first, second = prepare(machine, process), prepare(machine, process)

    assert first != second
    assert (machine.place / "slots" / "0.name").read_text() == second
    assert (machine.place / "slots" / "0.name").stat().st_uid == 0


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
