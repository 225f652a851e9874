"""What a report shows, ready to be printed: the templates lay it out and decide nothing."""

from __future__ import annotations

from dataclasses import dataclass
from math import log1p
from shlex import join, quote

from perfgate.core import Arm, Judgement, Outcome, Verdict
from perfgate.evidence import Session
from perfgate.metrics import METRICS
from perfgate.report import wording
from perfgate.report.confidence import describe_confidence, describe_sensitivity, describe_spent
from perfgate.report.expert_use import describe_use
from perfgate.report.figure import draw_interval
from perfgate.report.headline import Headline, build_headline, name_losses
from perfgate.scenario.safeguards import Equivalence
from perfgate.scenario.schema import Scenario
from perfgate.verdict.validity.equivalence import describe_equivalence
from perfgate.verdict.validity.gsm8k import describe_gsm8k
from perfgate.verdict.validity.kernel_proof import describe_proof

REASONS_SHOWN = 12

UNPROVEN = "nobody built and examined them before the windows were measured"
"""Of the kernels of a session that another job handed over: a proof that is left out shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One metric as text. `marks` are the numbers of its footnotes; it `is_calm` if nothing was lost or is undecided."""

    title: str
    base: str
    candidate: str
    change: str
    interval: str
    limit: str
    band: str
    outcome: str
    picture: str
    marks: tuple[int, ...]
    is_calm: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact of the environment in both arms."""

    name: str
    base: str
    candidate: str

    @property
    def is_same(self) -> bool:
        """True when both arms have the same value."""
        return self.base == self.candidate

    @property
    def is_different(self) -> bool:
        """True when both arms were measured and differ in it."""
        return not self.is_same and wording.UNMEASURED not in (self.base, self.candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A whole report as text; its fields are the templates' public interface."""

    headline: Headline
    scenario: str
    scenario_title: str
    hardware: str
    where: str
    confidence: str
    sensitivity: str
    spent: str
    warning_marks: tuple[int, ...]
    equivalence: str
    expert_use: str
    kernels: str
    action: str
    action_command: str
    labels: tuple[str, ...]
    reasons: tuple[str, ...]
    base_title: str
    rows: tuple[MetricRow, ...]
    footnotes: tuple[str, ...]
    policy: tuple[tuple[str, str], ...]
    facts: tuple[Fact, ...]
    commands: tuple[tuple[str, str], ...]
    replay: str


def build_view(verdict: Verdict, session: Session, scenario: Scenario) -> View:
    """Put the verdict into words. Pure: the same verdict gives the same report on any machine."""
    ordered = sort_judgements(verdict.judgements)
    footnotes = _footnotes(verdict, ordered)
    action, command = _advise(verdict, session)
    return View(
        headline=build_headline(verdict, ordered),
        scenario=verdict.scenario,
        scenario_title=scenario.title,
        hardware=verdict.hardware,
        where=name_losses(ordered),
        confidence=describe_confidence(verdict, session),
        sensitivity=describe_sensitivity(ordered),
        spent=describe_spent(session),
        warning_marks=tuple(footnotes.index(warning) + 1 for warning in dict.fromkeys(verdict.warnings)),
        equivalence=describe_answers(session, scenario.equivalence),
        expert_use=describe_use(session),
        kernels=describe_proof(session.kernels) or (UNPROVEN if session.is_handed_over else ""),
        action=action,
        action_command=command,
        labels=_labels(verdict, scenario, session),
        reasons=_shorten(verdict.reasons),
        base_title="base" if Arm.BASE in session.fingerprints else "stored base",
        rows=tuple(_row(judgement, footnotes) for judgement in ordered if judgement.change is not None or judgement.notes),
        footnotes=footnotes,
        policy=tuple((key, _plain_number(value)) for key, value in sorted(verdict.policy.items())),
        facts=_facts(session),
        replay=write_command("check", session.source) if session.source else "",
        commands=(("measure again", write_command("gate", *(session.reproduce or (session.scenario,)))),),
    )


def describe_answers(session: Session, rules: Equivalence) -> str:
    """Say in a clause each how far the arms' answers differ; empty where none were compared."""
    return "; ".join(filter(None, (describe_equivalence(session.answers, rules), describe_gsm8k(session.marks, rules.gsm8k))))


