"""The command line: one lazy table of sub-commands, one place where expected failures become a line and an exit code."""

from __future__ import annotations

import sys
from importlib import import_module
from types import TracebackType

import click

from perfgate import __version__
from perfgate.errors import PerfgateError
from perfgate_moe.errors import MoeError

DEFECT = 70
"""The exit code of what nobody foresaw: EX_SOFTWARE of sysexits.h."""

# Sub-command -> (module that holds a click command named `command`, one-line help). Importing only the one that runs keeps
# `perfgate --help` far under a third of a second.
COMMANDS: dict[str, tuple[str, str]] = {
    "ab": ("perfgate.cli.measuring.ab", "Measure one change against the same server without it, judge and report."),
    "baseline": ("perfgate.cli.keeping.baseline", "Add to, show, diff, expire and verify stored noise bands."),
    "bisect": ("perfgate.cli.measuring.bisect", "Find the commit that made it slower, for a noisy measurement."),
    "calibrate": ("perfgate.cli.measuring.calibrate", "Measure A/A blocks and store this machine's noise."),
    "check": ("perfgate.cli.reading.check", "Judge a result folder again: the same bytes on any machine."),
    "compare": ("perfgate.cli.reading.compare", "Compare bench_serving outputs of two arms: benchstat for serving."),
    "completion": ("perfgate.cli.completion", "Print what makes a shell complete commands and options."),
    "engine": ("perfgate.cli.machine.engine", "Install or describe the CPU serving engine."),
    "explain": ("perfgate.cli.reading.explain", "Say in five sentences why a metric was judged as it was."),
    "export": ("perfgate.cli.reading.export", "Write windows as a tidy CSV or Parquet table."),
    "gate": ("perfgate.cli.measuring.gate", "Calibrate if need be, measure, judge and report: the whole gate."),
    "github": ("perfgate.cli.ci.github", "Plan, judge and publish measurements of pull requests."),
    "handoff": ("perfgate.cli.ci.handoff", "Carry a session from an untrusted job to one that may comment."),
    "history": (
        "perfgate.cli.keeping.history",
        "Keep results in a store that grows: trends, change points, false alarms, costs.",
    ),
    "kernels": ("perfgate.cli.moe.kernels", "Judge fused MoE implementations and build ours ahead of time."),
    "matrix": ("perfgate.cli.measuring.matrix", "Measure every server under every load: one table, no verdict."),
    "model": ("perfgate.cli.machine.model", "Verify that a model is the mixture of experts it should be; make the tiny one."),
    "pack": ("perfgate.cli.keeping.pack", "Pack the raw files of finished sessions into one file each."),
    "power": ("perfgate.cli.reading.power", "Show what a baseline's noise lets the gate find, and at what cost."),
    "profile": ("perfgate.cli.measuring.profile", "Rank the kernels that the arms of a profiled session differ by."),
    "report": ("perfgate.cli.reading.report", "Render a verdict as the pull request comment."),
    "run": ("perfgate.cli.measuring.run", "Measure a scenario in A/B blocks into a result folder."),
    "runner": ("perfgate.cli.machine.runner", "Keep a GPU machine fit, locked, closed to strangers and clean."),
    "scenarios": ("perfgate.cli.machine.scenarios", "List the scenarios that ship with perfgate."),
    "show": ("perfgate.cli.reading.show", "Print bench_serving output or a matrix log as a table."),
}


class LazyGroup(click.Group):
    """A click group that imports a sub-command's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every sub-command, sorted."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of `cmd_name`; None for a name that is no command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing one."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in sorted(COMMANDS.items())])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="perfgate")
def program() -> None:
    """Judge whether a change made LLM serving slower, and say how sure the answer is.

    Exit codes: 0 pass or improved, 1 regression, 2 usage or input error, 3 inconclusive or invalid, 70 a defect of perfgate
    itself, 130 interrupted.
    """


def run() -> None:
    """The program. What nobody foresaw ends with 70, because Python's own exit code 1 would say REGRESSION."""
    sys.excepthook = end_defective
    sys.exit(main())


def end_defective(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback, which whoever mends it needs, and end with 70."""
    sys.__excepthook__(kind, error, trace)
    print(f"perfgate: a defect of perfgate itself, please report it: {kind.__name__}", file=sys.stderr)
    raise SystemExit(DEFECT)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code; an expected failure is one line on stderr."""
    try:
        result = program.main(args=argv, prog_name="perfgate", standalone_mode=False)
    except (PerfgateError, MoeError) as error:
        print(f"perfgate: {error}", file=sys.stderr)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print("perfgate: interrupted", file=sys.stderr)
        return 130
    return result if isinstance(result, int) else 0
