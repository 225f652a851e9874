"""From an app's key to one job: registration at a GitHub that says no, the slot's folder, and the secret's way through it."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.errors import GitHubError, InputError
from perfgate.github.registration import register, sign_token
from perfgate.machine.accelerators import PRIORITIES
from perfgate.machine.lock import find_lock_folder
from perfgate.runner.settings import Registration, Runner, Slot
from perfgate.runner.slot import format_environment
from perfgate.runner.slots import Wish, hold
from perfgate.serving.model.location import find_cache
from tests.fakes.sick_gpu import build_library, run_with_gpu

ROOT = Path(__file__).parents[2]
OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="OpenSSL signs the app's token")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root prepares a slot")
# One group: what starts a process of the slot's user disturbs who looks for one.
pytestmark = [needs_openssl, pytest.mark.xdist_group("scrubbed-user")]
CONFIG = "and0LWNvbmZpZw=="


@pytest.fixture
def server(fake_github):
    fake_github.set(faults=[], log=[], app_tokens=[], runner_status=201)
    return fake_github


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("app") / "app.pem"
    subprocess.run([OPENSSL, "genrsa", "-out", path, "2048"], check=True, capture_output=True)
    return path


@pytest.fixture
def app(server, key):
    return Registration(app_id=12, installation=34, key=key, scope="repos/o/r", group=2, api_url=server.url)


def decode(part):
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_sign_token__openssl_verifies_it(app, key, tmp_path):
    head, claims, signature = sign_token(app, now=1000.0).split(".")
    (tmp_path / "signature").write_bytes(decode(signature))
    public = subprocess.run([OPENSSL, "rsa", "-in", key, "-pubout"], check=True, capture_output=True).stdout
    (tmp_path / "public.pem").write_bytes(public)

    command = [OPENSSL, "dgst", "-sha256", "-verify", tmp_path / "public.pem", "-signature", tmp_path / "signature"]
    done = subprocess.run(command, input=f"{head}.{claims}".encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(decode(head)) == {"alg": "RS256", "typ": "JWT"}
    assert json.loads(decode(claims)) == {"iat": 940, "exp": 1540, "iss": "12"}


def test_register__one_job_with_labels(server, app):
    assert register(app, "perfgate-host-0", ["perfgate", "h20"]) == CONFIG
    assert server.get()["log"][-1] == {
        "method": "POST",
        "path": "/repos/o/r/actions/runners/generate-jitconfig",
        "query": {},
        "body": {"name": "perfgate-host-0", "runner_group_id": 2, "labels": ["perfgate", "h20"], "work_folder": "_work"},
    }
    assert server.get()["app_tokens"][0].startswith("Bearer eyJ")


@pytest.mark.parametrize("status", [403, 404, 422])
def test_register__github_says_no(server, app, status):
    server.set(runner_status=status)

    with pytest.raises(GitHubError, match=f"status {status}: Resource not accessible"):
        register(app, "n", [])


def test_register__a_gateway_that_broke_is_not_asked_twice(server, app):
    """A second registration would leave a runner behind that is never started."""
    server.set(faults=[{"method": "POST", "path": "jitconfig", "status": 502, "after": True}])

    with pytest.raises(GitHubError, match="it may have been carried out"):
        register(app, "n", [])
    assert sum("jitconfig" in path for path in server.paths("POST")) == 1


def test_register__an_answer_without_configuration(server, app):
    server.set(faults=[{"method": "POST", "path": "jitconfig", "status": 201, "body": {"runner": {}}}])

    with pytest.raises(GitHubError, match="holds no configuration"):
        register(app, "n", [])


@pytest.mark.parametrize("body", [{}, {"token": None}, [], None])
def test_register__an_answer_without_token(server, app, body):
    server.set(faults=[{"method": "POST", "path": "access_tokens", "status": 201, "body": body}])

    with pytest.raises(GitHubError, match="the answer to the app holds no token"):
        register(app, "n", [])


@pytest.mark.parametrize("content", [None, "no key"])
def test_sign_token__a_key_that_is_none(tmp_path, content):
    path = tmp_path / "bad.pem"
    if content:
        path.write_text(content)

    with pytest.raises(InputError, match="OpenSSL cannot sign with it"):
        sign_token(Registration(app_id=1, installation=1, key=path, scope="orgs/o"), 0.0)


RUN_SH = """#!/bin/sh
cat .env > "$OUT/env"
tr '\\0' ' ' < /proc/$$/cmdline > "$OUT/cmdline"
echo "$ACTIONS_RUNNER_INPUT_JITCONFIG" > "$OUT/config"
"""


@pytest.fixture
def settings(tmp_path, server, key):
    pristine = tmp_path / "pristine"
    pristine.mkdir()
    (pristine / "run.sh").write_text(RUN_SH)
    (pristine / "run.sh").chmod(0o755)
    path = tmp_path / "r.toml"
    path.write_text(f"""
