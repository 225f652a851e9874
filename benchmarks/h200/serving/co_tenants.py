"""What a session saw of others who used its GPU or its host: which windows they touched, and which were void for it.

    python benchmarks/h200/serving/co_tenants.py RESULT_DIR [BURSTS.json [CONTROL_DIR...]]

BURSTS.json says when a process that did not belong to the session lived (`process_from`, `process_to`, seconds since 1970), as
the program that started it noted. A session's clock starts in the second that `begun_utc` names, so windows that a process came
within a second of are counted as neither touched nor clean. CONTROL_DIR are sessions without a co-tenant: none of their
windows may be void for others. Shares come with their exact one-sided 95 % bounds (Clopper and Pearson).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median

from perfgate.check import judge
from perfgate.core import Outcome, Window
from perfgate.evidence import Session
from perfgate.results.readings import FOREIGN_CPU, FOREIGN_PROCESSES
from perfgate.results.records import read_record
from perfgate.results.results import load_results
from perfgate.scenario.schema import Scenario
from perfgate.stats.binomial import bound_rate, bound_rate_below
from perfgate.verdict.validity.admission import MAX_LOST_CPU_SHARE, check_windows
from perfgate.verdict.validity.structure import AdmissionLimits

UNSURE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """So many of so many windows."""

    count: int
    windows: int

    @property
    def lower95(self) -> float:
        """The smallest share that these windows leave possible, one-sided, 95 %; 0 without a window."""
        return bound_rate_below(self.count, self.windows) if self.windows else 0.0

    @property
    def upper95(self) -> float:
        """The largest share that these windows leave possible, one-sided, 95 %; 1 without a window."""
        return bound_rate(self.count, self.windows) if self.windows else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """The windows of a session beside whose GPU a process came and went: how many of each kind were void."""

    touched: Share
    clean: Share
    unsure: Share
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """The windows of a session whose host others used: how many were void, and the CPU shares that went to others.

    `above` are the windows in which others took more than the rule allows, and how many of them were void.
    """

    voided: Share
    above: Share
    median_share: float
    largest_share: float
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """The windows of sessions without a co-tenant. `foreign` are those with a process that was not the session's."""

    sessions: int
    foreign: Share
    voided: Share
    largest_share: float


def list_voided(session: Session, scenario: Scenario) -> list[tuple[Window, bool]]:
    """Each window that telemetry watched, and whether it alone makes the session INVALID."""
    limits = AdmissionLimits(scenario=scenario, gated=())
    return [
        (window, any(True for _ in check_windows(_keep_only(session, window), limits)))
        for window in session.windows
        if FOREIGN_PROCESSES in window.telemetry
    ]


def _keep_only(session: Session, window: Window) -> Session:
    return Session(
        source=session.source,
        scenario=session.scenario,
        workload_hash=session.workload_hash,
        fingerprints=session.fingerprints,
        windows=(window,),
    )


def count_bursts(folder: Path, bursts: Path) -> Bursts:
    """Tell windows that a process touched from those that it did not, and count those that are void."""
    scenario, session = load_results(folder)
    begun = datetime.fromisoformat(read_record(folder).begun_utc).timestamp()
    lives = [(one["process_from"], one["process_to"]) for one in json.loads(bursts.read_text(encoding="utf-8"))]
    found: dict[str, list[bool]] = {"touched": [], "clean": [], "unsure": []}
    for window, is_void in list_voided(session, scenario):
        first, last = begun + window.begun_s, begun + window.ended_s
        touched = any(low < last - UNSURE_S and high > first + UNSURE_S for low, high in lives)
        clean = all(low > last + UNSURE_S or high < first - UNSURE_S for low, high in lives)
        found["touched" if touched else "clean" if clean else "unsure"].append(is_void)
    shares = {name: _share(voided) for name, voided in found.items()}
    return Bursts(**shares, outcome=judge(session, scenario, None).outcome)


