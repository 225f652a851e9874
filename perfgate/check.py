"""The verdict: admit the evidence, judge each metric by the rule that was fixed before, conclude.

Pure: the same session, scenario and baseline give the same verdict on any machine, with no clock, process, file or network.
`docs/explanation/statistics.md` derives the rule; `perfgate.stats.looks` holds it on plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfgate.core import Outcome, Verdict
from perfgate.evidence import Session
from perfgate.scenario.schema import Scenario
from perfgate.stats.looks import decide
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.conclusion import conclude, conclude_invalid
from perfgate.verdict.policy import Policy, fix_policy
from perfgate.verdict.series import read_series
from perfgate.verdict.validity.admission import admit


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A judged session. `baseline` is the stored noise that it was judged by, if any."""

    session: Session
    scenario: Scenario
    baseline: Baseline | None
    verdict: Verdict

    @property
    def policy(self) -> Policy:
        """The rule as it applied to the session."""
        return fix_policy(self.session, self.scenario, self.baseline)


def judge(session: Session, scenario: Scenario, baseline: Baseline | None) -> Verdict:
    """Judge a session, whole or in flight. Looks are replayed in order; what was measured after a decision changes nothing."""
    policy = fix_policy(session, scenario, baseline)

    problems = admit(session, policy.limits)
    if problems:
        return conclude_invalid(session, policy, problems)

    readings = read_series(session, policy)
    decision = decide([reading.series for reading in readings], policy.plan)

    return conclude(session, policy, readings, decision)


def needs_more(session: Session, scenario: Scenario, baseline: Baseline | None) -> bool:
    """Whether a session in flight should measure another block: nothing is decided and the plan has a look left."""
    verdict = judge(session, scenario, baseline)
    last = fix_policy(session, scenario, baseline).plan.looks[-1]
    return verdict.outcome is Outcome.INCONCLUSIVE and verdict.blocks < last


if __name__ == "__main__":
    import sys

    from perfgate.cli import main

    sys.exit(main(["check", *sys.argv[1:]]))
