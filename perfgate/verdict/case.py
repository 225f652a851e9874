"""A session with what it is judged by and the verdict: the one value that reports, exports and the history are made of."""

from __future__ import annotations

from dataclasses import dataclass

from perfgate.core import Verdict
from perfgate.evidence import Session
from perfgate.scenario.schema import Scenario
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.policy import Policy, fix_policy


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
