"""One class per failure that a user can cause or correct; the CLI turns each into one line and an exit code."""


class PerfgateError(Exception):
    """Something a user can correct. The message says what happened, where, and what to do next."""

    exit_code = 2

    def __str__(self) -> str:
        """One printable line: it may repeat what a stranger wrote, who must not write lines of a job's log."""
        return "".join(char if char.isprintable() else "?" for char in super().__str__())


class InputError(PerfgateError):
    """A file, flag or field that cannot be used; the message names it."""


class ScenarioError(InputError):
    """A scenario file that does not describe a measurement."""


class EvidenceError(InputError):
    """A log or result file that is missing, unreadable or not what it claims to be."""


class HandoffError(InputError):
    """A document from an untrusted job that breaks the schema, or that names another change than that of its run."""


class GitHubError(PerfgateError):
    """GitHub refused a request, or did not answer for longer than a job should wait."""


class GitHubNotFoundError(GitHubError):
    """What a request names is not there, or the token may not see it."""


class GitHubConflictError(GitHubError):
    """Another change came before a request, so that nothing was done."""


class GitHubUnavailableError(GitHubError):
    """GitHub failed while it handled a request that may have been carried out all the same."""


class StaleError(GitHubError):
    """A result of a commit or run that is not the newest, which must not replace what is shown of the newest."""


class RunnerError(PerfgateError):
    """A machine that is not fit, not free or not as it should be, so that nothing was started on it."""

    exit_code = 3


class BaselineError(InputError):
    """A baseline file that is broken or was edited by hand."""


class SlowerError(BaselineError):
    """Sessions that are slower than a baseline may become without a reason to accept that; `what` says which metric."""

    def __init__(self, what: str) -> None:
        """Keep the finding beside the message that says what to do."""
        super().__init__(f"{what}; find the cause, or record why this is right with --accept-slower REASON")
        self.what = what


class WorkloadMismatchError(InputError):
    """Runs of different workloads were asked to be compared."""


CANNOT_MEASURE = "this model cannot measure a MoE kernel"
"""How a message begins that refuses a dense model, or a mixture of experts in name only."""


class ModelError(PerfgateError):
    """The served model is not the mixture-of-experts model that the scenario names."""

    exit_code = 3


class ServerError(PerfgateError):
    """The server under test did not start, died, or did not stop."""

    exit_code = 3


class ClientError(PerfgateError):
    """The load generator failed, so its window is no evidence."""

    exit_code = 3


class TelemetryError(PerfgateError):
    """The machine could be watched and stopped answering, so what disturbed the measurement is unknown."""

    exit_code = 3


class CalibrationError(PerfgateError):
    """Noise that cannot be trusted, so that nothing was stored."""

    exit_code = 3


class EmptyMatrixError(PerfgateError):
    """No cell of a matrix has what is to be drawn."""

    exit_code = 3


class EngineError(PerfgateError):
    """The serving engine is not installed in the arm's environment, or its version is unknown."""


class InterruptedRunError(PerfgateError):
    """A person or a supervisor asked the run to stop; what was measured stays on disk."""

    exit_code = 130
