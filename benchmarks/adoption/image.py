"""The image of deploy/image/Dockerfile, built from nothing and started as deploy/kubernetes/values.yaml has a pod started.

`python -m benchmarks.adoption.image`, as root, prints a table of docs/evidence/adoption.md. No daemon is needed: mmdebstrap
makes the base from Debian's archive, buildah follows the Dockerfile in a chroot, and unshare starts what was built: without
rights, its root read-only, with the values' command, variables and volumes. GitHub's runner is a stand-in that does what a
runner does here: it calls the hook before a job, from a process called Runner.Worker. The engine is left out, GPUs there are
none. PIP_CERT names the certificates of a package mirror, where it has an authority of its own.
"""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
TOOLS = ("git", "mmdebstrap", "buildah", "unshare", "chroot", "setpriv")
SUITES = ("http://deb.debian.org/debian bookworm", "http://deb.debian.org/debian-security bookworm-security")
# What GitHub's runner does of a job here: the hook, and then a step that runs whatever the hook said.
RUN = """#!/bin/bash
cd "$(dirname "$0")" && exec ./Runner.Worker ./worker.sh
"""
WORKER = """
"$ACTIONS_RUNNER_HOOK_JOB_STARTED"
echo "step: uid $(id -u), hook ended with $?"
touch /opt/perfgate/x 2>/dev/null && echo "step: the root can be written"
touch "$HOME/x" /tmp/x /dev/shm/x && echo "step: home, /tmp and /dev/shm can be written"
grep -q '^NoNewPrivs:.1' /proc/self/status && grep -q '^CapBnd:.0*$' /proc/self/status && echo "step: no rights"
perfgate --version
perfgate runner doctor --expect h20; echo "step: doctor ended with $?"
"$ACTIONS_RUNNER_HOOK_JOB_COMPLETED"; echo "step: last hook ended with $?"
"""
START = """set -eu
mount --bind "$1" "$1"
for place in home/runner tmp dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$1/$place"; done
mount -t proc proc "$1/proc"
for device in null zero urandom; do mount --bind "/dev/$device" "$1/dev/$device"; done
mount -o remount,bind,ro "$1"
root=$1; shift
exec chroot "$root" setpriv --reuid=1001 --regid=1001 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""


class ImageError(Exception):
    """The image could not be built, or did not do what it is for."""


@dataclass(kw_only=True)
class Attempt:
    """A folder of its own for all that is made, and the rows so far: what was done, what showed, and seconds."""

    place: Path
    rows: list[tuple[str, str, float]] = field(default_factory=list)

    def step(self, what: str, deed: Callable[[], str]) -> None:
        """Do one step and keep what it showed and how long it took."""
        begun = time.monotonic()
        shown = deed()
        self.rows.append((what, shown, time.monotonic() - begun))
        print(f"{what}: {shown}", file=sys.stderr)

    def buildah(self, *words: str) -> str:
        """Run buildah with a store below the folder."""
        store = ["--root", str(self.place / "store"), "--runroot", str(self.place / "run"), "--storage-driver", "vfs"]
        return run(["buildah", *store, *words]).strip()

    @property
    def system(self) -> Path:
        """The built image as a folder."""
        return Path(self.buildah("mount", "pod"))


def run(command: Sequence[str | Path], **options: object) -> str:
    """Run a command and return what it printed. Raise ImageError with its last lines where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise ImageError(f"{command[0]}: ended with {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return str(done.stdout)


def make_base(attempt: Attempt) -> str:
    """Debian from its archive, and what reaches the site's package mirror; as an image with a digest."""
    archive = attempt.place / "base.tar"
    run(["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", archive, *(f"deb {suite} main" for suite in SUITES)])
    attempt.buildah("from", "--name", "base", "scratch")
    attempt.buildah("add", "--quiet", "base", str(archive), "/")
    archive.unlink()
    if certificates := os.environ.get("PIP_CERT"):
        (attempt.place / "pip.conf").write_text("[global]\ncert = /etc/site.pem\n")
        attempt.buildah("copy", "--quiet", "base", certificates, "/etc/site.pem")
        attempt.buildah("copy", "--quiet", "base", str(attempt.place / "pip.conf"), "/etc/pip.conf")
    attempt.buildah("commit", "--quiet", "--rm", "base", "localhost/debian:12")
    return find_digest(attempt, "localhost/debian:12")


def find_digest(attempt: Attempt, image: str) -> str:
    """The digest of an image in the store."""
    return attempt.buildah("images", "--digests", "--format", "{{.Digest}}", image)


@contextmanager
def serve_runner(place: Path) -> Iterator[tuple[str, str]]:
    """The stand-in's archive at an address of this machine, with its digest."""
    archive = place / "served" / "runner.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in (("run.sh", RUN.encode()), ("worker.sh", WORKER.encode()), ("Runner.Worker", find_shell())):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(archive.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{archive.name}", hashlib.sha256(archive.read_bytes()).hexdigest()
        server.shutdown()


def find_shell() -> bytes:
    """A shell under the name of GitHub's worker, by which the hook finds what it has to end."""
    return Path("/bin/bash").resolve().read_bytes()


def build(attempt: Attempt, digest: str) -> str:
    """Follow the Dockerfile, from a clone of this checkout's commit."""
    context = attempt.place / "context"
    run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", context])
    commit = run(["git", "-C", context, "rev-parse", "HEAD"]).strip()
    with serve_runner(attempt.place) as (address, sha256):
        wanted = {"BASE": f"localhost/debian@{digest}", "COMMIT": commit, "ENGINE": "", "RUNNER_VERSION": "2.329.0"}
        inputs = {**wanted, "RUNNER_SHA256": sha256, "RUNNER_URL": address}
        options = [word for name, value in inputs.items() for word in ("--build-arg", f"{name}={value}")]
        file = ["--file", str(context / "deploy" / "image" / "Dockerfile"), "--tag", "perfgate-runner"]
        attempt.buildah("bud", "--quiet", "--isolation", "chroot", "--network", "host", *file, *options, str(context))
    attempt.buildah("from", "--name", "pod", "localhost/perfgate-runner")
    size = attempt.buildah("images", "--format", "{{.Size}}", "localhost/perfgate-runner")
    return f"{size}, {find_digest(attempt, 'localhost/perfgate-runner')[:19]}..."


def start(attempt: Attempt, head: str) -> str:
    """Start a pod's container for a job of a pull request from `head`, a repository; return what it printed."""
    values = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "values.yaml").read_text(encoding="utf-8"))
    [container] = values["template"]["spec"]["containers"]
    mount_settings(attempt.system, container)
    variables = {one["name"]: one["value"] for one in container["env"]}
    job = {**variables, **make_job(attempt.system, head), "HOME": "/home/runner", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    pod = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--net", "sh", "-c", START, "sh", str(attempt.system)]
    words = ["env", "--ignore-environment", *(f"{name}={value}" for name, value in job.items()), *container["command"]]
    done = subprocess.run([*pod, *words], capture_output=True, text=True, check=False, timeout=300)
    return f"{done.stdout}{done.stderr}ended with {done.returncode}"


def mount_settings(system: Path, container: Mapping[str, list[Mapping[str, str]]]) -> None:
    """The places of the pod's volumes, and the policy of the ConfigMap in its own."""
    for volume in container["volumeMounts"]:
        (system / volume["mountPath"].lstrip("/")).mkdir(parents=True, exist_ok=True)
    for device in ("null", "zero", "urandom"):
        (system / "dev" / device).touch()
    cluster = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "cluster.yaml").read_text(encoding="utf-8"))
    policy = next(one for one in cluster if one["kind"] == "ConfigMap")
    (system / "etc/perfgate/runner.toml").write_text(policy["data"]["runner.toml"], encoding="utf-8")


