"""The first machine of docs/how-to/runners.md from an empty Debian, and what a job of its slot can reach, under a real systemd.

`python -m benchmarks.adoption.machine`, as root, prints the tables of docs/evidence/adoption.md. mmdebstrap makes the system,
systemd is the first process of its namespaces, with polkit, logind and a control group of its own. GPUs are a libnvidia-ml
of the tests and device files without a driver, GitHub is the tests' imitation, its runner a stand-in whose job is the attacks
below; `install.sh`, `init-host`, the units and every command in them are the real ones. The engine is left out.
Each attack is tried twice: by the slot's user in a plain unit, without the polkit rule and the masked manager, and by a job.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.adoption.system import VERSION, Walk, WalkError, clone, make_debian, pack_runner, require_tools, run
from tests.fakes.github.github_server import run_fake_github
from tests.fakes.sick_gpu import build_library

PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "polkitd", "libpam-systemd", "procps"),
    # Step 1 of the page.
    *("ca-certificates", "git", "curl", "openssl", "python3.11-venv"),
)
UNIFIED = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
DEVICES = ((1, 3, "null"), (1, 5, "zero"), (1, 7, "full"), (1, 8, "random"), (1, 9, "urandom"), (5, 0, "tty"), (5, 2, "ptmx"))
NVIDIA = ((195, 0, "nvidia0"), (195, 1, "nvidia1"), (195, 255, "nvidiactl"), (510, 0, "nvidia-uvm"))
OWN = "/dev/mqueue, /dev/shm, /tmp, /var/tmp"
"""Folders that a job may write beside its slot's own; all four are the unit's, and go with it."""

LINGER = "/var/lib/systemd/linger/ghr0"
LEFT = "/run/lock/left"
"""What a job would like to leave behind: its wish to linger, and a file that the next one finds."""

BOOT = """set -eu
cd "$1"
mount --bind . . && cd "$1"
mount -t proc proc proc && mount -t sysfs -o ro sysfs sys && mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev && mkdir dev/pts dev/shm && mount -t devpts devpts dev/pts && mount -t tmpfs tmpfs dev/shm
DEVICES
mount -t tmpfs -o mode=755 tmpfs run && mount --bind proc/sys proc/sys && mount -o remount,bind,ro proc/sys
mkdir -p mnt/old && pivot_root . mnt/old && cd / && umount -l mnt/old
exec env -i container=walk PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init
"""
RUN_JOB = """#!/bin/bash
cd "$(dirname "$0")" || exit
set -a; . ./.env; set +a
./Runner.Worker ./worker.sh
"""
WORKER = "/opt/perfgate/bin/python ./attacks.py\n"
# A line an attack, `attack NAME: what came of it`, on standard output.
ATTACKS = '''
import ctypes, errno, os, pwd, socket, subprocess, time
user, uid = pwd.getpwuid(os.getuid()).pw_name, os.getuid()
def told(name, act):
    try:
        found = act()
        said = "done" if found in (None, 0) else str(found)
    except OSError as error:
        said = errno.errorcode.get(error.errno, str(error))
    except subprocess.TimeoutExpired:
        said = "no answer"
    print(f"attack {name}: {said}", flush=True)
def call(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return None if done.returncode == 0 else (lines[0] if lines else f"ended with {done.returncode}")[:70]
def connect(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
def send(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"x", (address, 80))
def touch(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
def device(path):
    """A device file without a driver: ENXIO is the kernel's own word, said to each user who may open it."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
def invoke(number, *words):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *words) < 0:
        raise OSError(ctypes.get_errno(), "")
told("own GPU", lambda: device("/dev/nvidia0"))
told("neighbour's GPU", lambda: device("/dev/nvidia1"))
told("linger, by loginctl", lambda: call("loginctl", "enable-linger", user))
told("linger, by a file", lambda: touch(f"/var/lib/systemd/linger/{user}"))
told("system bus", lambda: connect("/run/dbus/system_bus_socket"))
told("systemd's own socket", lambda: connect("/run/systemd/private"))
told("a unit of its own", lambda: call("systemd-run", "--quiet", "--no-ask-password", "true"))
for _ in range(50):
    # One that lingers takes a moment to begin.
    if os.path.exists(f"/run/user/{uid}/systemd/private"):
        break
    time.sleep(0.2)
