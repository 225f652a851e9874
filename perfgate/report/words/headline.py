"""The first line of a report as a value: each form of a report writes it, and no code reads it back from text.

All words of a heading that come of a verdict are made here; `perfgate.github.comment.states` has those of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log1p

from perfgate.core import Better, Judgement, Outcome, Verdict, combine_outcomes
from perfgate.metrics import METRICS
from perfgate.report.words import wording
from perfgate.report.words.families import Family
from perfgate.report.words.figure import worse_bounds
from perfgate.storage.rounding import format_count
from perfgate.verdict.counters import COUNTERS, describe_count

TOP = 3
"""The depth of the heading of a comment on one scenario."""

SUBJECT_SHOWN = 120
"""Letters of a line that fit into the subject of a mail, before the machine is named behind it."""

REASON_SHOWN = 96
"""Letters of a reason that fit there, too; of what decided, REASON_LEAST are said behind the longest name."""

REASON_LEAST = 24

COUNTS_SHOWN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What a verdict says in one line, in pieces that are not escaped yet.

    `finding` is the metric that decided, with its numbers and the line that it was held against, or why a session is void.
    `gist` is that metric with its change alone; empty where no metric decided.
    `other_losses` are the other gating metrics that were lost, `shown_losses` those that do not gate. `slower_layers` counts
    the MoE layers timed beside the session that became slower, `lost_counts` names the counters that were lost beside it.
    """

    outcome: Outcome
    scenario: str
    is_uncalibrated: bool
    finding: str
    gist: str = ""
    other_losses: tuple[str, ...] = ()
    shown_losses: tuple[str, ...] = ()
    slower_layers: int = 0
    lost_counts: tuple[str, ...] = ()

    @property
    def answer(self) -> str:
        """The outcome, and whether the machine is uncalibrated."""
        return f"{self.outcome.value} (uncalibrated)" if self.is_uncalibrated else self.outcome.value

    def write(self, clean: Callable[[str], str], *, is_named: bool = False, is_alone: bool = False) -> str:
        """Write the whole line; `clean` escapes each piece for the target language.

        `is_named` puts the scenario into it. A line that stands alone names every loss.
        """
        begun = f"{self.answer} {clean(self.scenario)}: " if is_named else f"{self.answer}: "
        return begun + (self.write_finding(clean) if is_alone else self.write_short(clean, len(begun)))

    def write_gist(self, clean: Callable[[str], str]) -> str:
        """Write the outcome, the scenario and what decided in a few words, over a fold that has the rest."""
        return ": ".join(filter(None, (f"{self.answer} {clean(self.scenario)}", clean(self.gist))))

    def write_short(self, clean: Callable[[str], str], begun: int) -> str:
        """Write what stands behind the outcome and `begun` letters, as it fits: what decided, then what else was lost."""
        room = SUBJECT_SHOWN - begun
        finding, *rest = self._list_clauses(clean, is_alone=False)
        if len(finding) > room:
            return clean(wording.shorten_sentence(self.gist or self.finding, max(room, REASON_LEAST)))
        shown = [finding]
        # Later clauses are less often repeated elsewhere, so they are kept first.
        for clause in reversed(rest):
            if len("; ".join((*shown, clause))) <= room:
                shown.insert(1, clause)
        return "; ".join(shown)

    def write_finding(self, clean: Callable[[str], str]) -> str:
        """Write what stands behind the outcome."""
        return "; ".join(self._list_clauses(clean, is_alone=True))

    def _list_clauses(self, clean: Callable[[str], str], *, is_alone: bool) -> Iterator[str]:
        yield clean(self.finding)
        if self.other_losses:
            yield f"also slower: {clean(', '.join(self.other_losses))}" if is_alone else f"{len(self.other_losses)} more slower"
        if self.lost_counts:
            more = len(self.lost_counts) - COUNTS_SHOWN
            yield f"lost: {clean(', '.join(self.lost_counts[:COUNTS_SHOWN]))}{f' and {more} more' if more > 0 else ''}"
        if self.slower_layers:
            yield f"MoE layer slower in {format_count(self.slower_layers, 'timing')}"
        if is_alone and self.shown_losses:
            yield f"slower, but cannot fail a change: {clean(', '.join(self.shown_losses))}"


def build_headline(verdict: Verdict, families: Sequence[Family]) -> Headline:
    """Put a verdict into one line; `families` are its judgements in the order in which they are shown."""
    lost = [family for family in families if family.judgement.outcome is Outcome.REGRESSION]
    gating = [family for family in lost if family.judgement.gating]
    counted = [COUNTERS[count.counter].title for count in verdict.lost_counts]
    return Headline(
        outcome=verdict.outcome,
        scenario=verdict.scenario,
        is_uncalibrated=verdict.uncalibrated and verdict.outcome is not Outcome.INVALID and not verdict.lost_counts,
        finding=_say_finding(verdict, families),
        gist=_say_gist(verdict, families),
        other_losses=tuple(family.finding for family in gating[1:]),
        shown_losses=tuple(family.finding for family in lost if not family.judgement.gating),
        lost_counts=tuple(counted if gating else counted[1:]),
    )


