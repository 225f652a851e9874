"""Each commit that is measured, checked out once and built once."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from perfgate.bisection.guard import Guard, read_last
from perfgate.bisection.repository import SHORT, copy_commit
from perfgate.bisection.trial import CommitError
from perfgate.errors import InputError, RunnerError
from perfgate.serving.engine.environments import PACKAGES, build_arm, find_package

BUILD_TIMEOUT_S = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckoutStore:
    """Where commits of `repo` are made ready, below `folder`.

    `build` is a command that runs once in each fresh checkout. With `engine`, a Python, the package in the checkout is
    installed into an environment of its own over that Python's.
    """

    repo: Path
    folder: Path
    guard: Guard
    build: str = ""
    engine: Path | None = None
    package: str = ""

    def find_checkout(self, sha: str) -> Path:
        """The folder of a commit's files."""
        return self.folder / "checkouts" / sha[:SHORT]

    def find_python(self, sha: str) -> Path:
        """The Python that runs a commit's package."""
        return self.folder / "environments" / sha[:SHORT] / "bin" / "python"

    def fill(self, command: str, sha: str) -> list[str]:
        """Split a command as a shell would and fill in `{commit}` and `{checkout}`; no shell runs it."""
        words = {"{commit}": sha, "{checkout}": str(self.find_checkout(sha).resolve())}
        argv = shlex.split(command)
        for mark, word in words.items():
            argv = [part.replace(mark, word) for part in argv]
        return argv

    def has(self, sha: str) -> bool:
        """Whether the files of a commit that was built are still there."""
        return self.find_checkout(sha).is_dir() and (self.engine is None or self.find_python(sha).exists())

    def make(self, sha: str) -> None:
        """Check a commit out and build it, whatever a broken attempt left. Raise CommitError when it cannot be built."""
        checkout, environment = self.find_checkout(sha), self.find_python(sha).parents[1]
        for folder in (checkout, environment):
            shutil.rmtree(folder, ignore_errors=True)
        copy_commit(self.repo, sha, checkout)
        if self.build:
            self._run_build(sha, checkout)
        if self.engine is not None:
            self._install(checkout, environment)

    def _run_build(self, sha: str, checkout: Path) -> None:
        log = self.folder / "logs" / f"build-{sha[:SHORT]}.log"
        log.parent.mkdir(exist_ok=True)
        try:
            code = self.guard.run(self.fill(self.build, sha), checkout, log, BUILD_TIMEOUT_S)
        except OSError as error:
            raise InputError(f"--build {self.build}: cannot be run ({error.strerror})") from None
        except subprocess.TimeoutExpired:
            raise CommitError(f"--build did not end within {BUILD_TIMEOUT_S:.0f} s ({log})") from None
        if code:
            raise CommitError(f"--build ended with exit code {code}: {read_last(log)} ({log})")

    def _install(self, checkout: Path, environment: Path) -> None:

        try:
            source = find_package(checkout, (self.package,) if self.package else PACKAGES)
        except InputError as error:
            raise CommitError(f"{error}, or name it with --package") from None
        environment.parent.mkdir(exist_ok=True)
        try:
            build_arm(source, environment, self.engine or Path())
        except RunnerError as error:
            raise CommitError(f"installing: {error}") from None
