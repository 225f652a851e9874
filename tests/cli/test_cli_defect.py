"""An unforeseen error must not end as a REGRESSION, whose exit code is the one that Python gives to a traceback."""

from __future__ import annotations

import subprocess
import sys

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


def test_run__a_command_ends_as_it_did():
    done = subprocess.run(
        [sys.executable, "-m", "perfgate", "check", "no-such-folder"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert done.stderr.startswith("perfgate: no-such-folder: ")
