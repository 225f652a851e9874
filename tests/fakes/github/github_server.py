"""Start the fake GitHub as a process, and talk to its back door."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from perfgate.serving.engine.conversation import open_http


class FakeGitHub:
    def __init__(self, url):
        self.url = url

    def set(self, **state):
        with open_http(5.0) as client:
            client.post(f"{self.url}/_control", json=state).raise_for_status()

    def get(self):
        with open_http(5.0) as client:
            return client.get(f"{self.url}/_control").json()

    def paths(self, method):
        return [entry["path"] for entry in self.get()["log"] if entry["method"] == method]


@contextmanager
def run_fake_github():
    """The process ends when the pipe to it closes, however the test ended."""
    command = [sys.executable, str(Path(__file__).with_name("fake_github.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield FakeGitHub(f"http://127.0.0.1:{process.stdout.readline().strip()}")
        process.stdin.close()
        process.wait(timeout=300)