repositories = ["o/r"]
state = "{tmp_path}/marks"
pristine = "{pristine}"
folder = "{tmp_path}/slots"
hooks = "{ROOT}/deploy/hooks"
[slots.0]
user = "nobody"
gpu = "GPU-0000"
[registration]
app_id = 12
installation = 34
key = "{key}"
scope = "repos/o/r"
api_url = "{server.url}"
""")
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


PREPARE = """
import sys
from perfgate.cli import main
set_gpu(name="NVIDIA H20", memory_total=102625181696, {state})
sys.exit(main(["runner", "prepare", "--slot", "0"]))
"""


def run_prepare(library, tmp_path, settings, state="", **env):
    return run_with_gpu(library, tmp_path, PREPARE.format(state=state), PERFGATE_RUNNER_CONFIG=str(settings), **env)


@needs_root
def test_prepare__labels_come_from_the_driver_and_the_secret_goes_by_file(server, library, tmp_path, settings):
    done = run_prepare(library, tmp_path, settings)
    secret = tmp_path / "slots" / "0" / "jit"

    assert done.returncode == 0, done.stderr
    assert server.get()["log"][-1]["body"]["labels"] == ["self-hosted", "linux", "perfgate", "h20", *PRIORITIES]
    assert (secret.read_text(), oct(secret.stat().st_mode & 0o777)) == (CONFIG, "0o400")
    assert secret.stat().st_uid != 0
    assert CONFIG not in done.stdout + done.stderr


@needs_root
def test_prepare__a_free_slot_registers_for_what_is_most_urgent(server, library, tmp_path, settings):
    """A night waits since yesterday; a merge queue that asks for another machine is not this slot's."""

    def ask(label, kind):
        return {"name": "bench", "status": "queued", "labels": ["self-hosted", "linux", "perfgate", label, kind]}

    runs = {str(number): {"id": number, "status": "in_progress"} for number in (1, 2, 3)}
    jobs = {"1": [ask("h20", "perfgate-night")], "2": [ask("h20", "perfgate-pull")], "3": [ask("h100", "perfgate-queue")]}
    server.set(run_facts=runs, jobs=jobs)
    done = run_prepare(library, tmp_path, settings)
    asked = server.get()["log"][-1]["body"]["labels"]
    server.set(run_facts={}, jobs={})

    assert done.returncode == 0, done.stderr
    assert asked == ["self-hosted", "linux", "perfgate", "h20", "perfgate-pull"]


@needs_root
def test_run_once__hands_the_secret_on_and_leaves_none(server, library, tmp_path, settings):
    run_prepare(library, tmp_path, settings)
    command = [sys.executable, "-m", "perfgate", "runner", "run-once", "--slot", "0"]
    environment = {**os.environ, "PERFGATE_RUNNER_CONFIG": str(settings), "OUT": str(tmp_path), "PYTHONPATH": str(ROOT)}

    subprocess.run(command, env=environment, check=True)

    assert (tmp_path / "config").read_text() == CONFIG + "\n"
    assert CONFIG not in (tmp_path / "cmdline").read_text()
    assert not (tmp_path / "slots" / "0" / "jit").exists()
    assert f"ACTIONS_RUNNER_HOOK_JOB_STARTED={ROOT}/deploy/hooks/job-started.sh" in (tmp_path / "env").read_text()
    assert "CUDA_VISIBLE_DEVICES=GPU-0000" in (tmp_path / "env").read_text()
    assert subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 3
    assert server.get()["faults"] == []


