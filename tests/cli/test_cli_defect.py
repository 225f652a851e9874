"""An unforeseen error must not end as a REGRESSION, whose exit code is the one that Python gives to a traceback."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from perfgate.cli import main, program
from perfgate.machine.processes import is_alive
from tests.fakes.recorded import SLOWER

BROKEN = """
import sys
from perfgate import cli

def fail(**_):
    raise ZeroDivisionError("an unforeseen error")

cli.program.main = fail
sys.argv = ["perfgate", "scenarios"]
cli.run()
"""


def test_run__a_defect_is_no_regression():
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, check=False)

    assert done.returncode == 70
    assert "ZeroDivisionError: an unforeseen error" in done.stderr
    assert done.stderr.endswith("perfgate: a defect of perfgate itself, please report it: ZeroDivisionError\n")


STOPPED = """
import subprocess
from perfgate import cli

def wait(**_):
    # A signal that comes before Python holds the process would leave that running: it waits until its parent sleeps.
    waits = 'until [ "$(cut -d " " -f 3 /proc/$PPID/stat)" = S ]; do :; done'
    subprocess.run(["/bin/sh", "-c", f"echo $$ >&2; {waits}; kill -TERM $PPID; exec sleep 60"])

cli.program.main = wait
cli.run()
"""


def test_run__sigterm_ends_what_it_waits_for():
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, check=False)
    child, told = done.stderr.splitlines()

    assert (done.returncode, told) == (130, "perfgate: interrupted")
    assert not is_alive(child)


def test_run__a_command_ends_as_it_did():
    done = subprocess.run(
        [sys.executable, "-m", "perfgate", "check", "no-such-folder"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert done.stderr.startswith("perfgate: no-such-folder: ")


def test_main__a_folder_that_is_closed_to_this_user(monkeypatch, capsys):
    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied", "kept/r\nx")

    monkeypatch.setattr(Path, "stat", lambda path, **_: refuse(path))

    assert main(["check", "kept/r"]) == 2
    assert capsys.readouterr().err == (
        "perfgate: kept/r?x: closed to this user (Permission denied); correct its permissions or its owner\n"
    )


def test_main__a_refusal_that_names_no_file_is_a_defect(monkeypatch):
    def refuse(**_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(program, "main", refuse)

    with pytest.raises(PermissionError):
        main(["scenarios"])


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        (f"check {SLOWER}", ">&-", 1),
        (f"check {SLOWER}", ">&- 2>&- <&-", 1),
        ("show -", "<&-", 2),
        ("check no-such-folder", "2>&-", 2),
        ("check no-such-folder", "2>/dev/full", 2),
        (f"check {SLOWER}", ">/dev/full", 2),
        (f"check {SLOWER} --format json", ">/dev/full", 2),
        ("--help", ">/dev/full", 2),
    ],
)
def test_run__streams_that_take_or_give_nothing(words, streams, code):
    command = f"{sys.executable} -m perfgate {words} {streams}"
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert done.stderr.count("\n") == (code == 2 and "2>" not in streams)


def test_run__a_reader_that_leaves_is_no_regression():
    pipe = f"set -o pipefail; {sys.executable} -m perfgate schema | true"

    assert subprocess.run(["/bin/bash", "-c", pipe], check=False).returncode == 141