told("a user manager of its own", lambda: connect(f"/run/user/{uid}/systemd/private"))
told("a process in that manager", lambda: call("env", f"XDG_RUNTIME_DIR=/run/user/{uid}", "systemd-run", "--user", "--quiet",
     "sleep", "3600"))
told("another control group", lambda: open("/sys/fs/cgroup/cgroup.procs", "w").write(str(os.getpid())) and None)
told("a user namespace", lambda: os.unshare(os.CLONE_NEWUSER) if hasattr(os, "unshare") else call("unshare", "--user", "true"))
told("io_uring", lambda: invoke(425, 1, ctypes.create_string_buffer(120)))
told("the cloud's metadata", lambda: send("169.254.169.254"))
told("a private network", lambda: send("10.1.2.3"))
told("processes of others", lambda: None if os.path.exists("/proc/1/status") else "not seen")
told("the app's key", lambda: open("/etc/perfgate/app.pem").close())
told("a lock, removed", lambda: os.unlink("/run/perfgate/gate.lock"))
told("a neighbour's mark", lambda: touch("/var/lib/perfgate/quarantine-1.json"))
told("a file for later, in /run/lock", lambda: touch("/run/lock/left"))
told("perfgate itself", lambda: touch("/opt/perfgate/bin/perfgate"))
def find_writable():
    """The folders that this user may write into, but for those of the kernel; not what is below one."""
    found = []
    for top, folders, _ in os.walk("/"):
        if top.startswith(("/proc", "/sys", f"/var/lib/perfgate/slots/{user.removeprefix('ghr')}")) or top.count("/") > 6:
            folders.clear()
        elif os.access(top, os.W_OK):
            found.append(top)
            folders.clear()
    return ", ".join(sorted(found))[:120]