@needs_root
@pytest.mark.parametrize(
    "case",
    [("ecc=1", "not fit, so not registered"), ("pids=5", "not fit, so not registered"), ("count=0", "is not in this machine")],
)
def test_prepare__a_sick_machine_registers_nothing(server, library, tmp_path, settings, case):
    state, words = case
    done = run_prepare(library, tmp_path, settings, state)

    assert done.returncode == 3
    assert words in done.stderr
    assert server.get()["log"] == []


@needs_root
def test_prepare__locks_the_clock_before_each_job(server, library, tmp_path, settings):
    """A reload of the driver undoes what was locked, and NVML cannot be asked for it."""
    settings.write_text(f"clock_mhz = 1500\n{settings.read_text()}")
    codes = [run_prepare(library, tmp_path, settings, state).returncode for state in ("", "", "lock_error=4")]

    assert (tmp_path / "state.clocks").read_text() == "0 1500 1500\n" * 3
    assert codes == [0, 0, 3]
    assert sum("jitconfig" in path for path in server.paths("POST")) == 2


@pytest.fixture
def dcgm(tmp_path):
    """A dcgmi that notes how it is called and ends as asked; the folder of it and of its notes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "dcgmi").write_text(f'#!/bin/sh\necho "$*" >> {folder}/calls\necho Memory: Fail\nexit ${{DCGM:-0}}\n')
    (folder / "dcgmi").chmod(0o755)
    (folder / "calls").touch()
    return folder


@needs_root
def test_prepare__looks_at_the_slots_gpu_in_depth_once_a_day(library, tmp_path, settings, dcgm):
    settings.write_text(settings.read_text().replace("GPU-0000", "GPU-0001"))
    path = f"{dcgm}:{os.environ['PATH']}"
    for _ in range(2):
        assert run_prepare(library, tmp_path, settings, "count=2", PATH=path).returncode == 0
    assert (dcgm / "calls").read_text() == "diag -r 2 -i 1\n"

    # Yesterday, and a look that a clock years ahead dated.
    for number, at in enumerate((0, 2**32), 2):
        os.utime(tmp_path / "marks" / "looked-0", (at, at))
        run_prepare(library, tmp_path, settings, "count=2", PATH=path)
        assert (dcgm / "calls").read_text() == "diag -r 2 -i 1\n" * number


@needs_root
def test_prepare__what_is_found_in_depth_closes_the_slot(server, library, tmp_path, settings, dcgm):
    path = f"{dcgm}:{os.environ['PATH']}"
    found = run_prepare(library, tmp_path, settings, PATH=path, DCGM="226")
    again = run_prepare(library, tmp_path, settings, PATH=path)

    assert (found.returncode, "GPU 0: DCGM's diagnosis: failed (Memory: Fail)" in found.stderr) == (3, True), found.stderr
    assert (again.returncode, "slot 0 is closed: DCGM's diagnosis" in again.stderr) == (3, True), again.stderr
    assert (dcgm / "calls").read_text().count("diag") == 1
    assert server.get()["log"] == []


@needs_root
def test_prepare__nothing_is_loaded_beside_a_measurement(library, tmp_path, settings, dcgm):
    with hold(Wish(), find_lock_folder()):
        done = run_prepare(library, tmp_path, settings, PATH=f"{dcgm}:{os.environ['PATH']}")

    assert done.returncode == 0, done.stderr
    assert (dcgm / "calls").read_text() == ""


@needs_root
def test_prepare__a_closed_slot_registers_nothing(server, library, tmp_path, settings):
    (tmp_path / "marks").mkdir()
    (tmp_path / "marks" / "quarantine-0.json").write_text('{"until": 9e12, "reason": "a fork"}')

    assert "slot 0 is closed: a fork" in run_prepare(library, tmp_path, settings).stderr
    assert server.get()["log"] == []


@needs_root
def test_prepare__nothing_of_the_last_job_is_left(library, tmp_path, settings):
    run_prepare(library, tmp_path, settings)
    home = tmp_path / "slots" / "0"
    planted = home / "runner" / ".path"
    planted.write_text("/evil")
    # Deeper than Python's own walk gets.
    subprocess.run(["/bin/sh", "-c", "for i in $(seq 1500); do mkdir d; cd d; done"], cwd=home, check=True)

    assert run_prepare(library, tmp_path, settings).returncode == 0
    assert not planted.exists()
    assert not (home / "d").exists()


@needs_root
@pytest.mark.parametrize(
    ("left", "told"),
    [((), r"No such file or directory: '\S+/0/runner/run\.sh'\)"), (("a", "b"), r"\(`\S+/pristine/[ab]` is a named pipe\)")],
)
def test_prepare__what_cannot_run_is_not_registered(*, server, library, tmp_path, settings, left, told):
    (tmp_path / "pristine" / "run.sh").unlink()
    for name in left:
        os.mkfifo(tmp_path / "pristine" / name)

    assert re.search(
        rf"cannot be prepared .*{told}; is \S+/pristine GitHub's unpacked runner",
        run_prepare(library, tmp_path, settings).stderr,
    )
    assert server.get()["log"] == []


def test_settings__two_slots_of_one_user(settings, monkeypatch, capsys):
    settings.write_text(settings.read_text() + '[slots.1]\nuser = "nobody"\ngpu = "GPU-0001"\n')
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(settings))

    assert main(["runner", "prepare", "--slot", "0"]) == 2
    assert "the same user is named twice" in capsys.readouterr().err


def test_prepare__a_slot_that_is_none(settings, monkeypatch, capsys):
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(settings))

    assert main(["runner", "prepare", "--slot", "7"]) == 2
    assert "--slot 7: not in the settings, which have 0" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_units__systemd_understands_them(tmp_path):
    """In a copy whose commands exist here: the check is of the units, not of this machine."""
    for unit in (ROOT / "deploy" / "systemd").iterdir():
        text = unit.read_text().replace("/opt/perfgate/bin/perfgate", "/bin/true").replace("/usr/bin/nvidia-smi", "/bin/true")
        (tmp_path / unit.name.replace("@.", "@0.")).write_text(text)
    units = sorted(tmp_path.iterdir())

    done = subprocess.run(
        [shutil.which("systemd-analyze"), "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stderr.splitlines() if any(unit.name in line for unit in units)]
    assert (done.returncode, told) == (0, []), done.stderr


def test_units__a_job_is_never_root_and_dies_with_its_unit():
    text = (ROOT / "deploy" / "systemd" / "perfgate-runner@.service").read_text()

    assert "User=ghr%i" in text
    assert "KillMode=control-group" in text
    assert "ExecStart=+" not in text
    assert "Environment=HOME=/var/lib/perfgate/slots/%i" in text
    assert text.count("ExecStartPre=+") == 2
    last = [line.partition("perfgate runner ")[2] for line in text.splitlines() if line.startswith("ExecStopPost=")]
    assert last == ["scrub --slot %i --processes", "ledger add --slot %i", "cache harvest --slot %i", "scrub --slot %i"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_attack__a_slot_that_reaches_beyond_its_unit(tmp_path):
    """What systemd itself thinks of the sandbox (0 is closed, 10 is open), with the drop-in of a GPU; it was 3.5."""
    unit = tmp_path / "perfgate-runner@0.service"
    text = (ROOT / "deploy" / "systemd" / "perfgate-runner@.service").read_text()
    drop_in = "[Service]\nDeviceAllow=/dev/nvidia0 rw\nDeviceAllow=/dev/nvidiactl rw\nDeviceAllow=/dev/nvidia-uvm rw\n"
    unit.write_text(text + drop_in)
    command = [shutil.which("systemd-analyze"), "security", "--offline=yes", "--no-pager", "--threshold=19", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout.splitlines()[-1]
    for path in ("/run/dbus", "/run/systemd/private", "/run/user"):
        assert f"-{path}" in text
    # Seen by `python -m benchmarks.adoption.machine`: without it a job wrote into /run/lock.
    assert re.search(r"^ProtectSystem=strict$", text, re.MULTILINE)
    assert re.search(r"^ReadOnlyPaths=/run ", text, re.MULTILINE)


def test_slot__its_jobs_find_the_machines_models(tmp_path):
    """In the environment that GitHub's runner gives them, and with the HOME of the unit."""
    runner = Runner(repositories=("o/r",), models=tmp_path, slots={"0": Slot(user="ghr0", gpu="GPU-0000")})
    lines = format_environment(runner, runner.slots["0"]).splitlines()
    environment = {**dict(line.split("=", 1) for line in lines), "HOME": "/var/lib/perfgate/slots/0"}

    assert find_cache(environment) == tmp_path / "hub"


