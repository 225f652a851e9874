"""A repository, a machine and GitHub's own actions as act needs them: workflow files run here, without docker and network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from perfgate.core import Arm, Fingerprint
from perfgate.evidence import Answers, Question
from perfgate.readers.replies import draw_prompts
from perfgate.results.answers import store_answers
from perfgate.scenario.catalog import read_scenario_text
from perfgate.scenario.schema import parse_scenario
from tests.fakes.engine import fake_answers
from tests.fakes.sessions import FACTS, make_session, write_folder

ROOT = Path(__file__).parents[3]
ACT = shutil.which("act") or shutil.which("act", path=str(ROOT / ".venv" / "bin"))
HEAD, BASE = "a" * 40, "b" * 40
LEFT_AT = "d" * 40
"""Where the pull request left the main branch, which has moved on to BASE since."""
MERGE_BASES = {f"main...{HEAD}": LEFT_AT}
SCENARIO = "gpt-oss-20b-shape-mxfp4-mixed-c16"
H20 = {**FACTS, "gpu": "NVIDIA H20", "gpu_memory_gib": "95.6", "hardware": "nvidia-h20-96gb"}

# On a GPU machine the doctor, the arms and the measurement are played, on an ordinary one what both arms are asked; everything
# else is perfgate itself.
TOOL = """#!/bin/bash
echo "$*" >> "$STORE/commands"
case "$*" in
  "runner doctor"*) exit "${{DOCTOR:-0}}" ;;
  "runner arm"*) mkdir -p "$4" ;;
  "runner cache lend"*) mkdir -p "$4" ;;
  "runner cache offer"*) mkdir -p "$STORE/offered" ;;
  "runner clean"*) ;;
  "runner lock --hardware h20 -- perfgate kernels prove"*) echo "{{}}" > proof.json; exit "${{PROVED:-0}}" ;;
  "runner lock --hardware h20 -- perfgate deps"*) cat "${{PACKAGES:-/dev/null}}" ;;
  "runner lock --hardware h20 -- perfgate bisect"*) cat "$FOUND"; exit "${{SEARCHED:-0}}" ;;
  "engine install"*) mkdir -p "$4" ;;
  "resolve "*) cat "$CHOICES"; exit "${{RESOLVED:-0}}" ;;
  "scheduler "*) cat "${{HOST_WORK:-/dev/null}}"; exit "${{COUNTED:-2}}" ;;
  "runner lock"*) words="$*" out="${{words#*--out }}"; cp -r "$MEASURED" "${{out%% *}}" ;;
  *) PYTHONPATH={root} exec {python} -m perfgate "$@" ;;