def make_job(system: Path, head: str) -> dict[str, str]:
    """What GitHub's runner tells the hook of a job."""
    ours = "OWNER/NAME"
    pull = {"number": 7, "user": {"login": "ada"}, "head": {"repo": {"full_name": head}}, "base": {"repo": {"full_name": ours}}}
    (system / "etc/perfgate/event.json").write_text(json.dumps({"repository": {"full_name": ours}, "pull_request": pull}))
    workflow = f"{ours}/.github/workflows/perfgate-pr.yml@refs/pull/7/merge"
    told = {"EVENT_PATH": "/etc/perfgate/event.json", "EVENT_NAME": "pull_request", "REPOSITORY": ours, "RUN_ID": "21"}
    return {f"GITHUB_{name}": value for name, value in {**told, "WORKFLOW_REF": workflow, "RUN_ATTEMPT": "1"}.items()}


def expect(shown: str, wanted: Sequence[str], unwanted: Sequence[str]) -> str:
    """Return `wanted` in a line. Raise ImageError where one of it is not there, or something is that must not be."""
    if missing := [line for line in wanted if line not in shown] or [f"not {line}" for line in unwanted if line in shown]:
        raise ImageError(f"the pod did not show {missing[0]!r}:\n{shown}")
    return "; ".join(wanted)


ADMITTED = (
    *("admitted: pull_request of OWNER/NAME", "step: uid 1001, hook ended with 0", "home, /tmp and /dev/shm can be written"),
    *("step: no rights", "step: doctor ended with 30", "step: last hook ended with 0", "ended with 0"),
)


def main() -> None:
    """Build, start twice, print the table."""
    if os.getuid() or (missing := [tool for tool in TOOLS if shutil.which(tool) is None]):
        raise SystemExit(
            f"needs root, and {', '.join(TOOLS)}" + (f"; missing: {', '.join(missing)}" if not os.getuid() else "")
        )
    with tempfile.TemporaryDirectory(prefix="perfgate-image-", dir="/var/tmp") as folder:
        attempt = Attempt(place=Path(folder))
        try:
            digest: list[str] = []
            attempt.step("the base, from Debian's archive", lambda: digest.append(make_base(attempt)) or digest[0][:19] + "...")
            attempt.step("`buildah bud`, without the engine", lambda: build(attempt, digest[0]))
            ran = lambda head, *lines: expect(start(attempt, head), *lines)  # noqa: E731 - three words, twice
            attempt.step("a pod for a job of the repository", lambda: ran("OWNER/NAME", ADMITTED, ["the root can be"]))
            refused = ("the pull request comes from a fork", "ended with 137")
            attempt.step("a pod for a job of a fork", lambda: ran("mallory/NAME", refused, ["step:"]))
        except ImageError as error:
            raise SystemExit(str(error)) from None
    print("| step | seconds | what showed |\n|:--|--:|:--|")
    for what, shown, seconds in attempt.rows:
        print(f"| {what} | {seconds:.1f} | {shown} |")


if __name__ == "__main__":
    main()
