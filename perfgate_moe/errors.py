"""What a user of the kernels can correct; a command line turns each into one line and an exit code."""

from __future__ import annotations


class MoeError(Exception):
    """Something a user can correct. The message says what happened, where, and what to do next."""

    exit_code = 2

    def __str__(self) -> str:
        """The message as one printable line: it may repeat text from outside, which must not add lines to a job's log."""
        return "".join(char if char.isprintable() else "?" for char in super().__str__())


class MoeInputError(MoeError):
    """A case, plan, shape, file or option that cannot be used; the message names it."""


class BuildError(MoeError):
    """A kernel could not be compiled or inspected."""


class TimingError(MoeError):
    """The layers of two arms could not be timed by turns; the message names the arm."""


class NotApplicableError(MoeError):
    """An implementation says that it does not cover this problem, and why; neither a pass nor a failure."""


class TuningError(MoeError):
    """A search that ended without a plan that is both fast and right."""


class VacuousCaseError(MoeError):
    """The case's answer is so small or large that its tolerances would say nothing; a defect of the suite, not of a kernel."""