def write_several(headlines: Sequence[Headline], clean: Callable[[str], str]) -> str:
    """One line for several scenarios: the outcome of all, how many share it, and the numbers of the first of those."""
    outcome = combine_outcomes(one.outcome for one in headlines)
    sharing = [one for one in headlines if one.outcome is outcome]
    answer = sharing[0].answer if all(one.is_uncalibrated for one in sharing) else str(outcome)
    begun = f"{answer} in {len(sharing)} of {len(headlines)} scenarios, {clean(sharing[0].scenario)}: "
    return begun + sharing[0].write_short(clean, len(begun))


def write_shortened(headlines: Sequence[Headline]) -> str:
    """The line of a comment that has no room for more than its losses."""
    return f"{combine_outcomes(one.outcome for one in headlines)}: {len(headlines)} scenarios, shortened"


def write_heading(icon: str, words: str, depth: int = TOP) -> str:
    """Write a line of markdown as a heading of a report."""
    return f"{'#' * depth} {icon} {words}"


def _say_finding(verdict: Verdict, families: Sequence[Family]) -> str:
    if verdict.outcome is Outcome.INVALID:
        return wording.shorten_sentence(verdict.reasons[0], REASON_SHOWN) if verdict.reasons else verdict.outcome.sentence
    deciding = _list_deciding(verdict, families)
    if verdict.lost_counts and not deciding:
        return describe_count(verdict.lost_counts[0])
    first = find_deciding(verdict, families)
    return verdict.outcome.sentence if first is None else _FINDINGS[verdict.outcome](first, len(deciding))


def _say_gist(verdict: Verdict, families: Sequence[Family]) -> str:
    if verdict.lost_counts and not _list_deciding(verdict, families):
        return COUNTERS[verdict.lost_counts[0].counter].title
    first = find_deciding(verdict, families)
    if first is None or verdict.outcome is Outcome.INVALID:
        return ""
    told = "undecided" if verdict.outcome is Outcome.INCONCLUSIVE else wording.percent(first.judgement.change)
    return f"{wording.title(first.judgement)} {told}"


def _list_deciding(verdict: Verdict, families: Sequence[Family]) -> list[Family]:
    return [family for family in families if family.judgement.gating and family.judgement.outcome is verdict.outcome]


def find_deciding(verdict: Verdict, families: Sequence[Family]) -> Family | None:
    """The metric that a line shows: the worst of those that decided, of gains the largest; None where nothing was measured."""
    gating = [family for family in families if family.judgement.gating]
    measured = [family for family in _list_deciding(verdict, families) or gating if family.judgement.change is not None]
    if not measured:
        return None
    return measured[-1] if verdict.outcome is Outcome.IMPROVED else measured[0]


def _say_loss(family: Family, _count: int) -> str:
    return f"{family.finding} ({_levels(family.judgement)}), fails from {wording.line(family.judgement)}"


def _say_gain(family: Family, _count: int) -> str:
    return f"{family.finding} ({_levels(family.judgement)}), nothing slower"


def _say_pass(family: Family, _count: int) -> str:
    bound = wording.excluded(family.judgement)
    beyond = bound if bound in ("", wording.ANY_LOSS) else f"a loss beyond {bound}"
    return f"worst is {family.finding}" + (f", {beyond} is excluded" if beyond else "")


def _say_undecided(family: Family, count: int) -> str:
    judgement = family.judgement
    more = f"; {count - 1} more undecided" if count > 1 else ""
    bounds = worse_bounds(judgement)
    if bounds is None:
        return f"{family.finding}, too little evidence to size it{more}"
    if bounds[2] > log1p(judgement.margin_ratio):
        side = "above" if METRICS[judgement.metric].better is Better.HIGHER else "below"
        needed = f"a pass needs {side} {wording.limit(judgement)}"
        return f"{wording.title(judgement)} changed by {wording.interval(judgement)}, {needed}{more}"
    line = "" if judgement.fails_from is None else f", fails from {wording.line(judgement)}"
    return f"{wording.title(judgement)} undecided, {wording.interval(judgement)}{line}{more}"


_FINDINGS: dict[Outcome, Callable[[Family, int], str]] = {
    Outcome.REGRESSION: _say_loss,
    Outcome.IMPROVED: _say_gain,
    Outcome.PASS: _say_pass,
    Outcome.INCONCLUSIVE: _say_undecided,
}


def _levels(judgement: Judgement) -> str:
    base = wording.value(judgement.metric, judgement.base, has_unit=False)
    return f"{base} to {wording.value(judgement.metric, judgement.candidate)}"
