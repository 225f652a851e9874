"""The hook on real processes: a worker that goes on after a failed hook, as GitHub's does with `if: always()` steps."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.errors import InputError, RunnerError
from perfgate.runner.hook import kill_worker
from perfgate.runner.quarantine import close_slot, find_quarantine, leave_refusal, take_refusal
from perfgate.runner.settings import Runner, load_runner

ROOT = Path(__file__).parents[2]
PERFGATE = Path(sys.executable).with_name("perfgate")
# Runs the hook, and then a step that does not care whether it failed; a helper of the job lives beside it.
WORKER = """
import subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
helper = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
(folder / "helper").write_text(str(helper.pid))
code = subprocess.run(["bash", sys.argv[2]]).returncode
(folder / "after").write_text(str(code))
helper.kill()
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    path = tmp_path / "runner.toml"
    path.write_text(f'repositories = ["o/r"]\nstate = "{tmp_path}/state"\n')
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(path))
    return path


def run_worker(tmp_path, settings, *, head="o/r", tool=PERFGATE):
    """Start a process that the kernel calls Runner.Worker."""
    pull = {"number": 7, "head": {"repo": {"full_name": head}}, "base": {"repo": {"full_name": "o/r"}}}
    (tmp_path / "event.json").write_text(json.dumps({"repository": {"full_name": "o/r"}, "pull_request": pull}))
    name = tmp_path / "Runner.Worker"
    if not name.exists():
        name.symlink_to(sys.executable)
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PERFGATE_RUNNER_CONFIG": str(settings),
        "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
        "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_WORKFLOW_REF": "o/r/.github/workflows/perfgate-pr.yml@refs/pull/7/merge",
        "PERFGATE": str(tool),
        "HOME": str(tmp_path),
        "GITHUB_RUN_ID": "21",
        "GITHUB_RUN_ATTEMPT": "1",
    }
    return subprocess.run(
        [name, script, tmp_path, ROOT / "deploy/hooks/job-started.sh"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def is_alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pid):
    for _ in range(200):
        if not is_alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_started__an_admitted_job_goes_on(tmp_path, settings):
    done = run_worker(tmp_path, settings)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "after").read_text() == "0"
    assert "admitted: pull_request of o/r" in done.stdout


def test_attack__a_step_that_always_runs_after_a_refused_hook(tmp_path, settings):
    done = run_worker(tmp_path, settings, head="mallory/r")

    assert done.returncode == -9
    assert not (tmp_path / "after").exists()
    assert wait_until_gone(int((tmp_path / "helper").read_text()))
    for _ in range(100):
        if (tmp_path / "refused").exists():
            break
        time.sleep(0.05)
    assert "comes from a fork" in take_refusal(tmp_path)


def test_attack__a_machine_without_rules_admits_no_job(tmp_path):
    done = run_worker(tmp_path, tmp_path / "none.toml")

    assert done.returncode == -9
    assert not (tmp_path / "after").exists()
    wait_until_gone(int((tmp_path / "helper").read_text()))


@pytest.mark.parametrize("tool", ["/no/such/tool", "/bin/false"])
def test_attack__a_hook_that_cannot_run_admits_no_job(tmp_path, settings, tool):
    done = run_worker(tmp_path, settings, tool=tool)

    assert done.returncode == -9
    assert not (tmp_path / "after").exists()
    os.kill(int((tmp_path / "helper").read_text()), signal.SIGKILL)


def test_kill_worker__where_there_is_none():
    with pytest.raises(RunnerError, match=r"no Runner\.Worker runs above this hook"):
        kill_worker()


def test_find_quarantine__opens_by_itself(tmp_path):
    runner = Runner(repositories=("o/r",), state=tmp_path, quarantine_s=300)
    close_slot(runner, "0", "why", clock=1000.0)

    assert find_quarantine(runner, "0", clock=1299.0) == "why (for 1 s more)"
    assert find_quarantine(runner, "0", clock=1300.0) is None
    assert find_quarantine(runner, "1", clock=1000.0) is None


def test_close_slot__a_disk_that_takes_no_mark(tmp_path, monkeypatch):
    """No half of a mark is left, which would keep the slot closed until somebody looks."""
    runner = Runner(repositories=("o/r",), state=tmp_path)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(RunnerError, match="cannot be written"):
        close_slot(runner, "0", "why")
    assert list(tmp_path.iterdir()) == []


def test_leave_refusal__a_branch_that_is_no_text(tmp_path):
    """What a variable holds that is no UTF-8 reaches Python as halves of characters, and closes the slot like any other."""
    leave_refusal(tmp_path, os.fsdecode(b"push of refs/heads/\xff: only refs/heads/main may"))

    assert take_refusal(tmp_path) == "push of refs/heads/?: only refs/heads/main may"


@pytest.mark.parametrize("mark", ["", "{}", "[]", '{"until": "soon"}', '{"until": NaN}', "[" * 2000])
def test_find_quarantine__a_broken_mark_keeps_the_slot_closed(tmp_path, mark):
    (tmp_path / "quarantine-0.json").write_text(mark)

    assert "cannot be read" in find_quarantine(Runner(repositories=("o/r",), state=tmp_path), "0")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("link", "is no file"), ("pipe", "is no file"), ("folder", "is no file"), ("escape", "gotcha [31m a"), ("long", "aaaa")],
)
def test_attack__a_note_of_refusal_that_is_none(tmp_path, kind, reason):
    """Root reads what a job left: it follows no link, waits for no pipe, and shows printable words alone."""
    note, secret = tmp_path / "refused", tmp_path / "secret"
    secret.write_text("key")
    contents = {"escape": "gotcha\x1b[31m\na", "long": "a" * 10**6}
    if kind == "link":
        note.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(note)
    elif kind == "folder":
        note.mkdir()
    else:
        note.write_text(contents[kind])

    told = take_refusal(tmp_path)
    assert reason in told
    assert "key" not in told
    assert len(told) <= 400 + len(str(note))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "repositories"),
        ("repositories = []", "repositories"),
        ('repositories = ["x"]', "repositories.0"),
        ('repositories = ["o/r"]\nstate = "~/perfgate"', "state: .*'~/perfgate' depends on where a command runs"),
        ('repositories = ["o/r"]\nslots.a = {user = "root", gpu = "GPU-1234"}', r"slots\.a\.user: .*is root"),
        ('repositories = ["o/r"]\n[registration]\napp_id = true', r"registration\.app_id: Input should be a valid integer"),
        ('repositories = ["o/r"]\nlimits.day = true', r"limits\.day: Input should be a valid number"),
        ("x", "not readable"),
    ],
)
def test_load_runner__names_what_is_wrong(tmp_path, monkeypatch, text, named):
    (tmp_path / "r.toml").write_text(text)
    monkeypatch.setenv("PERFGATE_RUNNER_CONFIG", str(tmp_path / "r.toml"))

    with pytest.raises(InputError, match=rf"r\.toml: .*{named}"):
        load_runner()


def test_load_runner__no_file(tmp_path):
    with pytest.raises(InputError, match=r"r\.toml: no such file; `perfgate runner init-host` writes one"):
        load_runner(tmp_path / "r.toml")


def test_completed__says_what_is_left(capsys):
    assert main(["runner", "hook", "completed"]) == 0
    assert "left behind" not in capsys.readouterr().out or shutil.which("nvidia-smi")
