"""What a report shows, ready to be printed: the templates lay it out and decide nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perfgate.core import Arm, Outcome, Verdict
from perfgate.engines.arguments import read_layout
from perfgate.evidence import Session
from perfgate.report.expert_use import describe_use
from perfgate.report.words import wording
from perfgate.report.words.advice import (
    Advice,
    BisectionAdvice,
    Command,
    advise,
    calibrate,
    give_model,
    name_scenario,
    reproduce,
    write_command,
)
from perfgate.report.words.confidence import describe_evidence, describe_exclusion, describe_rate, describe_spent
from perfgate.report.words.counts import describe_counts, is_notable
from perfgate.report.words.families import Family, list_families
from perfgate.report.words.figure import draw_interval
from perfgate.report.words.headline import Headline, build_headline
from perfgate.scenario.safeguards import Equivalence
from perfgate.scenario.schema import Scenario
from perfgate.verdict.validity.equivalence import describe_equivalence
from perfgate.verdict.validity.gsm8k import describe_gsm8k
from perfgate.verdict.validity.kernel_proof import describe_proof

REASONS_SHOWN = 12

UNPROVEN = "they were not built and examined before the windows were measured"
"""Shown of the kernels of a session that another job handed over without a proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One metric as text. `sense` says whether the change is worse, `line` where the metric fails from, `found` what is found.

    `marks` are the numbers of its footnotes; it `is_calm` if nothing was lost or is undecided.
    """

    icon: str
    title: str
    base: str
    candidate: str
    change: str
    sense: str
    interval: str
    limit: str
    line: str
    found: str
    excluded: str
    band: str
    outcome: str
    picture: str
    marks: tuple[int, ...]
    is_calm: bool
    is_gating: bool
    is_lost: bool


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
    """A whole report as text; its fields are the templates' public interface.

    A row's marks are numbers of `footnotes`; `remarks` are about the whole verdict.
    """

    headline: Headline
    scenario: str
    scenario_title: str
    hardware: str
    evidence: str
    rate: str
    calibration: Command | None
    sameness: str
    exclusion: str
    spent: str
    equivalence: str
    expert_use: str
    counts: str
    each_count: tuple[str, ...]
    has_news_of_counts: bool
    kernels: str
    advice: Advice
    labels: tuple[str, ...]
    reasons: tuple[str, ...]
    base_title: str
    rows: tuple[MetricRow, ...]
    footnotes: tuple[str, ...]
    remarks: tuple[str, ...]
    policy: tuple[tuple[str, str], ...]
    facts: tuple[Fact, ...]
    reproduce: Command
    replay: str


def build_view(
    verdict: Verdict,
    session: Session,
    scenario: Scenario,
    *,
    is_profiled: bool = False,
    span: tuple[str, str] | None = None,
) -> View:
    """Put the verdict into words. Pure: the same verdict gives the same report on any machine."""
    families = list_families(verdict.judgements, is_closed_loop=scenario.load.is_closed_loop)
    shown = [family for family in families if family.is_shown]
    footnotes = tuple(dict.fromkeys(note for family in shown for note in family.judgement.notes))
    is_void = verdict.outcome is Outcome.INVALID
    return View(
        headline=build_headline(verdict, families),
        scenario=verdict.scenario,
        scenario_title=scenario.title,
        hardware=verdict.hardware,
        evidence=describe_evidence(verdict, session),
        rate="" if is_void else describe_rate(verdict.hardware),
        calibration=calibrate(verdict, session, scenario),
        sameness=wording.SAME_BUILD if _is_same_build(session) and not is_void else "",
        exclusion=describe_exclusion(verdict, families),
        spent=describe_spent(session),
        equivalence=describe_answers(session, scenario.equivalence),
        expert_use=_describe_experts(scenario, session),
        counts=describe_counts(verdict.counts),
        each_count=tuple(describe_counts([count]) for count in verdict.counts),
        has_news_of_counts=is_notable(verdict.counts),
        kernels=describe_proof(session.kernels) or (UNPROVEN if session.is_handed_over else ""),
        advice=advise(
            verdict,
            session,
            families,
            is_profiled=is_profiled,
            search=BisectionAdvice(span=span, scenario=(name_scenario(session), *give_model(scenario))),
        ),
        labels=_labels(verdict, scenario, session),
        reasons=_shorten(verdict.reasons),
        base_title="base" if Arm.BASE in session.fingerprints else "stored base",
        rows=tuple(_row(family, footnotes) for family in shown),
        footnotes=footnotes,
        remarks=tuple(dict.fromkeys(verdict.warnings)),
        policy=tuple((key, _plain_number(value)) for key, value in sorted(verdict.policy.items())),
        facts=_facts(session),
        reproduce=reproduce(session, scenario),
        replay=_replay(session),
    )


def _replay(session: Session) -> str:
    """The command that judges the same windows by the same noise; what lies in the result folder counts by itself."""
    if not session.source:
        return ""
    is_elsewhere = session.noise and Path(session.noise).parent != Path(session.source)
    return write_command("check", session.source, *(("--baselines", session.noise) if is_elsewhere else ()))


def describe_answers(session: Session, rules: Equivalence) -> str:
    """Say in a clause each how far the arms' answers differ; empty where none were compared."""
    return "; ".join(filter(None, (describe_equivalence(session.answers, rules), describe_gsm8k(session.marks, rules.gsm8k))))


def _shorten(reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Keep a comment readable, and under the size that a forge accepts, when a session failed in every window."""
    left_out = len(reasons) - REASONS_SHOWN
    return reasons if left_out <= 0 else (*reasons[:REASONS_SHOWN], f"and {left_out} more of the kind")


def _row(family: Family, footnotes: tuple[str, ...]) -> MetricRow:
    judgement = family.judgement
    return MetricRow(
        icon=judgement.outcome.icon,
        title=family.title,
        base=wording.value(judgement.metric, judgement.base, has_unit=False),
        candidate=wording.value(judgement.metric, judgement.candidate),
        change=wording.percent(judgement.change),
        sense=wording.point(judgement),
        interval=wording.interval(judgement),
        limit=wording.limit(judgement),
        line=wording.line(judgement),
        found=wording.found_from(judgement),
        excluded=wording.excluded(judgement) or wording.MISSING,
        band=wording.band(judgement),
        outcome=wording.outcome(judgement),
        picture=draw_interval(judgement),
        marks=tuple(sorted(footnotes.index(note) + 1 for note in dict.fromkeys(judgement.notes))),
        is_calm=family.is_calm,
        is_gating=judgement.gating,
        is_lost=judgement.outcome is Outcome.REGRESSION,
    )


def _labels(verdict: Verdict, scenario: Scenario, session: Session) -> tuple[str, ...]:
    is_void = verdict.outcome is Outcome.INVALID
    use = _capitalize(_describe_experts(scenario, session))
    labels = (
        (verdict.hardware.startswith("cpu-"), wording.CPU_ONLY),
        (scenario.model.weights == "random" and not is_void, f"{wording.RANDOM_WEIGHTS} {use}."),
        (scenario.model.weights == "routed" and not is_void, f"{wording.ROUTED_WEIGHTS} {use}."),
    )
    return tuple(text for is_due, text in labels if is_due)


def _describe_experts(scenario: Scenario, session: Session) -> str:
    return describe_use(session, read_layout(scenario.server.args).expert)


def _is_same_build(session: Session) -> bool:
    return session.is_aa and set(session.fingerprints) == set(Arm)


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


def _plain_number(number: str | float) -> str:
    return number if isinstance(number, str) else f"{number:.6g}"
