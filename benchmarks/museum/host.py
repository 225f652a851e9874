"""Ask `perfgate scheduler` or `perfgate resolve` about exhibits and their twins, without a GPU and without a noise band.

Usage: python -m benchmarks.museum.host [NAME ...] [--python PYTHON]

What is asked and expected stands in host.toml, which must be committed as it stands; host.json has what came, and what is there
is not asked again. For `perfgate scheduler` an arm is a folder with a link to the engine and the exhibit's patch as a plug-in.
`perfgate resolve` runs no plug-in: its slow arm is a release with the fault in its source, its twin an unchanged copy.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import orjson
from pydantic import ConfigDict

from benchmarks.museum.exhibits import HERE, PAGE, ExhibitArm, Placed, Text, load_all, load_exhibit
from benchmarks.museum.patches import VARIABLE
from benchmarks.museum.run import ROOT, find_committed, write_plug_in
from benchmarks.resolve.seeds import RELEASE, Seed, plant
from benchmarks.scheduler.run import list_lost
from perfgate.errors import EngineError, InputError, PerfgateError
from perfgate.machine.tools import Tool
from perfgate.resolution.arms import find_source
from perfgate.resolution.ask import ask_arms
from perfgate.resolution.diff import compare
from perfgate.resolution.report import describe_unread
from perfgate.resolution.rules import RULES as CHOICES
from perfgate.resolution.table import GPUS, MODELS
from perfgate.resolution.values import Kind, ResolveAnswer
from perfgate.scenario.settings import read_settings
from perfgate.scheduler.ask import measure_arms
from perfgate.scheduler.judge import RULES, compare_work
from perfgate.scheduler.report import describe_gap
from perfgate.scheduler.values import CostComparison
from perfgate.storage.journal import read_json, write_atomically

ASKED, TOLD = HERE / "host.toml", HERE / "host.json"
PLUG_IN = "museum_arm"
SIDES = ("broken", "fixed")
_PYTHON = Tool(timeout_s=120.0, missing=EngineError, failed=EngineError, hint="give a Python with the engine")
_PACKAGE = "import importlib.util as util; print(util.find_spec('sglang').submodule_search_locations[0])"
_STRICT = ConfigDict(extra="forbid")
_ADD_ARGS = """from sglang.srt import server_args
prepare = server_args.prepare_server_args
server_args.prepare_server_args = lambda argv: prepare([*argv, *{args!r}])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEdit:
    """What writes an exhibit's fault into the source of a release: `before`, which stands once in `file`, becomes `after`."""

    file: Text
    before: Text
    after: Text
    __pydantic_config__ = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class HostQuestion:
    """What is expected of an exhibit: an answer and, where something is lost, a key that is.

    With an `edit` it is asked of `perfgate resolve`, else of `perfgate scheduler`.
    """

    exhibit: str
    answer: ResolveAnswer
    key: str = ""
    why: Text
    edit: SourceEdit | None = None
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        """A key that does not exist could not be lost."""
        known = RULES if self.edit is None else CHOICES
        if (self.answer is ResolveAnswer.LOST) != (self.key in known):
            raise ValueError(f"key: {self.key!r}: name a key of perfgate {self.tool} where something is lost, and only there")

    @property
    def tool(self) -> str:
        """The command that is asked."""
        return "scheduler" if self.edit is None else "resolve"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostQuestions:
    """All of host.toml."""

    asked: tuple[HostQuestion, ...]
    __pydantic_config__ = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSide:
    """What was said of a candidate.

    `lost` has by key how much more it does, a share of the base or, of events, a number; of a choice, how many models lost it.
    """

    answer: ResolveAnswer
    lost: Mapping[str, float]
    unverified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnswer:
    """What came: `digest` is of the exhibit's file, `predicted` the commit of host.toml, `sglang` the engine's version."""

    digest: str
    predicted: str
    sglang: str
    broken: HostSide
    fixed: HostSide


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAnswers:
    """All of host.json, by exhibit."""

    answers: Mapping[str, HostAnswer] = field(default_factory=dict)


def load_questions(path: Path = ASKED) -> tuple[HostQuestion, ...]:
    """What is asked. Raise InputError naming file and field."""
    return read_settings(path, HostQuestions, PAGE).asked


def read_answers(exhibits: Iterable[Placed], path: Path = TOLD) -> HostAnswers:
    """What came so far. Raise InputError for an answer of an exhibit that is not there as it stands."""
    if not path.exists():
        return HostAnswers()
    found, digests = (
        read_json(path, HostAnswers, "take the file away and ask again"),
        {one.name: one.digest for one in exhibits},
    )
    for name, answer in found.answers.items():
        if digests.get(name) != answer.digest:
            raise InputError(
                f"{path}: answers.{name}.digest: is of another text of that exhibit; take the answer away and ask again"
            )
    return found


