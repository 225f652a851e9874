"""What a reader does next, as sentences and commands that can be pasted into a shell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, log1p
from shlex import join

from perfgate.core import Judgement, Outcome, Verdict
from perfgate.evidence import Session
from perfgate.report.words import wording
from perfgate.report.words.families import Family
from perfgate.report.words.figure import worse_bounds
from perfgate.report.words.remedies import name_remedies
from perfgate.scenario.schema import Scenario
from perfgate.verdict.policy import CALIBRATED_BLOCKS

AFFORDABLE_BLOCKS = 24
"""More blocks than this are no advice: they take a GPU for the better part of an hour."""

BISECT_MINUTES = 60

NIGHTLY = "perfgate-baseline.yml"
"""The workflow that measures blocks of equal arms on each kind of machine of a repository, and proposes to store them."""

_NIGHTLY_REMEDY = "the nightly workflow proposes more, and a maintainer merges them, or starts it at once"

REACH = 1.645
"""How many standard errors a bound of 95 % lies away at least: Student's t with as many degrees of freedom as there can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line for a shell and what it does."""

    line: str
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do: a sentence, the address of more, the commands that help, and what is a maintainer's to do."""

    sentence: str
    more: str = ""
    commands: tuple[Command, ...] = ()
    for_maintainers: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionAdvice:
    """What a search for the commit takes: the commits around the change, where they are known, and the scenario's words."""

    span: tuple[str, str] | None
    scenario: tuple[str, ...]


def advise(
    verdict: Verdict, session: Session, families: Sequence[Family], *, is_profiled: bool, search: BisectionAdvice
) -> Advice:
    """Say what to do after `verdict`."""
    if verdict.outcome is Outcome.REGRESSION:
        return Advice(
            sentence="find the cause; measuring again does not undo it.",
            commands=tuple(_list_diagnoses(session, families, is_profiled=is_profiled, search=search)),
            for_maintainers=(_keep("loss", "--accept-slower", "the reason"),),
        )
    if verdict.outcome is Outcome.IMPROVED:
        return Advice(
            sentence="nothing to do.",
            for_maintainers=(_keep("gain"),),
        )
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return replace(_advise_undecided(verdict, session, families), more=verdict.outcome.remedies)
    if verdict.outcome is Outcome.INVALID:
        return Advice(
            sentence=_remove_causes(len(verdict.reasons)),
            more=name_remedies(verdict.outcome, verdict.reasons),
        )
    return Advice(sentence="nothing to do.")


def _remove_causes(causes: int) -> str:
    if causes < 2:
        return "remove the cause, then measure again."
    return "remove the cause that is named first, then measure again; the others often follow from it."


def name_scenario(session: Session) -> str:
    """What a command calls the session's scenario: a name, or a file."""
    return session.reproduce[0] if session.reproduce else session.scenario


def write_command(*words: str) -> str:
    """Write a command of perfgate that can be pasted into a shell."""
    return join(("perfgate", *words))


def give_model(scenario: Scenario) -> tuple[str, ...]:
    """What a command that serves needs besides: a model that a scenario only describes has to be given by the reader."""
    return ("--model", "PATH_TO_MODEL") if " " in scenario.model.path else ()


def reproduce(session: Session, scenario: Scenario) -> Command:
    """The command that measures again."""
    words = (*(session.reproduce or (session.scenario,)), *give_model(scenario))
    remark = f"; the model: {scenario.model.path}" if give_model(scenario) else ""
    return Command(line=write_command("gate", *words), purpose=f"measure again{remark}")


def calibrate(verdict: Verdict, session: Session, scenario: Scenario) -> Command | None:
    """What an uncalibrated machine lacks, and the command that adds it; None where that has no meaning.

    Who reads of a session that was handed over has no shell on the machine that measured it.
    """
    if not verdict.uncalibrated or verdict.outcome is Outcome.INVALID:
        return None
    lack = f"uncalibrated, {verdict.policy.get('aa_blocks', 0)} of {CALIBRATED_BLOCKS} blocks of equal arms stored"
    if session.is_handed_over:
        return Command(line=f"gh workflow run {NIGHTLY}", purpose=f"{lack}; {_NIGHTLY_REMEDY}")
    command = write_command("calibrate", name_scenario(session), "--blocks", str(CALIBRATED_BLOCKS), *give_model(scenario))
    minutes = _measure_block(session)
    costs = "" if minutes is None else f", about {max(round(minutes * CALIBRATED_BLOCKS), 1)} {_name_unit(session)}"
    return Command(line=command, purpose=f"{lack}; the remedy{costs}")


