"""A program of others is bounded in time, and what went wrong is one line."""

import sys

import pytest

from perfgate.errors import InputError, RunnerError
from perfgate.machine.tools import Ended, Tool

TOOL = Tool(timeout_s=30.0, failed=RunnerError, hint="install it")


def run_python(code, *, tool=TOOL, content=b""):
    return tool.call([sys.executable, "-c", code], name="the script", content=content)


def test_call__what_it_reads_and_prints():
    done = run_python("import sys; print(sys.stdin.read()[::-1], end='')", content=b"abc")

    assert (done.code, done.output, done.errors) == (0, b"cba", "")


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("import sys; sys.exit('first\\nlast')", "last"),
        ("print('only printed'); raise SystemExit(3)", "only printed"),
        ("raise SystemExit(3)", "no message"),
        ("import sys; sys.exit('x' * 999)", "x" * 300),
        ("import sys; sys.stderr.buffer.write(b'\\xff'); raise SystemExit(3)", "\ufffd"),
    ],
)
def test_call__fails_with_its_last_line(code, last):
    with pytest.raises(RunnerError) as caught:
        run_python(code)

    assert caught.value.args == (f"the script: failed ({last})",)


def test_call__takes_too_long():
    with pytest.raises(RunnerError, match=r"^the script: did not end within 0 s$"):
        run_python("import time; time.sleep(60)", tool=Tool(timeout_s=0.2, failed=RunnerError))


def test_run__is_not_there():
    with pytest.raises(InputError, match=r"^/no/such: cannot be run \(No such file or directory\); install it$"):
        TOOL.run(["/no/such"])


def test_run__an_exit_code_is_an_answer():
    done = TOOL.run([sys.executable, "-c", "raise SystemExit(7)"])

    assert done == Ended(code=7, output=b"", errors="")