def count_host_load(folder: Path) -> HostLoad:
    """Count the windows that are void, and say how much of the CPU others took."""
    scenario, session = load_results(folder)
    shares = _list_shares([session])
    voided = list_voided(session, scenario)
    return HostLoad(
        voided=_share([is_void for _, is_void in voided]),
        above=_share([is_void for window, is_void in voided if window.telemetry.get(FOREIGN_CPU, 0.0) > MAX_LOST_CPU_SHARE]),
        median_share=median(shares),
        largest_share=max(shares),
        outcome=judge(session, scenario, None).outcome,
    )


def count_controls(found: Iterable[tuple[Scenario, Session]]) -> Controls:
    """Count over all watched windows of sessions without a co-tenant. A session without telemetry counts for nothing."""
    pairs = [(scenario, session, list_voided(session, scenario)) for scenario, session in found]
    pairs = [one for one in pairs if one[2]]
    windows = [pair for _, _, voided in pairs for pair in voided]
    return Controls(
        sessions=len(pairs),
        foreign=_share([window.telemetry[FOREIGN_PROCESSES] > 0 for window, _ in windows]),
        voided=_share([is_void for _, is_void in windows]),
        largest_share=max(_list_shares(session for _, session, _ in pairs), default=0.0),
    )


def _share(hits: list[bool]) -> Share:
    return Share(count=sum(hits), windows=len(hits))


def _list_shares(sessions: Iterable[Session]) -> list[float]:
    return [
        window.telemetry[FOREIGN_CPU] for session in sessions for window in session.windows if FOREIGN_CPU in window.telemetry
    ]


def tell_host(folder: Path) -> None:
    """The share of CPU time that went to others, and what each arm's windows showed beside it."""
    _, session = load_results(folder)
    for window in session.windows:
        share = window.telemetry.get(FOREIGN_CPU, float("nan"))
        values = window.run.values
        print(
            f"{window.arm.value:10} {window.role.value:9} others {share:6.1%}  "
            f"median ITL {values['median_itl_ms']:.2f} ms  P99 ITL {values['p99_itl_ms']:6.2f} ms  "
            f"{values['output_tok_per_s']:.0f} tok/s"
        )
    found = count_host_load(folder)
    print(
        f"others at the median {found.median_share:.1%}, at most {found.largest_share:.1%}; void above {MAX_LOST_CPU_SHARE:.0%}"
    )
    print(f"void: {found.voided.count} of {found.voided.windows} windows")
    print(f"verdict by its own noise: {found.outcome.value}")


def tell_bursts(folder: Path, bursts: Path) -> None:
    """One line for the windows that a process touched, one for those that it did not."""
    found = count_bursts(folder, bursts)
    print("| process on the GPU | windows | invalid | share invalid (95 %) |\n|:--|:--|:--|:--|")
    touched, clean, unsure = found.touched, found.clean, found.unsure
    print(f"| during the window | {touched.windows} | {touched.count} | at least {touched.lower95:.0%} |")
    print(f"| not | {clean.windows} | {clean.count} | at most {clean.upper95:.0%} |")
    print(f"| within a second of it | {unsure.windows} | {unsure.count} | |")
    print(f"verdict by its own noise: {found.outcome.value}")


def tell_controls(folders: list[Path]) -> None:
    """One line for all sessions without a co-tenant."""
    found = count_controls(load_results(folder) for folder in folders)
    for words, share in (("with a foreign process", found.foreign), ("void", found.voided)):
        print(f"{words}: {share.count} of {share.windows} windows of {found.sessions} controls, at most {share.upper95:.2%}")


def main(folder: Path, bursts: Path | None, controls: list[Path]) -> None:
    if bursts is None:
        tell_host(folder)
        return
    tell_bursts(folder, bursts)
    if controls:
        tell_controls(controls)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None, [Path(name) for name in sys.argv[3:]])