def _list_diagnoses(
    session: Session, families: Sequence[Family], *, is_profiled: bool, search: BisectionAdvice
) -> Iterator[Command]:
    lost = next((one.judgement for one in families if one.judgement.outcome is Outcome.REGRESSION), None)
    if session.source and is_profiled:
        yield Command(line=write_command("profile", session.source), purpose="kernel by kernel")
    if session.source and lost is not None:
        yield Command(line=write_command("explain", session.source, lost.metric), purpose="how judged")
    words = ("--scenario", *search.scenario, "--budget", str(BISECT_MINUTES), "--out", "bisect")
    yield Command(line=write_command("bisect", *(search.span or ("GOOD", "BAD")), *words), purpose="which commit")


def _keep(change: str, *options: str) -> Command:
    """Take a level over once it is that of main: a baseline takes in the base of a comparison, never its candidate."""
    line = write_command("baseline", "add", "RESULT_DIR", "--to", "perfgate/baselines", *options)
    return Command(
        line=line, purpose=f"after the merge: store the new level, from a session whose base already has the {change}"
    )


def _advise_undecided(verdict: Verdict, session: Session, families: Sequence[Family]) -> Advice:
    """Name the metric that blocks, and the cheapest thing that settles it."""
    commands = tuple(list_outlooks(verdict, session))
    if not session.is_complete:
        sentence = "continue it: it was cut off; the same command with --resume adds more."
        # Who reads of a session that was handed over has no shell on the machine that measured it.
        if session.is_handed_over:
            sentence = "measure again, by the comment /perfgate run: it was cut off."
        return Advice(sentence=sentence, commands=commands)
    undecided = [one for one in families if one.judgement.gating and one.judgement.outcome is Outcome.INCONCLUSIVE]
    if not undecided:
        return Advice(sentence="measure A/B blocks: this evidence decides nothing.", commands=commands)
    offset = float(verdict.policy.get("usual_offset_log", 0.0))
    needs = [(_count_needed(one.judgement, verdict.blocks, offset), wording.title(one.judgement)) for one in undecided]
    most, title = max(needs, key=lambda need: need[0] or AFFORDABLE_BLOCKS**2)
    if most is None or most > AFFORDABLE_BLOCKS:
        count = "no number of blocks settles" if most is None else f"only about {most} blocks settle"
        sentence = (
            f"{title} is undecided, and {count} it. Cheapest: store more sessions of equal arms, fix its noise, widen "
            "its margin, or show it without gating (advisory = true)."
        )
        return Advice(sentence=sentence, commands=commands)
    minutes = _measure_block(session)
    costs = "" if minutes is None else f" ({most * minutes:.0f} {_name_unit(session)})"
    where = ", as under Reproduce" if session.is_handed_over else ""
    sentence = (
        f"{title} is undecided. Cheapest: measure once more with --blocks {most}{costs}{where}, "
        "enough if the change seen is true; repeating until it passes proves nothing."
    )
    return Advice(sentence=sentence, commands=commands)


def list_outlooks(verdict: Verdict, session: Session) -> Iterator[Command]:
    """`power` reads stored noise, and has nothing to say of a scenario without any.

    Whoever has the noise of several kinds of machines, as those that ship are, is led to the one that counted.
    """
    if verdict.policy.get("aa_blocks", 0):
        places = ("--baselines", session.noise) if session.noise else ()
        line = write_command("power", "--scenario", name_scenario(session), *places)
        yield Command(line=line, purpose="what more blocks find")


def _count_needed(judgement: Judgement, blocks: int, offset: float) -> int | None:
    """How many blocks settle a metric whose true change is the one that is seen; None where none do.

    Beyond half the margin the interval must leave zero as far as the test asks, within it the interval must end before the
    margin. Its error is that of an `offset` of the session, on the log scale, which no block averages, and of blocks, which the
    root of their number divides.
    """
    bounds = worse_bounds(judgement)
    if bounds is None or not blocks:
        return None
    _, seen, high = bounds
    margin_log = log1p(judgement.margin_ratio)
    error = (high - seen) / REACH
    if seen <= margin_log / 2:
        allowed = (margin_log - seen) / REACH
    elif judgement.fails_from is not None:
        allowed = error * seen / log1p(judgement.fails_from)
    else:
        return None
    if allowed <= offset:
        return None
    return max(ceil(blocks * (error**2 - offset**2) / (allowed**2 - offset**2)), blocks + 1)


def _measure_block(session: Session) -> float | None:
    """The machine time of a block, that of all its GPUs, its servers' starts included; None where no clock tells."""
    blocks = len({window.block for window in session.windows})
    return session.timing.took_s * session.gpus / 60 / blocks if session.timing is not None and blocks else None


def _name_unit(session: Session) -> str:
    """What a machine time is counted in; that of one GPU, or of none, is the clock's."""
    return "GPU-minutes" if session.gpus > 1 else "minutes"
