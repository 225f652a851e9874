"""The command line: one lazy table of sub-commands, one place where expected failures become a line and an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from types import TracebackType

import click

from perfgate import __version__
from perfgate.cli.examples import add_examples
from perfgate.cli.lazy_group import LazyGroup
from perfgate.errors import InputError, PerfgateError
from perfgate_moe.errors import MoeError

DEFECT = 70
"""The exit code of an unexpected exception: EX_SOFTWARE of sysexits.h."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""A place that takes no more is no defect of ours."""
UNREAD = 128 + signal.SIGPIPE
"""The exit code when nobody reads on: what a shell makes of the signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A sub-command: the module that holds a click command named `command`, and its line in `--help`."""

    module: str
    summary: str


# Importing only the one that runs keeps `perfgate --help` far under a third of a second. The order is the one of `--help`.
SECTIONS: dict[str, dict[str, Entry]] = {
    "Start here": {
        "demo": Entry(module="reading.demo", summary="Judge a session recorded on a GPU: no GPU and no server needed."),
        "gate": Entry(module="measuring.gate", summary="Calibrate if necessary, measure, judge and report: the whole gate."),
        "ab": Entry(module="measuring.ab", summary="Measure one change against the same server without it, judge and report."),
        "compare": Entry(module="reading.compare", summary="Compare logs of a load generator, or result folders: A B."),
        "doctor": Entry(module="machine.doctor", summary="Say what this machine can measure, and which command does it."),
    },
    "Measure": {
        "scenarios": Entry(module="machine.scenarios", summary="List the shipped scenarios, show one, or start your own."),
        "plan": Entry(module="measuring.plan", summary="Choose scenarios for a change by its paths and a limit of minutes."),
        "run": Entry(module="measuring.run", summary="Measure a scenario in A/B blocks into a result folder."),
        "matrix": Entry(module="measuring.matrix", summary="Measure every server under every load: one table, no verdict."),
        "calibrate": Entry(module="measuring.calibrate", summary="Measure A/A blocks and store this machine's noise."),
        "resolve": Entry(module="measuring.resolve", summary="Say which kernels and settings a change selects, without a GPU."),
        "scheduler": Entry(module="measuring.scheduler", summary="Count what a change costs on the host, without a GPU."),
        "bisect": Entry(
            module="measuring.bisect", summary="Find the commit that made it slower, although measurements are noisy."
        ),
        "deps": Entry(module="measuring.deps", summary="Find the package of a new lock file that made it slower."),
    },
    "Read results": {
        "list": Entry(module="reading.list", summary="List the results below a folder, the newest first."),
        "check": Entry(module="reading.check", summary="Judge a result folder again, from its raw windows."),
        "explain": Entry(module="reading.explain", summary="Explain the judgement of a metric in five sentences."),
        "report": Entry(module="reading.report", summary="Write a verdict as a comment, or as a page with figures."),
        "profile": Entry(
            module="measuring.profile", summary="Rank the kernels by their share of the difference between the arms."
        ),
        "show": Entry(module="reading.show", summary="Print outputs of a load generator as a table."),
        "export": Entry(module="reading.export", summary="Write windows as a CSV or Parquet table."),
        "schema": Entry(module="reading.schema", summary="Print the JSON schema of verdict.json."),
    },
    "Keep results": {
        "baseline": Entry(module="keeping.baseline", summary="List, show, extend, compare, expire and verify stored noise."),
        "history": Entry(
            module="keeping.history", summary="Store results over time; show trends, changes, false alarms and costs."
        ),
        "power": Entry(module="reading.power", summary="Show the smallest loss that the gate finds, and its cost."),
        "ledger": Entry(module="keeping.ledger", summary="Measure each release of SGLang against the previous one."),
        "pack": Entry(module="keeping.pack", summary="Pack the raw files of finished sessions into one file each."),
    },
    "Engines, models and kernels": {
        "engine": Entry(module="machine.engine", summary="Install the CPU serving engine and its releases, and test them."),
        "model": Entry(module="machine.model", summary="Verify that a model is the expected mixture of experts, or make one."),
        "kernels": Entry(module="moe.kernels", summary="Judge fused MoE implementations, and compile perfgate's own."),
        "completion": Entry(module="completion", summary="Print the completion script of a shell."),
    },
    "CI plumbing": {
        "github": Entry(module="ci.github", summary="Plan, judge and publish measurements of pull requests."),
        "handoff": Entry(module="ci.handoff", summary="Transfer a session from an untrusted job to a trusted one."),
        "runner": Entry(module="machine.runner", summary="Check, lock, clean and protect a GPU machine that measures."),
    },
}
OTHER_NAMES = {"diff": "compare", "results": "list", "judge": "check", "why": "explain"}
"""What other programs call a command."""
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class ProgramGroup(LazyGroup):
    """All commands, in sections that `--help` lists without importing one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of a name that is none, say which are near."""
        name = args[0]
        near = [OTHER_NAMES[name]] if name in OTHER_NAMES else get_close_matches(name, COMMANDS, n=2)
        if near and name not in COMMANDS:
            ctx.fail(f"No such command '{name}'. Did you mean {' or '.join(map(repr, near))}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing one."""
        del ctx
        width = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in section.items()])


@click.group(
    cls=ProgramGroup,
    places={name: f"{entry.module}:command" for name, entry in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="perfgate")
def program() -> None:
    """Judge whether a change made LLM serving slower, and say how sure the answer is.

    Begin with `perfgate demo`. Exit codes: 0 pass or improved, 1 regression, 2 usage or input error, 3 inconclusive or
    invalid, 70 a defect of perfgate itself, 130 interrupted.
    """


add_examples(program, "")


def run() -> None:
    """The program. An unexpected exception ends with 70, because Python's own exit code 1 would say REGRESSION.

    SIGTERM interrupts as Ctrl-C does: by itself it would end this process and leave those that it waits for.
    """
    sys.excepthook = end_defective
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _open_closed_streams()
    sys.exit(main())


def _open_closed_streams() -> None:
    """Put the null device where a standard stream is closed; else the next file that is opened would become that stream."""
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            # The lowest free number is the stream's own.
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), "w" if flags else "r", encoding="utf-8"))


def end_defective(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback, which is needed to correct the defect, and end with 70."""
    sys.__excepthook__(kind, error, trace)
    _tell(f"a defect of perfgate itself, please report it: {kind.__name__}")
    raise SystemExit(DEFECT)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code; an expected failure is one line on stderr."""
    try:
        result = program.main(args=argv, prog_name="perfgate", standalone_mode=False)
    except (PerfgateError, MoeError) as error:
        _tell(error)
        return error.exit_code
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _tell("interrupted")
        return 130
    except SystemExit as error:
        if error.code != 1:
            raise
        # So click ends where nobody reads standard output on; this code would say REGRESSION.
        return UNREAD
    except OSError as error:
        if (refused := _explain(error)) is None:
            raise
        _tell(refused)
        return refused.exit_code
    return result if isinstance(result, int) else 0


def _explain(error: OSError) -> InputError | None:
    """What a person can correct: a place that is full, or closed to this user; None for a defect of ours."""
    if error.errno in FULL:
        return InputError(f"output cannot be written ({error.strerror}); make room or choose another place, then run it again")
    # A signal that may not be sent names no file.
    if isinstance(error, PermissionError) and error.filename is not None:
        return InputError(f"{error.filename}: closed to this user ({error.strerror}); correct its permissions or its owner")
    return None


def _tell(message: object) -> None:
    """Print a line on standard error; where that takes none, the exit code alone tells."""
    with suppress(OSError):
        print(f"perfgate: {message}", file=sys.stderr)
