"""The image of deploy/image/Dockerfile, built from nothing and started as deploy/kubernetes/values.yaml has a pod started.

`python -m benchmarks.adoption.image [--engine]`, as root, prints a table of docs/evidence/adoption.md. No daemon is needed:
mmdebstrap makes the base from Debian's archive, buildah follows the Dockerfile in a chroot, and unshare starts what was built:
without rights, its root read-only, with the values' command, variables and volumes. GitHub's runner is a stand-in that does
what a runner does here: it calls the hook before a job, from a process called Runner.Worker. GPUs there are none. Without
--engine the engine is left out; with it, it is imported and no server is started.
"""

from __future__ import annotations

import argparse
import http.server
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from benchmarks.adoption.system import ROOT, VERSION, Walk, WalkError, clone, make_debian, pack_runner, require_tools, run

# What GitHub's runner does of a job here: the hook, and then a step that runs whatever the hook said.
RUN = """#!/bin/bash
cd "$(dirname "$0")" || exit
./Runner.Worker ./worker.sh
code=$?
# GitHub's listener outlives a worker that was killed, to report the job; a pod's other processes end with it.
sleep 2
exit "$code"
"""
WORKER = """
"$ACTIONS_RUNNER_HOOK_JOB_STARTED"
echo "step: uid $(id -u), hook ended with $?"
touch /var/tmp/x 2>/dev/null && echo "step: the root can be written"
touch "$HOME/x" /tmp/x /dev/shm/x && echo "step: home, /tmp and /dev/shm can be written"
grep -q '^NoNewPrivs:.1' /proc/self/status && grep -q '^CapBnd:.0*$' /proc/self/status && echo "step: no rights"
perfgate --version
perfgate runner doctor --expect h20; echo "step: doctor ended with $?"
(cd "$HOME" && perfgate demo); echo "step: demo ended with $?"
"$ACTIONS_RUNNER_HOOK_JOB_COMPLETED"; echo "step: last hook ended with $?"
"""
ENGINE_WORKER = """
/opt/perfgate/bin/python -m pip check && echo "step: pip finds nothing broken"
/opt/perfgate/bin/python - <<'END'
import sglang
from perfgate.serving.client_worker import load_bench_serving
print("step: SGLang", sglang.__version__, "and", load_bench_serving().__name__)
END
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


@dataclass(kw_only=True)
class ImageWalk(Walk):
    """The walk, whether the engine is in the image, and a store of images below its folder."""

    has_engine: bool

    def buildah(self, *words: str) -> str:
        """Run buildah with a store below the folder."""
        store = ["--root", str(self.place / "store"), "--runroot", str(self.place / "run"), "--storage-driver", "vfs"]
        return run(["buildah", *store, *words]).strip()

    @property
    def system(self) -> Path:
        """The built image as a folder."""
        return Path(self.buildah("mount", "pod"))


def make_base(walk: ImageWalk) -> str:
    """Debian as an image; return its digest."""
    archive = walk.place / "base.tar"
    make_debian(archive)
    walk.buildah("from", "--name", "base", "scratch")
    walk.buildah("add", "--quiet", "base", str(archive), "/")
    archive.unlink()
    walk.buildah("commit", "--quiet", "--rm", "base", "localhost/debian:12")
    return find_digest(walk, "localhost/debian:12")


def find_digest(walk: ImageWalk, image: str) -> str:
    """The digest of an image in the store."""
    return walk.buildah("images", "--digests", "--format", "{{.Digest}}", image)


@contextmanager
def serve_runner(place: Path, worker: str) -> Iterator[tuple[str, str]]:
    """The stand-in's archive at an address of this machine, with its digest."""
    (place / "served").mkdir()
    archive = place / "served" / "runner.tar.gz"
    digest = pack_runner(archive, {"run.sh": RUN, "worker.sh": worker})
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(archive.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{archive.name}", digest
        server.shutdown()


def build(walk: ImageWalk, digest: str) -> str:
    """Follow the Dockerfile, from a clone of this checkout's commit."""
    context = walk.place / "context"
    commit = clone(context)
    with serve_runner(walk.place, WORKER + ENGINE_WORKER * walk.has_engine) as (address, sha256):
        wanted = {"BASE": f"localhost/debian@{digest}", "COMMIT": commit, "RUNNER_VERSION": VERSION}
        inputs = {**wanted, "RUNNER_SHA256": sha256, "RUNNER_URL": address, **({} if walk.has_engine else {"ENGINE": ""})}
        options = [word for name, value in inputs.items() for word in ("--build-arg", f"{name}={value}")]
        file = ["--file", str(context / "deploy" / "image" / "Dockerfile"), "--tag", "perfgate-runner"]
        walk.buildah("bud", "--quiet", "--isolation", "chroot", "--network", "host", *file, *options, str(context))
    walk.buildah("from", "--name", "pod", "localhost/perfgate-runner")
    size = walk.buildah("images", "--format", "{{.Size}}", "localhost/perfgate-runner")
    return f"{size}, {find_digest(walk, 'localhost/perfgate-runner')[:19]}..."


def start(walk: ImageWalk, head: str) -> str:
    """Start a pod's container for a job of a pull request from `head`, a repository; return what it printed."""
    values = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "values.yaml").read_text(encoding="utf-8"))
    [container] = values["template"]["spec"]["containers"]
    mount_settings(walk.system, container)
    variables = {one["name"]: one["value"] for one in container["env"]}
    job = {**variables, **make_job(walk.system, head), "HOME": "/home/runner", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    pod = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--net", "sh", "-c", START, "sh", str(walk.system)]
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
    """Return `wanted` in a line. Raise WalkError where one of it is not there, or something is that must not be."""
    if missing := [line for line in wanted if line not in shown] or [f"not {line}" for line in unwanted if line in shown]:
        raise WalkError(f"the pod did not show {missing[0]!r}:\n{shown}")
    return "; ".join(wanted)


UNWANTED = ("the root can be written",)
REFUSED = ("the pull request comes from a fork", "ended with 137")
ADMITTED = (
    *("admitted: pull_request of OWNER/NAME", "step: uid 1001, hook ended with 0", "home, /tmp and /dev/shm can be written"),
    *(
        "step: no rights",
        "no GPU where h20 was asked for",
        "step: doctor ended with 40",
        "REGRESSION: ",
        "step: demo ended with 0",
        "step: last hook ended with 0",
        "ended with 0",
    ),
)


WITH_ENGINE = ("step: pip finds nothing broken", "step: SGLang 0.5.16 and sglang.")


def main() -> None:
    """Build, start twice, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", action="store_true")
    has_engine = parser.parse_args().engine
    wanted = (*ADMITTED, *WITH_ENGINE) if has_engine else ADMITTED
    require_tools("git", "mmdebstrap", "buildah", "unshare", "chroot")
    with tempfile.TemporaryDirectory(prefix="perfgate-image-", dir="/var/tmp") as folder:
        walk = ImageWalk(place=Path(folder), has_engine=has_engine)
        try:
            digest = walk.step("the base, from Debian's archive", lambda: make_base(walk))
            walk.step(f"`buildah bud`, with{'' if has_engine else 'out'} the engine", lambda: build(walk, digest))
            walk.step("a pod for a job of the repository", lambda: expect(start(walk, "OWNER/NAME"), wanted, UNWANTED))
            walk.step("a pod for a job of a fork", lambda: expect(start(walk, "mallory/NAME"), REFUSED, ["step:"]))
        except WalkError as error:
            raise SystemExit(str(error)) from None
    walk.print_table()


if __name__ == "__main__":
    main()
