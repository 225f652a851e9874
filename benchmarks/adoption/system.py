"""What walks of machines share: steps that are timed, a Debian from its archive, and a stand-in for GitHub's runner."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITES = ("http://deb.debian.org/debian bookworm", "http://deb.debian.org/debian-security bookworm-security")
VERSION = "2.329.0"
"""The release of GitHub's runner that the stand-in is called."""


class WalkError(Exception):
    """A step failed, or did not show what it is for."""


@dataclass(kw_only=True)
class Walk:
    """A folder of its own for all that is made, and the rows so far: what was done, what showed, and seconds."""

    place: Path
    rows: list[tuple[str, str, float]] = field(default_factory=list)

    def step(self, what: str, act: Callable[[], str]) -> str:
        """Do one step, keep what it showed and how long it took, and return what it showed."""
        begun = time.monotonic()
        shown = act()
        self.rows.append((what, shown, time.monotonic() - begun))
        print(f"{what}: {shown}", file=sys.stderr)
        return shown

    def print_table(self) -> None:
        """Print the rows as markdown."""
        print("| step | seconds | what showed |\n|:--|--:|:--|")
        for what, shown, seconds in self.rows:
            print(f"| {what} | {seconds:.1f} | {shown} |")


def require_tools(*tools: str) -> None:
    """End where this is not root, or where a tool is missing."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if os.getuid() or missing:
        raise SystemExit(f"run it as root, with {', '.join(tools)}; missing: {', '.join(missing) or 'nothing'}")


def run(command: Sequence[str | Path]) -> str:
    """Run a command and return what it printed. Raise WalkError with its last lines where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WalkError(f"{' '.join(map(str, command))[:300]}: {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def make_debian(target: Path, packages: Iterable[str] = ()) -> None:
    """Debian 12 from its archive, a folder or a tar by its name, with what reaches the site's package mirror.

    PIP_CERT names the certificates of a mirror that has an authority of its own.
    """
    options = [f"--include={','.join(packages)}"] if packages else []
    if certificates := os.environ.get("PIP_CERT"):
        settings = target.parent / "pip.conf"
        settings.write_text("[global]\ncert = /etc/site.pem\n")
        options += [
            f"--customize-hook=upload {certificates} /etc/site.pem",
            f"--customize-hook=upload {settings} /etc/pip.conf",
        ]
    suites = [f"deb {suite} main" for suite in SUITES]
    run(["mmdebstrap", "--quiet", "--variant=minbase", *options, "bookworm", target, *suites])


def pack_runner(target: Path, files: Mapping[str, str]) -> str:
    """Write the archive of a runner that does what `files` say, run.sh first; return its digest.

    A shell under the name of GitHub's worker is beside them: by that name the hook finds what it has to end.
    """
    shell = Path("/bin/bash").resolve().read_bytes()
    with tarfile.open(target, "w:gz") as tar:
        for name, content in (*((name, text.encode()) for name, text in files.items()), ("Runner.Worker", shell)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    return hashlib.sha256(target.read_bytes()).hexdigest()


def clone(target: Path) -> str:
    """Clone this checkout's commit; return its 40 digits."""
    run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", target])
    return run(["git", "-C", target, "rev-parse", "HEAD"]).strip()