def write_arm(folder: Path, engine: Path, placed: Placed, arm: ExhibitArm) -> Path:
    """A tree in `folder` that `perfgate scheduler` takes: the package `engine` by a link, and a plug-in that patches it.

    An arm's arguments follow those that the engine is driven with, so that they override them.
    """
    folder.mkdir(parents=True)
    (folder / "sglang").symlink_to(engine)
    if arm.patch == "none" and not arm.env and not arm.args:
        return folder
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    write_plug_in(folder, f"{PLUG_IN}:register")
    patch = {VARIABLE: f"{placed.name}:{arm.patch}"} if arm.patch != "none" else {}
    lines = ("import os", "from benchmarks.museum.patches import register", f"os.environ |= {dict(arm.env) | patch!r}", "")
    added = _ADD_ARGS.format(args=list(arm.args)) if arm.args else ""
    (folder / f"{PLUG_IN}.py").write_text("\n".join(lines) + added, encoding="utf-8")
    return folder


def ask_choices(placed: Placed, edit: SourceEdit, python: str) -> tuple[str, dict[str, HostSide]]:
    """What `ask_work` tells, of what a release chooses for all models on the exhibit's machine."""
    base = find_source(RELEASE, python, option="base")
    release = base.folder or HERE
    seeds = {
        "broken": Seed(name="broken", files=edit.file, before=edit.before, after=edit.after),
        "fixed": Seed(name="fixed", files=edit.file, after=""),
    }
    with tempfile.TemporaryDirectory(dir=release.resolve().parent) as made:  # links need one file system
        trees = [plant(seeds[side], release, Path(made, side)) for side in SIDES]
        sources = [base, *(find_source(str(tree), python, option="arm") for tree in trees)]
        read, *others = ask_arms(sources, list(MODELS.values()), [GPUS[placed.exhibit.machine]])
    found = {}
    for side, other in zip(SIDES, others, strict=True):
        comparison = compare(read, other, {})
        lost = Counter(one.key for one in comparison.differences if one.kind is Kind.LOST for _ in one.cases)
        unverified = tuple(describe_unread(gap, comparison) for gap in comparison.unverified)
        found[side] = HostSide(answer=comparison.answer, lost=dict(lost), unverified=unverified)
    return RELEASE, found


def ask_work(placed: Placed, python: str) -> tuple[str, dict[str, HostSide]]:
    """The engine's version, and what is said of the exhibit and of its twin. Raise PerfgateError where nothing can be said."""
    told = placed.exhibit.reenactment
    engine = Path(_PYTHON.call([python, "-c", _PACKAGE], name=f"{python}: sglang").text.strip())
    found = {}
    with tempfile.TemporaryDirectory(prefix="perfgate-museum-") as made:
        base = write_arm(Path(made, "base"), engine, placed, told.base)
        for side in SIDES:
            served = (told.broken if side == "broken" else told.fixed).follow(told.base)
            candidate = write_arm(Path(made, side), engine, placed, served)
            sources = (find_source(str(arm), python, option="arm") for arm in (base, candidate))
            found[side] = compare_work(*measure_arms(*sources), {})
    return found["fixed"].base.version, {side: summarise(one) for side, one in found.items()}


def summarise(comparison: CostComparison) -> HostSide:
    """What is kept of a comparison."""
    return HostSide(
        answer=comparison.answer,
        lost=list_lost(comparison),
        unverified=tuple(map(describe_gap, comparison.unverified)),
    )


def run(names: tuple[str, ...], python: str) -> None:
    """Ask what was not asked yet, and store each answer as soon as there is one."""
    predicted = find_committed(ASKED)
    for question in load_questions():
        placed, known = load_exhibit(question.exhibit), read_answers(load_all()).answers
        if (names and placed.name not in names) or placed.name in known:
            continue
        edit = question.edit
        sglang, sides = ask_work(placed, python) if edit is None else ask_choices(placed, edit, python)
        answer = HostAnswer(digest=placed.digest, predicted=predicted, sglang=sglang, **sides)
        told = orjson.dumps(asdict(HostAnswers(answers={**known, placed.name: answer})), option=orjson.OPT_INDENT_2)
        write_atomically(TOLD, told + b"\n")
        print(placed.name, json.dumps({side: one.answer.value for side, one in sides.items()}), flush=True)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--python", default=sys.executable, help="Python with the engine.")
def main(names: tuple[str, ...], python: str) -> None:
    """Ask about the exhibits NAMES, or about all that stand in host.toml."""
    try:
        run(names, python)
    except PerfgateError as error:
        print(f"museum: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
