"""A small repository that is made here: a program that really gets slower is found, past a kill and a broken commit."""

import json
import signal
import subprocess
import sys
import time

from tests.e2e.commands import build_environment, run_perfgate, wait_for_leftovers
from tests.fakes.repositories import grow, make_repository

COMMITS, CULPRIT, BROKEN = 16, 11, 8
# Processor time, so that a busy machine counts little; three times the work, so that nothing else looks like it.
PROGRAM = """import time
begun = time.process_time()
print("warming up", sum(number * number % 7 for number in range({work})) % 2)
print(time.process_time() - begun)
# change {number}
"""


def write_program(number):
    text = PROGRAM.format(work=900_000 if number >= CULPRIT else 300_000, number=number)
    return {"program.py": "this is no Python\n" if number == BROKEN else text, "unrelated.txt": str(number)}


def read_journal(folder):
    path = folder / "journal.jsonl"
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def kill_after(process, folder, lines):
    """Kill a search once its journal has so many lines."""
    deadline = time.monotonic() + 300
    while len(read_journal(folder)) < lines and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_bisect__a_real_program_with_a_kill_on_the_way(tmp_path):
    repo, out, state = make_repository(tmp_path / "repo"), tmp_path / "out", tmp_path / "state"
    hashes = grow(repo, COMMITS, write_program)
    command = ["bisect", hashes[0], "main", "--repo", repo, "--out", out, "--budget", "60", "--confidence", "0.999"]
    command += [
        "--command",
        f"{sys.executable} program.py",
        "--build",
        f"{sys.executable} -m py_compile program.py",
        "--aa-blocks",
        "3",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "perfgate", *map(str, command)],
        env=build_environment(state),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    kill_after(process, out, 6)
    before = read_journal(out)
    assert process.returncode == -signal.SIGKILL
    assert wait_for_leftovers(state) == []

    again = run_perfgate(state, *command)
    assert (again.code, "already holds a search" in again.err) == (2, True)

    done = run_perfgate(state, *command, "--resume", "--format", "json")
    found = json.loads(done.out)
    skipped = [row["commit"] for row in found["commits"] if row["skipped"]]

    assert done.code == 0, done.err
    assert (found["outcome"], found["culprit"]) == ("FOUND", hashes[CULPRIT])
    assert found["command"] == f"git -C {repo} show {hashes[CULPRIT]}"
    # The search begins in the middle, which is the broken commit.
    assert skipped == [hashes[BROKEN]]
    assert found["commits"][COMMITS]["change"] > 0.5
    assert read_journal(out)[: len(before)] == before
    assert found["blocks"] < 3 * COMMITS
    assert wait_for_leftovers(state) == []