told("folders that it may write", find_writable)
subprocess.Popen(["setsid", "--fork", "sleep", "3600"])
'''


@dataclass(kw_only=True)
class Machine:
    """A booted system: its folder, and the number of its first process out here."""

    root: Path
    init: int

    def type(self, *words: str, is_fine: bool = True) -> str:
        """Run a command as root in the system. Raise WalkError where it fails and should not."""
        surroundings = ("PATH=/usr/local/bin:/usr/sbin:/usr/bin", "FAKE_NVML=/etc/fake-nvml")
        inside = ["nsenter", "--target", str(self.init), "--all", "env", "--ignore-environment", *surroundings]
        done = subprocess.run([*inside, *words], capture_output=True, text=True, check=False)
        if is_fine and done.returncode:
            raise WalkError(f"{shlex.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def write(self, path: str, text: str) -> None:
        """Write a file of the system."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def make_system(place: Path) -> str:
    """An empty Debian with the packages of step 1, two GPUs that have no driver, and nothing of perfgate's."""
    root = place / "system"
    make_debian(root, PACKAGES)
    shutil.copy(build_library(place), root / "usr" / "lib" / "x86_64-linux-gnu")
    (root / "etc/fake-nvml").write_text("name NVIDIA H20\nmemory_total 102625181696\ncount 2\n")
    (root / "etc/systemd/system.conf.d").mkdir()
    (root / "etc/systemd/system.conf.d/nvml.conf").write_text("[Manager]\nDefaultEnvironment=FAKE_NVML=/etc/fake-nvml\n")
    (root / "srv/runner").mkdir()
    files = {"run.sh": RUN_JOB, "worker.sh": WORKER, "attacks.py": ATTACKS}
    (root / "srv/runner/digest").write_text(pack_runner(root / "srv/runner/runner.tar.gz", files))
    (root / "srv/runner/commit").write_text(clone(root / "srv/perfgate"))
    return run(["du", "-sh", root]).split()[0]


@contextmanager
def boot(root: Path) -> Iterator[Machine]:
    """Start systemd as the first process of namespaces of its own, in a control group of its own; end all of it afterwards."""
    top = next(path for path in UNIFIED if (path / "cgroup.controllers").exists())
    group = top / f"perfgate-walk-{os.getpid()}"
    group.mkdir()
    nodes = "\n".join(f"mknod -m 666 dev/{name} c {major} {minor}" for major, minor, name in (*DEVICES, *NVIDIA))
    enter = f'echo $$ > {group}/cgroup.procs; exec unshare --mount --pid --fork --ipc --uts --cgroup --kill-child "$@"'
    words = ["sh", "-c", enter, "sh", "sh", "-c", BOOT.replace("DEVICES", nodes), "sh", str(root)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as outer:
        try:
            machine = Machine(root=root, init=find_init(outer.pid))
            wait_for(lambda: machine.type("systemctl", "is-system-running", is_fine=False).strip() in {"running", "degraded"})
            yield machine
        finally:
            outer.kill()
            outer.wait()
            wait_for(lambda: remove(group))


def find_init(outer: int) -> int:
    """The one child of `unshare`, as it is numbered out here."""
    children = Path(f"/proc/{outer}/task/{outer}/children")
    wait_for(lambda: bool(children.read_text().split()))
    return int(children.read_text().split()[0])


def remove(group: Path) -> bool:
    """Remove a control group with all below it; False while something of it lives."""
    try:
        for path in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            path.rmdir()
        group.rmdir()
    except OSError:
        return False
    return True


def wait_for(is_so: object, timeout_s: float = 300.0) -> None:
    """Ask until it is so. Raise WalkError where it is not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not is_so():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise WalkError("waited too long for the machine")
        time.sleep(0.2)


def install(machine: Machine) -> str:
    """Step 2 of the page."""
    commit, digest = ((machine.root / "srv/runner" / name).read_text() for name in ("commit", "digest"))
    given = ("PERFGATE_SOURCE=/srv/perfgate", "PERFGATE_ENGINE=", "PERFGATE_RUNNER=file:///srv/runner/runner.tar.gz")
    return machine.type("env", *given, "sh", "/srv/perfgate/deploy/install.sh", commit, VERSION, digest).splitlines()[-1]


def prepare(machine: Machine) -> str:
    """Steps 3 and 4."""
    fit = machine.type("perfgate", "runner", "doctor", "--expect", "h20").splitlines()[-1]
    done = machine.type("perfgate", "runner", "init-host", "--repository", "o/r", "--clock-mhz", "1500")
    left = len(re.findall(r"^\d+\. ", done, re.MULTILINE))
    return f"{fit}; {len(done.splitlines()) - left} things done, {left} left for a person"


def register(machine: Machine, api_url: str) -> str:
    """Steps 6 and 7: the app's key, and where it registers."""
    machine.type("openssl", "genrsa", "-out", "/etc/perfgate/app.pem", "2048")
    machine.type("chmod", "400", "/etc/perfgate/app.pem")
    lines = ("[registration]", "app_id = 12", "installation = 34", 'key = "/etc/perfgate/app.pem"', 'scope = "repos/o/r"')
    settings = (machine.root / "etc/perfgate/runner.toml").read_text()
    machine.write("/etc/perfgate/runner.toml", "\n".join((settings, *lines, f'api_url = "{api_url}"', "")))
    return "a key, five lines"


def run_job(machine: Machine) -> str:
    """Step 8: the unit cleans, registers and runs one job, which tries what it can; return the unit's log."""
    machine.type("systemctl", "start", "perfgate-runner@0.service")
    show = ("systemctl", "show", "perfgate-runner@0.service", "--property=SubState", "--value")
    wait_for(lambda: machine.type(*show).strip() in {"auto-restart", "failed", "dead"})
    return machine.type("journalctl", "--no-pager", "--output=cat", "--unit=perfgate-runner@0.service")


def run_plainly(machine: Machine) -> str:
    """The same attacks by the same user in a unit without a sandbox, on a machine without the rule and the mask."""
    uid = machine.type("id", "-u", "ghr0").strip()
    rule = "/etc/polkit-1/rules.d/10-perfgate.rules"
    machine.type("mv", rule, "/root/rule")
    machine.type("systemctl", "unmask", f"user@{uid}.service")
    machine.type("systemctl", "restart", "polkit.service")
    machine.write("/srv/attacks.py", ATTACKS)
    words = ("--uid=ghr0", "--gid=perfgate", "--setenv=HOME=/tmp", "--pipe", "--wait", "--quiet", "--collect")
    shown = machine.type("systemd-run", *words, "/opt/perfgate/bin/python", "/srv/attacks.py", is_fine=False)
    left = find_left(machine)
    machine.type("loginctl", "disable-linger", "ghr0", is_fine=False)
    machine.type("loginctl", "terminate-user", "ghr0", is_fine=False)
    machine.type("pkill", "-KILL", "--uid", uid, is_fine=False)
    machine.type("rm", "-f", LEFT, LINGER)
    machine.type("mv", "/root/rule", rule)
    machine.type("systemctl", "mask", f"user@{uid}.service")
    machine.type("systemctl", "restart", "polkit.service")
    machine.type("systemd-tmpfiles", "--create", "perfgate.conf")
    return f"{shown}\n{left}"


def find_left(machine: Machine) -> str:
    """What of a job is still there: processes of its user, a manager, the wish to linger, files."""
    processes = machine.type("ps", "-o", "comm=", "-U", "ghr0", is_fine=False).split()
    linger, file = (" No such" not in machine.type("ls", path, is_fine=False) for path in (LINGER, LEFT))
    told = {
        "processes left": ", ".join(sorted(set(processes))) or "none",
        "linger left": "yes" if linger else "no",
        "file left": "yes" if file else "no",
    }
    return "\n".join(f"attack {name}: {said}" for name, said in told.items())


def read_attacks(log: str) -> dict[str, str]:
    """What came of each attack."""
    return dict(re.findall(r"^attack ([^:\n]+): (.+)$", log, re.MULTILINE))


def read_score(machine: Machine) -> str:
    """What systemd itself says of the unit as it is loaded."""
    lines = machine.type("systemd-analyze", "security", "--no-pager", "perfgate-runner@0.service", is_fine=False).splitlines()
    return lines[-1].partition(": ")[2]


def print_attacks(plain: dict[str, str], job: dict[str, str]) -> None:
    """The table of attacks."""
    print("\n| a process of the slot's user | in a plain unit | in the slot's unit |\n|:--|:--|:--|")
    for name, said in plain.items():
        print(f"| {name} | {said} | {job.get(name, 'not tried')} |")


def require_held(job: dict[str, str], names: Sequence[str]) -> None:
    """Raise WalkError where one of the attacks came through."""
    if came := [name for name in names if job.get(name, "done") == "done"]:
        raise WalkError(f"came through in the slot's unit: {', '.join(came)}")
    if (found := job["folders that it may write"]) != OWN:
        raise WalkError(f"a job may write {found}, and should write {OWN}")


def main() -> None:
    """Walk, attack, print both tables."""
    require_tools("git", "mmdebstrap", "unshare", "nsenter", "pivot_root")
    # So that no machine is left where this is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="perfgate-machine-", dir="/var/tmp") as folder, run_fake_github() as github:
        walk = Walk(place=Path(folder))
        walk.step("1 packages, on an empty Debian", lambda: make_system(walk.place))
        with boot(walk.place / "system") as machine:
            walk.step("2 perfgate and GitHub's runner", lambda: install(machine))
            walk.step("3, 4 `doctor`, `init-host`", lambda: prepare(machine))
            plain = read_attacks(run_plainly(machine))
            walk.step("6, 7 key and `[registration]`", lambda: register(machine, github.url))
            log = walk.step("8 the unit: clean, register, one job, clean", lambda: run_job(machine))
            job = read_attacks(f"{log}\n{find_left(machine)}")
            walk.rows[-1] = (*walk.rows[-1][:1], f"{len(job)} attacks", walk.rows[-1][2])
            score = read_score(machine)
    walk.print_table()
    print_attacks(plain, job)
    print(f"\n`systemd-analyze security`: {score}")
    require_held(job, [name for name in plain if name != "own GPU"])


if __name__ == "__main__":
    main()
