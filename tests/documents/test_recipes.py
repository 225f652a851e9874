"""Each snippet of docs/how-to/recipes.md is run as it stands, against a real socket or files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import yaml

from perfgate.cli import main
from tests.fakes.engine.local_server import run_server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "recipes.md").read_text(encoding="utf-8")
TOOLS = {name: shutil.which(name) for name in ("sh", "jq", "curl")}
needs_tools = pytest.mark.skipif(not all(TOOLS.values()), reason=f"a tool of the recipes is not installed: {TOOLS}")


def read_snippet(title, language):
    """The one snippet of a language below a title."""
    (part,) = re.findall(rf"^## {title}.*?\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    return re.findall(rf"```{language}\n(.*?)```", part, flags=re.DOTALL)[0]


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    """A folder with a measured session in it, as `perfgate demo` leaves one, and this perfgate as the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFGATE_STATE", str(tmp_path / "state"))
    assert main(["demo"]) == 0
    capsys.readouterr()
    command = tmp_path / "bin" / "perfgate"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m perfgate "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run_shell(snippet, folder, **variables):
    """Run a snippet in `sh`, with what it takes from its environment."""
    paths = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment = {**os.environ, **paths, "RESULT_DIR": "perfgate-demo/regression", "no_proxy": "*", **variables}
    command = ["sh", "-c", snippet]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_recipe__junit(folder):
    told = yaml.safe_load(read_snippet("GitLab", "yaml"))["gate"]
    done = run_shell(told["script"], folder)

    assert done.returncode == 1
    assert "<failure" in (folder / told["artifacts"]["reports"]["junit"]).read_text(encoding="utf-8")


@needs_tools
def test_recipe__annotation(folder):
    done = run_shell(read_snippet("GitHub", "sh"), folder)

    assert done.returncode == 1
    assert re.fullmatch(r"::error title=perfgate::REGRESSION: .*\n", done.stdout), done.stdout + done.stderr


@needs_tools
def test_recipe__slack(folder):
    heard = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.headers["Content-type"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_words):
            """Say nothing."""

    with run_server(Hook) as url:
        done = run_shell(read_snippet("Slack", "sh"), folder, SLACK_WEBHOOK=f"{url}/hook")

    assert done.returncode == 0, done.stderr
    ((kind, message),) = heard
    assert kind == "application/json"
    assert re.match(r"perfgate: REGRESSION on nvidia-h100-80gb-hbm3: .*Median ITL is worse by", message["text"])


def test_recipe__weights_and_biases(folder):
    pytest.importorskip("wandb", reason="wandb is not installed; the recipe takes it")
    snippet = read_snippet("Weights & Biases", "python")
    path = re.search(r'load\("(.+?)"\)', snippet)[1]
    script = folder / "recipe.py"
    script.write_text(snippet.replace(path, "perfgate-demo/regression"), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "WANDB_MODE": "offline"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stderr
    (summary,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"REGRESSION" in summary.read_bytes()
