"""The first line of a report as a value: each form of a report writes it, and no code reads it back from text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perfgate.core import Judgement, Outcome, Verdict
from perfgate.metrics import METRICS
from perfgate.report import wording


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What a verdict says in one line, in pieces that are not escaped yet.

    `findings` are the headline metrics with their changes, or why a session is void. `shown_losses` are losses of metrics that
    do not gate. `slower_layers` counts the MoE layers timed beside the session that became slower.
    """

    outcome: Outcome
    is_advisory: bool
    meaning: str
    findings: tuple[str, ...]
    shown_losses: tuple[str, ...]
    slower_layers: int = 0

    @property
    def answer(self) -> str:
        """The outcome, and whether it is advisory."""
        return f"{self.outcome.value} (advisory)" if self.is_advisory else self.outcome.value

    def write(self, clean: Callable[[str], str], *, scenario: str = "", has_shown_losses: bool = False) -> str:
        """Write the whole line; `clean` escapes each piece for the target language."""
        named = f" {clean(scenario)}" if scenario else ""
        return f"{self.answer}{named}: {self.write_numbers(clean, has_shown_losses=has_shown_losses)}"

    def write_numbers(self, clean: Callable[[str], str], *, has_shown_losses: bool) -> str:
        """Write what stands behind the outcome: its meaning and the numbers."""
        return "; ".join(self._list_clauses(clean, has_shown_losses=has_shown_losses))

    def _list_clauses(self, clean: Callable[[str], str], *, has_shown_losses: bool) -> Iterator[str]:
        yield f"{clean(self.meaning)}. {'; '.join(map(clean, self.findings))}"
        if self.slower_layers:
            yield f"kernels slower in {self.slower_layers} layer{'' if self.slower_layers == 1 else 's'}"
        if has_shown_losses and self.shown_losses:
            yield f"shown only: {clean('; '.join(self.shown_losses))}"


def build_headline(verdict: Verdict, ordered: tuple[Judgement, ...]) -> Headline:
    """Put a verdict into one line; `ordered` are its judgements in the order in which they are shown."""
    return Headline(
        outcome=verdict.outcome,
        is_advisory=verdict.advisory,
        meaning=_say_meaning(verdict, ordered),
        findings=_say_findings(verdict, ordered),
        shown_losses=tuple(
            f"{wording.title(judgement)} {wording.percent(judgement.change)}"
            for judgement in ordered
            if judgement.outcome is Outcome.REGRESSION and not judgement.gating
        ),
    )


def _say_meaning(verdict: Verdict, ordered: tuple[Judgement, ...]) -> str:
    """Say what the outcome means, and where the loss is."""
    meaning, lost = verdict.outcome.sentence, name_losses(ordered)
    return f"{meaning} in {lost}" if verdict.outcome is Outcome.REGRESSION and lost else meaning


def name_losses(ordered: tuple[Judgement, ...]) -> str:
    """Name each gating metric that was lost; empty when there is none."""
    return ", ".join(wording.title(judgement) for judgement in ordered if _is_lost(judgement))


def _is_lost(judgement: Judgement) -> bool:
    return judgement.gating and judgement.outcome is Outcome.REGRESSION


def _say_findings(verdict: Verdict, ordered: tuple[Judgement, ...]) -> tuple[str, ...]:
    """Say the headline metrics, and each other metric that was lost."""
    if verdict.outcome is Outcome.INVALID:
        return verdict.reasons[:1]
    order = list(METRICS)
    headlines = tuple(judgement for judgement in ordered if METRICS[judgement.metric].headline) or ordered[:1]
    headlines = tuple(sorted(headlines, key=lambda judgement: order.index(judgement.metric)))
    lost = tuple(judgement for judgement in ordered if _is_lost(judgement) and judgement not in headlines)
    return tuple(wording.finding(judgement) for judgement in (*headlines, *lost))