esac
"""
# Installing by hash needs the network and would change this environment.
PYTHON = """#!/bin/bash
[ "$1 $2 $3" = "-m pip install" ] && exit 0
exec {python} "$@"
"""


def make_place(tmp_path, settings=""):
    """A repository with the workflow files, one kind of machine, and tools in front of the path."""
    work = tmp_path / "work"
    shutil.copytree(ROOT / ".github", work / ".github")
    for path in (work / ".github" / "workflows").glob("*.yml"):
        path.write_text(_NEWER_THAN_ACT.sub("", path.read_text()))
    (work / ".github" / "perfgate.toml").write_text(f'[hardware.h20]\nscenarios = ["{SCENARIO}"]\n{settings}')
    for folder in ("bin", "store"):
        (tmp_path / folder).mkdir()
    for name, text in (("perfgate", TOOL), ("python", PYTHON), ("valgrind", "#!/bin/bash\n")):
        (tmp_path / "bin" / name).write_text(text.format(python=sys.executable, root=ROOT))
        (tmp_path / "bin" / name).chmod(0o755)
    for command in (["init", "--quiet"], ["remote", "add", "origin", "https://github.com/o/r.git"], ["add", "."]):
        run_git(work, *command)
    run_git(work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "all")
    # What the replaced checkout puts into each folder.
    shutil.copytree(work / ".github", tmp_path / "tree" / ".github")
    (tmp_path / "tree" / "perfgate").symlink_to(ROOT / "perfgate")
    return tmp_path


# Keys that GitHub has and act's schema refuses; the static checks know them.
_NEWER_THAN_ACT = re.compile(r"^ +(?:cache-mode: none|queue: max)\b.*\n", re.MULTILINE)

# A run takes seconds.
HANGS_S = 120.0


def run_git(folder, *words):
    return subprocess.run([shutil.which("git"), "-C", folder, *words], check=True, capture_output=True, text=True).stdout


def measure(place, *, worse=0.0, blocks=4, noise=0.001, problem=None):
    """Record a session of the shipped scenario on an H20, with answers."""
    text, source = read_scenario_text(SCENARIO)
    scenario = parse_scenario(text, source)
    fingerprints = {arm: Fingerprint(facts=H20) for arm in Arm}
    session = make_session(scenario, blocks=blocks, worse=worse, noise=noise, fingerprints=fingerprints)
    folder = write_folder(place / "measured", session, text)
    rules = scenario.equivalence
    question = Question(
        prompts=rules.prompts, input_len=rules.input_len, output_len=rules.output_len, vocab=4096, seed=rules.seed
    )
    asked = {"input_ids": draw_prompts(question), "sampling_params": {"max_new_tokens": rules.output_len}}
    raw = fake_answers.generate(asked)[1]
    for arm, block, start in sorted({(window.arm, window.block, window.start) for window in session.windows}):
        store_answers(folder, raw, Answers(arm=arm, block=block, start=start, question=question))
    if problem:
        with (folder / "events.jsonl").open("a") as file:
            file.write(json.dumps({"event": "problem", "at_s": 1.0, "message": problem}) + "\n")


def make_pull(repository="o/r", *, label="perfgate", draft=False, title="a change", branch="topic"):
    return {
        "number": 7,
        "state": "open",
        "draft": draft,
        "title": title,
        "labels": [{"name": label}],
        "head": {"sha": HEAD, "ref": branch, "repo": {"full_name": repository}},
        "base": {"sha": BASE, "ref": "main", "repo": {"full_name": "o/r", "default_branch": "main"}},
    }


def run_act(place, workflow, event, payload, *, called=(), **environment):
    """Run a workflow file for an event; return the result of each job and step, and all that was printed.

    `called` are repositories that the file calls workflows of, with the folders that stand for them.
    """
    content = {"repository": {"full_name": "o/r", "default_branch": "main"}, **payload}
    (place / "event.json").write_text(json.dumps(content))
    path = place / "work" / ".github" / "workflows" / workflow
    files = (ROOT / ".github" / "workflows").glob("*.yml")
    actions = set(re.findall(r"actions/[a-z-]+@[0-9a-f]{40}", "".join(file.read_text() for file in files)))
    stubs = [f"{action}={ROOT}/tests/fakes/actions/{action[8:].partition('@')[0]}" for action in sorted(actions)]
    variables = {"SOURCE_TREE": place / "tree", "STORE": place / "store", "MEASURED": place / "measured", **environment}
    variables["STORE_UPLOAD"] = ROOT / "tests" / "fakes" / "store_upload.py"
    command = [ACT, event, "--workflows", path, "--eventpath", place / "event.json", "--json", "--no-cache-server"]
    for label in ("ubuntu-24.04", "self-hosted", "linux", "perfgate", "h20"):
        command += ["--platform", f"{label}=-self-hosted"]
    for stub in (*stubs, *called):
        command += ["--local-repository", stub]
    for name, value in variables.items():
        command += ["--env", f"{name}={value}"]
    search = f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    process_environment = {"PATH": search, "HOME": str(place), "PERFGATE_STATE": str(place / "state")}
    command += ["--secret", "GITHUB_TOKEN=t0ken"]
    try:
        done = call_act(command, place / "work", process_environment)
    except subprocess.TimeoutExpired:
        done = call_act(command, place / "work", process_environment)
    return Outcome(done.stdout + done.stderr)


def call_act(command, folder, environment):
    """Run act to its end. Rarely it never ends: it waits for the terminal that it gave a step, which is closed already."""
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False)


class Outcome:
    """What act tells line by line. Jobs that never ran are absent: an exit code alone would call that a success."""

    def __init__(self, output):
        self.output = ""
        self.jobs, self.steps = {}, {}
        for line in output.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("raw_output") or entry.get("level") in {"error", "fatal"}:
                self.output += entry["msg"].rstrip("\n") + "\n"
            if "jobResult" in entry:
                self.jobs[entry["job"].split("/", 1)[1]] = entry["jobResult"]
            if "stepResult" in entry and entry.get("stage") == "Main":
                self.steps[entry["step"]] = entry["stepResult"]


def find_job(outcome, word):
    return next((result for name, result in outcome.jobs.items() if word in name), None)


def find_step(outcome, begin):
    return next((result for name, result in outcome.steps.items() if name.startswith(begin)), None)
