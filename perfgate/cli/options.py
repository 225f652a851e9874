"""Options that several commands share, and how they become arms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from perfgate.cli.completion import complete_scenario
from perfgate.cli.output import FILE
from perfgate.cli.sections import add_options, arm_option, folder_option, judging_option, proof_option
from perfgate.core import Arm
from perfgate.errors import InputError
from perfgate.results.folders import RESULTS, find_cut_off
from perfgate.results.records import load_proof
from perfgate.scenario.catalog import read_scenario_text
from perfgate.scenario.safeguards import Expect
from perfgate.scenario.schema import Scenario, parse_scenario, replace_looks
from perfgate.serving.engine.arms import ArmSpec, build_injection_environment, parse_environment
from perfgate.serving.engine.environments import ready_python
from perfgate.serving.measure import name_folder
from perfgate.storage.state import find_state_dir

_TREE = click.Path(path_type=Path, file_okay=False, exists=True)


def _check_pairs(_context: click.Context, option: click.Parameter, pairs: tuple[str, ...]) -> tuple[str, ...]:
    """Callback of an option that takes NAME=VALUE. Raise InputError naming the option for one that is not of that form."""
    try:
        parse_environment(pairs)
    except InputError as error:
        raise InputError(f"{option.opts[0]} {error}") from None
    return pairs


PAIRS: dict[str, Any] = {"multiple": True, "metavar": "NAME=VALUE", "callback": _check_pairs}
"""What each option that sets environment variables shares."""

add_caches_option = arm_option(
    "--caches",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Compile caches, one folder per arm (DIR/base, DIR/candidate); no other process may write there.",
)
add_arm_options = add_options(
    arm_option("--python", default=sys.executable, help="Python of both arms (default: the one running perfgate)."),
    arm_option("--candidate-python", help="Python of the candidate, for example one with the pull request's SGLang."),
    arm_option(
        "--checkout", type=_TREE, metavar="DIR", help="Working tree that both arms run, installed over --python's environment."
    ),
    arm_option("--candidate-checkout", type=_TREE, metavar="DIR", help="The same for the candidate only."),
    judging_option("--model", type=FILE, help="Folder of the scenario's model on this machine."),
    arm_option("--both-arg", "args", multiple=True, help="Extra server argument for both arms; repeatable."),
    arm_option("--candidate-arg", "candidate_args", multiple=True, help="The same for the candidate only; repeatable."),
    arm_option("--both-env", "env", **PAIRS, help="Environment variable of both arms; repeatable."),
    arm_option("--candidate-env", **PAIRS, help="The same for the candidate only; repeatable."),
    add_caches_option,
    arm_option(
        "--candidate-inject", metavar="KIND:SIZE", help="Slow the candidate down: gpu:10, host:500, host:8000/50, step:0.25."
    ),
)


add_folder_options = add_options(
    folder_option("--out", type=FILE, help="New folder for the results (default: dated, below --parent)."),
    folder_option("--parent", type=FILE, default=RESULTS, show_default=True),
    folder_option(
        "--resume",
        is_flag=True,
        help="Continue an interrupted session with the same options: the one in --out, or the newest one below --parent.",
    ),
)


add_proof_options = add_options(
    proof_option(
        "--expect-kernel",
        "kernels",
        multiple=True,
        metavar="REGEX",
        help="A kernel that must run in the candidate, found in a profile; repeatable.",
    ),
    proof_option(
        "--expect-no-kernel",
        "absent",
        multiple=True,
        metavar="REGEX",
        help="A kernel that must not run in the candidate; repeatable.",
    ),
    proof_option(
        "--expect-log", "log", multiple=True, metavar="REGEX", help="A line that the candidate's log must contain; repeatable."
    ),
    proof_option(
        "--kernel-proof",
        "proof",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Output of `perfgate kernels prove`; if the candidate's kernels are wrong, nothing is measured.",
    ),
)


add_profile_option = judging_option(
    "--profile",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="When to profile both arms: after a regression (auto, in fresh servers), after the first block (always), or never.",
)
"""Says when both arms are profiled."""


add_torch_index_option = click.option(
    "--torch-index",
    metavar="URL",
    help="Package index for torch alone; https://download.pytorch.org/whl/cpu has torch without CUDA.",
)
"""Says where the torch of an engine that is installed comes from."""


def build_expect(options: Mapping[str, Any]) -> Any:
    """Turn them into an Expect. Raise InputError for what is no regular expression."""
    try:
        return Expect(kernels=options["kernels"], absent=options["absent"], log=options["log"])
    except ValueError as error:
        raise InputError(f"--expect-kernel, --expect-no-kernel or --expect-log: {error}") from None


def read_proof(options: Mapping[str, Any]) -> Any:
    """Read the proof of the arms' kernels, None where none is given. Raise InputError naming the field that is wrong."""
    if options["proof"] is None:
        return None

    return load_proof(options["proof"])


def build_arms(options: dict[str, Any]) -> dict[Arm, Any]:
    """Turn the arm options into one ArmSpec per arm; the candidate is the base plus what is said of it alone."""
    caches = options["caches"].resolve() if options.get("caches") else None
    python = _find_python(options["python"], options.get("checkout"))
    other = options["candidate_python"] or (options["python"] if options.get("candidate_checkout") else python)
    base = ArmSpec(
        python=python,
        args=options["args"],
        env=parse_environment(options["env"]),
        caches=caches and caches / Arm.BASE.value,
    )
    extra = {**parse_environment(options["candidate_env"]), **build_injection_environment(options["candidate_inject"])}
    candidate = ArmSpec(
        python=_find_python(other, options.get("candidate_checkout")),
        args=(*base.args, *options["candidate_args"]),
        env={**base.env, **extra},
        caches=caches and caches / Arm.CANDIDATE.value,
    )
    return {Arm.BASE: base, Arm.CANDIDATE: candidate}


def _find_python(engine: str, tree: Path | None) -> str:
    """The Python of an arm: the one given, or one that runs a working tree over it."""
    if tree is None:
        return engine

    return str(ready_python(tree, Path(engine), find_state_dir()))


def choose_folder(scenario: str, out: Path | None, parent: Path, *, resume: bool = False) -> Path:
    """The result folder: the one asked for, else a new one below `parent`, or to resume the newest that was cut off there.

    Raise InputError when none is there to resume.
    """
    if resume and out is None:
        return find_cut_off(parent, scenario)
    return out or name_folder(scenario, parent)


def add_scenario_argument(default: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the scenario that it measures: the name of one that ships, or a file."""
    if default is None:
        return click.argument("scenario", shell_complete=complete_scenario)
    return click.argument("scenario", default=default, shell_complete=complete_scenario)


def read_scenario(name: str, blocks: int | None = None) -> tuple[str, Scenario]:
    """The text of a scenario and what it says; with `blocks`, its one look comes after so many."""
    text, source = read_scenario_text(name)
    if blocks is not None:
        text = replace_looks(text, blocks)
    return text, parse_scenario(text, source)


add_blocks_option = judging_option(
    "--blocks",
    type=click.IntRange(min=2),
    metavar="N",
    help="Decide once, after N blocks, instead of at the scenario's looks.",
)
"""Says after how many blocks it looks, once."""