def _advise(verdict: Verdict, session: Session) -> tuple[str, str]:
    """Say what to do, and a command for it, unless that needs a result folder that the reader cannot have."""
    advice, purpose, command = wording.ACTIONS[verdict.outcome]
    if not command or ("{source}" in command and not session.source):
        return advice, ""
    scenario = session.reproduce[0] if session.reproduce else session.scenario
    return f"{advice} {purpose}", command.format(source=quote(session.source), scenario=quote(scenario))


def sort_judgements(judgements: tuple[Judgement, ...]) -> tuple[Judgement, ...]:
    """The gating ones worst first, then those that are only shown; what is equal stands in the order of the metrics' table."""
    order = list(METRICS)

    def rank(judgement: Judgement) -> tuple[bool, int, float, int]:
        return (not judgement.gating, judgement.outcome.order, -count_margins(judgement), order.index(judgement.metric))

    return tuple(sorted(judgements, key=rank))


def count_margins(judgement: Judgement) -> float:
    """How many margins were lost; negative for a gain, 0 where nothing is known."""
    return 0.0 if judgement.worse is None else judgement.worse / log1p(judgement.margin_ratio)


def _shorten(reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Keep a comment readable, and under the size that a forge accepts, when a session failed in every window."""
    left_out = len(reasons) - REASONS_SHOWN
    return reasons if left_out <= 0 else (*reasons[:REASONS_SHOWN], f"and {left_out} more of the kind")


def _footnotes(verdict: Verdict, ordered: tuple[Judgement, ...]) -> tuple[str, ...]:
    """Number every footnote once: the metrics' in the order of the rows, then those of the whole verdict."""
    notes = (note for judgement in ordered for note in judgement.notes)
    return tuple(dict.fromkeys((*notes, *verdict.warnings)))


def _row(judgement: Judgement, footnotes: tuple[str, ...]) -> MetricRow:
    return MetricRow(
        title=wording.title(judgement),
        base=wording.value(judgement.metric, judgement.base),
        candidate=wording.value(judgement.metric, judgement.candidate),
        change=wording.percent(judgement.change),
        interval=wording.interval(judgement),
        limit=wording.limit(judgement),
        band=wording.band(judgement),
        outcome=judgement.outcome.value if judgement.gating else f"{judgement.outcome.value} (not gating)",
        picture=draw_interval(judgement),
        marks=tuple(sorted(footnotes.index(note) + 1 for note in dict.fromkeys(judgement.notes))),
        is_calm=judgement.outcome in (Outcome.PASS, Outcome.IMPROVED),
    )


def _labels(verdict: Verdict, scenario: Scenario, session: Session) -> tuple[str, ...]:
    labels = (
        (verdict.advisory, wording.ADVISORY),
        (verdict.hardware.startswith("cpu-"), wording.CPU_ONLY),
        (scenario.model.weights == "random", f"{wording.RANDOM_WEIGHTS} {_capitalize(describe_use(session))}."),
        (scenario.model.weights == "routed", f"{wording.ROUTED_WEIGHTS} {_capitalize(describe_use(session))}."),
    )
    return tuple(text for is_due, text in labels if is_due)


def _capitalize(clause: str) -> str:
    return clause[:1].upper() + clause[1:]


def _facts(session: Session) -> tuple[Fact, ...]:
    """List what both arms ran on, what differs first."""
    arms = {arm: session.fingerprints[arm].facts for arm in Arm if arm in session.fingerprints}
    names = sorted({name for facts in arms.values() for name in facts})

    def read(arm: Arm, name: str) -> str:
        return arms[arm].get(name, wording.MISSING) if arm in arms else wording.UNMEASURED

    facts = [Fact(name=name, base=read(Arm.BASE, name), candidate=read(Arm.CANDIDATE, name)) for name in names]
    return tuple(sorted(facts, key=lambda fact: not fact.is_different))


def write_command(*words: str) -> str:
    """Write a command of perfgate that can be pasted into a shell."""
    return join(("perfgate", *words))


def _plain_number(number: str | float) -> str:
    return number if isinstance(number, str) else f"{number:.6g}"