REGISTER = PREPARE.replace('"prepare"', '"register"')


@needs_root
def test_register__a_configuration_that_waited_too_long(server, library, tmp_path, settings):
    run_prepare(library, tmp_path, settings)
    (tmp_path / "slots" / "0" / "jit").write_text("old")
    done = run_with_gpu(library, tmp_path, REGISTER.format(state=""), PERFGATE_RUNNER_CONFIG=str(settings))

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "slots" / "0" / "jit").read_text() == CONFIG
    assert done.stdout.strip() == (tmp_path / "slots" / "0.name").read_text()
    assert server.get()["log"][-1]["body"]["labels"] == ["self-hosted", "linux", "perfgate", "h20", *PRIORITIES]


@needs_root
def test_register__a_slot_that_is_not_prepared(server, library, tmp_path, settings):
    done = run_with_gpu(library, tmp_path, REGISTER.format(state=""), PERFGATE_RUNNER_CONFIG=str(settings))

    assert (done.returncode, "slot 0 is not prepared" in done.stderr) == (3, True)
    assert server.get()["log"] == []


TWO = 'gpu = ["GPU-0001", "GPU-0000"]'


@needs_root
def test_prepare__a_slot_of_two_gpus_has_a_label_of_its_own(server, library, tmp_path, settings):
    settings.write_text(settings.read_text().replace('gpu = "GPU-0000"', TWO))
    done = run_prepare(library, tmp_path, settings, "count=2")

    assert done.returncode == 0, done.stderr
    assert server.get()["log"][-1]["body"]["labels"] == ["self-hosted", "linux", "perfgate", "h20-x2", *PRIORITIES]
    given = (tmp_path / "slots" / "0" / "runner" / ".env").read_text()
    assert "CUDA_VISIBLE_DEVICES" not in given
    # The slot's unit denies private networks, and with them the machine's own address there, which ranks would meet at.
    assert {"NCCL_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo"} <= set(given.splitlines())


