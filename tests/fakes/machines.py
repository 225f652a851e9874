"""A machine with one slot: its settings, GitHub's unpacked runner, the app's key, and commands run on its fake GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fakes.sick_gpu import run_with_gpu

ROOT = Path(__file__).parents[2]
OPENSSL = shutil.which("openssl")
NEEDS = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root prepares a slot"),
    pytest.mark.skipif(OPENSSL is None, reason="OpenSSL signs the app's token"),
]
RUN = """
import sys
from perfgate.cli import main
set_gpu(name="NVIDIA H20", memory_total=102625181696)
sys.exit(main({words!r}))
"""
SETTINGS = """
repositories = ["o/r"]
state = "{place}/marks"
cache = "{place}/cache"
pristine = "{place}/pristine"
folder = "{place}/slots"
hooks = "{root}/deploy/hooks"
[slots.0]
user = "nobody"
gpu = "GPU-0000"
[registration]
app_id = 12
installation = 34
key = "{key}"
scope = "repos/o/r"
api_url = "{url}"
"""


def make_key(folder):
    path = folder / "app.pem"
    subprocess.run([OPENSSL, "genrsa", "-out", path, "2048"], check=True, capture_output=True)
    return path


class Machine:
    """`run` is what root types there, `run_job` what a job of slot 0 types."""

    def __init__(self, place, library, key, url):
        self.place, self.library = place, library
        self.home = place / "slots" / "0"
        self.cache = place / "cache"
        (place / "pristine").mkdir()
        (place / "pristine" / "run.sh").write_text("#!/bin/sh\n")
        (place / "r.toml").write_text(SETTINGS.format(place=place, root=ROOT, key=key, url=url))

    def run(self, *words, **environment):
        environment = {"PERFGATE_RUNNER_CONFIG": str(self.place / "r.toml"), **environment}
        return run_with_gpu(self.library, self.place, RUN.format(words=list(words)), **environment)

    def run_job(self, *words, run=21, attempt=1, repository="o/r"):
        return self.run(
            *words,
            HOME=str(self.home),
            GITHUB_REPOSITORY=repository,
            GITHUB_RUN_ID=str(run),
            GITHUB_RUN_ATTEMPT=str(attempt),
        )
