"""Emptying a GPU without root: real processes, a GPU that says who computes on it, and people who are left alone."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.fakes.sick_gpu import build_library, run_with_gpu

# Starts what a build left behind; the GPU tells of it as long as it lives.
LEFT = """
import subprocess, sys, threading
from perfgate.cli import main
job = subprocess.Popen(["sleep", "600"])
set_gpu(name="NVIDIA H20", pids=f"{job.pid} {os.getpid()}", memory_used=10**10)
def watch():
    job.wait()
    time.sleep(0.3)
    set_gpu(name="NVIDIA H20")
threading.Thread(target=watch, daemon=True).start()
code = main(["runner", "clean", "--timeout", "20"])
print("alive" if job.poll() is None else "ended")
job.kill()
sys.exit(code)
"""
STRANGER = """
import sys
from perfgate.cli import main
set_gpu(name="NVIDIA H20", {state})
sys.exit(main(["runner", "clean", "--timeout", "0.1"]))
"""

# One group: what starts a process of the slot's user disturbs who looks for one.
pytestmark = pytest.mark.xdist_group("scrubbed-user")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("nvml"))


def test_clean__ends_what_this_user_left(library, tmp_path):
    done = run_with_gpu(library, tmp_path, LEFT)

    assert (done.returncode, done.stdout) == (0, "1 processes ended\nended\n"), done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user too")
def test_clean__leaves_other_people_alone(library, tmp_path):
    with subprocess.Popen(["/bin/sleep", "600"], user="nobody") as stranger:
        try:
            done = run_with_gpu(library, tmp_path, STRANGER.format(state=f"pids={stranger.pid}"))

            assert done.returncode == 10
            assert f"GPU 0: processes {stranger.pid} still compute on it" in done.stderr
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_clean__memory_without_an_owner(library, tmp_path):
    done = run_with_gpu(library, tmp_path, STRANGER.format(state="memory_used=10**10"))

    assert (done.returncode, done.stderr) == (10, "perfgate: GPU 0: memory is in use though no process shows\n")


def test_clean__a_machine_without_a_gpu(library, tmp_path):
    assert run_with_gpu(library, tmp_path, STRANGER.format(state="count=0")).stdout == "0 processes ended\n"