@needs_root
@pytest.mark.parametrize(
    "told",
    [(1, "GPU GPU-0001 is not in this machine"), (4, "4 GPUs are in this machine, and the slot has 2; a slot has one GPU, or")],
)
def test_prepare__a_slot_of_two_gpus_in_another_machine(server, library, tmp_path, settings, told):
    count, words = told
    settings.write_text(settings.read_text().replace('gpu = "GPU-0000"', TWO))
    done = run_prepare(library, tmp_path, settings, f"count={count}")

    assert (done.returncode, words in done.stderr) == (3, True), done.stderr
    assert server.get()["log"] == []


@needs_root
@pytest.mark.parametrize(
    "card",
    [
        ("NVIDIA H100 80GB HBM3", 85520809984, "h100"),
        ("NVIDIA H20", 102625181696, "h20"),
        ("NVIDIA H200", 150754820096, "h200"),
    ],
)
def test_prepare__every_machine_is_asked_for_by_its_own_label(server, library, tmp_path, settings, card):
    name, memory, label = card
    code = PREPARE.replace('name="NVIDIA H20", memory_total=102625181696', f'name="{name}", memory_total={memory}')
    done = run_with_gpu(library, tmp_path, code.format(state=""), PERFGATE_RUNNER_CONFIG=str(settings))

    assert done.returncode == 0, done.stderr
    assert server.get()["log"][-1]["body"]["labels"] == ["self-hosted", "linux", "perfgate", label, *PRIORITIES]
