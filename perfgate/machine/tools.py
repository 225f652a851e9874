"""How an external program is run to its end: bounded in time, its errors kept, a failure reported in one line."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from perfgate.errors import InputError, PerfgateError

MAX_WORDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A program that ended: its exit code and what it printed, bytes that are not UTF-8 replaced in the texts."""

    code: int
    output: bytes
    errors: str

    @property
    def text(self) -> str:
        """What it printed."""
        return self.output.decode("utf-8", "replace")

    @property
    def last(self) -> str:
        """The last line of its errors, else of what it printed; `no message` if it said nothing."""
        lines = (self.errors.strip() or self.text.strip() or "no message").splitlines()
        return lines[-1][:MAX_WORDS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """How long a program may take, and the errors that are raised, with what to do where it is missing."""

    timeout_s: float
    hint: str = "install it"
    missing: type[PerfgateError] = InputError
    failed: type[PerfgateError] = InputError

    def run(self, argv: Sequence[str], *, name: str | None = None, content: bytes = b"") -> Ended:
        """Run a program with `content` as its input, whatever its exit code. `name` is what messages call it.

        Raise `missing` where it cannot be run, and `failed` where it has not ended in time.
        """
        try:
            done = subprocess.run(argv, input=content, capture_output=True, timeout=self.timeout_s, check=False)
        except OSError as error:
            raise self.missing(f"{argv[0]}: cannot be run ({error.strerror}); {self.hint}") from None
        except subprocess.TimeoutExpired:
            raise self.failed(f"{name or argv[0]}: did not end within {self.timeout_s:.0f} s") from None
        return Ended(code=done.returncode, output=done.stdout, errors=done.stderr.decode("utf-8", "replace"))

    def call(self, argv: Sequence[str], *, name: str | None = None, content: bytes = b"") -> Ended:
        """Run a program as `run` does; raise `failed` with the last line that it said where its exit code is not 0."""
        done = self.run(argv, name=name, content=content)
        if done.code:
            raise self.failed(f"{name or argv[0]}: failed ({done.last})")
        return done
