"""Verdict replays: sessions put together from recorded blocks, judged by `perfgate.check.judge` and by nothing else.

A replay is a set of recorded blocks of one session in the order of time, in which the arms take turns in starting first, as in
a live session; a mixture of sessions would average out what favours an arm for a whole session. In equal arms nothing is meant
to tell base from candidate, so such a set is replayed twice: with the labels as they were, and with all of them exchanged.
Stored noise comes only from blocks that are not in the replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from benchmarks.error_rates.recordings import Block, Recording, renumber
from perfgate.check import judge
from perfgate.core import Arm, Outcome, Role, Window
from perfgate.evidence import Session
from perfgate.gate.baselines import add_responses, build_baseline
from perfgate.scenario.schema import Scenario
from perfgate.stats.looks import LookPlan, decide
from perfgate.verdict.baselines import Baseline
from perfgate.verdict.noise import Response
from perfgate.verdict.policy import Policy, fix_policy
from perfgate.verdict.recorded import Recorded
from perfgate.verdict.series import read_series
from perfgate.verdict.validity.pairing import group_starts

Pick = tuple[tuple[int, bool], ...]
"""Which blocks of a case, by index in the order of time, and whether each one's arms are exchanged."""


# No slots: the blocks in their order are remembered in the instance.
@dataclass(frozen=True, kw_only=True)
class Case:
    """Recorded blocks that may be put together: those of one scenario and one kind of candidate, in the order of time."""

    label: str
    kind: str
    recordings: tuple[Recording, ...]

    @property
    def scenario(self) -> Scenario:
        """The scenario of its first recording."""
        return self.recordings[0].scenario

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks in the order of time."""
        ordered = sorted(self.recordings, key=lambda one: one.begun_utc)
        return tuple(block for recording in ordered for block in recording.blocks)

    @cached_property
    def rigs(self) -> tuple[object, ...]:
        """By block: where and with what it was measured. No session holds blocks of two rigs."""
        known = {block.key: one.rig for one in self.recordings for block in one.blocks}
        return tuple(known[block.key] for block in self.blocks)

    @cached_property
    def leads(self) -> tuple[Arm, ...]:
        """By block: the arm whose server started, warmed up and was measured first."""
        return tuple(block.windows[0].arm for block in self.blocks)

    @property
    def is_symmetric(self) -> bool:
        """Whether the arms' labels may be exchanged."""
        return self.kind == "aa"


def group_cases(recordings: Sequence[Recording]) -> list[Case]:
    """All equal arms of one design together, and every other recording by itself, in the order of the list.

    Two recordings of one injection are told apart by their folders.
    """
    grouped: dict[tuple[object, ...], list[Recording]] = {}
    for recording in recordings:
        grouped.setdefault((recording.design, "aa" if recording.entry.kind == "aa" else recording.name), []).append(recording)
    words = [(found[0].design, found[0].label) for found in grouped.values()]
    return [
        Case(
            label=found[0].label if words.count(one) == 1 else f"{found[0].label} ({found[0].name})",
            kind=found[0].entry.kind,
            recordings=tuple(found),
        )
        for one, found in zip(words, grouped.values(), strict=True)
    ]


def list_picks(case: Case, length: int) -> list[Pick]:
    """All distinct replays of `length` blocks: sets in which the arms start by turns, equal arms with all labels either way."""
    ways = (False, True) if case.is_symmetric else (False,)
    return [
        tuple((index, swapped) for index in chosen)
        for chosen in list_sets(case, length)
        if in_turn(case, chosen)
        for swapped in ways
    ]


def list_sets(case: Case, length: int) -> list[tuple[int, ...]]:
    """All sets of `length` blocks of one session, by index in the order of time."""
    every = combinations(range(len(case.blocks)), length)
    return [chosen for chosen in every if len({case.blocks[index].session for index in chosen}) == 1]


def in_turn(case: Case, chosen: Sequence[int]) -> bool:
    """Whether from block to block the other arm starts first."""
    return all(case.leads[one] is not case.leads[other] for one, other in pairwise(chosen))


def sample(picks: Sequence[Pick], limit: int, seed: int) -> list[Pick]:
    """The replays, of more than `limit` a seeded sample without repetition."""
    if len(picks) <= limit:
        return list(picks)
    return [picks[one] for one in sorted(np.random.default_rng(seed).choice(len(picks), limit, replace=False).tolist())]


@dataclass(kw_only=True)
class Composer:
    """Builds sessions out of the blocks of a case; renumbered windows are kept, since replays share them."""

    case: Case
    kept: dict[tuple[int, int, bool], tuple[Window, ...]] = field(default_factory=dict)

    def compose(self, pick: Pick) -> Session:
        """A session of the blocks picked, numbered and timed as if it had been measured so, where the first one was."""
        blocks = self.case.blocks
        span_s = 1.0 + max(block.windows[-1].ended_s - block.windows[0].begun_s for block in blocks)
        windows: list[Window] = []
        for position, (index, swapped) in enumerate(pick):
            key = (index, position, swapped)
            if key not in self.kept:
                self.kept[key] = renumber(blocks[index], position, span_s, swapped=swapped)
            windows.extend(self.kept[key])
        first = next(one.session for one in self.case.recordings if one.name == blocks[pick[0][0]].session)
        # Answers and expert use are of starts as they were numbered; each recording was admitted by them already.
        return replace(
            first, windows=tuple(windows), superseded=(), is_complete=True, checks=(), answers=(), marks={}, expert_use={}
        )


@dataclass(kw_only=True)
class Shelf:
    """Stored noise of one scenario: A/A blocks, less those of a replay. `responses` are the injected cases', by their label.

    A rig is judged by its own blocks and responses, as long as it has some: those of another host say what that host is like.
    `rigs` tells where a label's responses were seen.
    """

    quiet: tuple[Recording, ...]
    responses: dict[str, dict[str, Response]] = field(default_factory=dict)
    rigs: dict[str, object] = field(default_factory=dict)
    kept: dict[tuple[object, ...], Baseline | None] = field(default_factory=dict)

    @property
    def bare(self) -> Shelf:
        """The same blocks without what answered a slow-down."""
        return Shelf(quiet=self.quiet)

    @cached_property
    def by_rig(self) -> dict[object, tuple[Recording, ...]]:
        """The recordings of each rig."""
        return {rig: tuple(one for one in self.quiet if one.rig == rig) for rig in dict.fromkeys(one.rig for one in self.quiet)}

    @cached_property
    def main(self) -> tuple[Recording, ...]:
        """The recordings of the rig that has most A/A blocks: what a baseline is made of."""
        return max(self.by_rig.values(), key=lambda mine: sum(len(one.blocks) for one in mine))

    def take(self, without: frozenset[tuple[str, int]] = frozenset(), label: str = "", rig: object = None) -> Baseline | None:
        """The baseline that the blocks of `rig` not named in `without` give, with the responses of all cases but `label`.

        A rig without blocks of its own takes those of the main one, as does None.
        """
        mine = self.by_rig.get(rig, self.main)
        key = (without, label, mine[0].rig)
        if key not in self.kept:
            self.kept[key] = self._build(mine, without, label)
        return self.kept[key]

    def _build(self, quiet: Sequence[Recording], without: frozenset[tuple[str, int]], label: str) -> Baseline | None:
        recorded = [one for recording in quiet if (one := _record(recording, without)) is not None]
        if not recorded:
            return None
        first = quiet[0]
        baseline = build_baseline(first.scenario, first.session.fingerprints[Arm.BASE], recorded)
        others = [other for other in self.responses if other != label]
        own = [other for other in others if self.rigs.get(other) == first.rig]
        found: dict[str, list[Response]] = {}
        for other in own or others:
            for name, response in self.responses[other].items():
                found.setdefault(name, []).append(response)
        return add_responses(baseline, found, baseline.history[-1].at) if found else baseline


def _record(recording: Recording, without: frozenset[tuple[str, int]]) -> Recorded | None:
    left = [(index, False) for index, block in enumerate(recording.blocks) if block.key not in without]
    if not left:
        return None
    session = Composer(case=Case(label="", kind="aa", recordings=(recording,))).compose(tuple(left))
    return Recorded(session=session, name=recording.name, at=recording.begun_utc, commit="", environment="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What one replay ended in, and why. `alone` says what each metric would, if it were the only one that moved."""

    pick: Pick
    outcome: Outcome
    blocks: int
    machine_s: float
    alone: dict[str, Outcome]
    reasons: tuple[str, ...] = ()


def replay(composer: Composer, pick: Pick, baseline: Baseline | None) -> Replayed:
    """Judge one replay."""
    case = composer.case
    session = composer.compose(pick)
    policy = fix_policy(session, case.scenario, baseline)
    session = drop_unasked(session, policy)
    verdict = judge(session, case.scenario, baseline)
    used = verdict.blocks or len(pick)
    return Replayed(
        pick=pick,
        outcome=verdict.outcome,
        blocks=used,
        machine_s=sum(case.blocks[index].machine_s for index, _ in pick[:used]),
        alone={} if verdict.outcome is Outcome.INVALID else judge_alone(session, policy),
        reasons=verdict.reasons,
    )


def drop_unasked(session: Session, policy: Policy) -> Session:
    """Leave out re-runs that the stored noise of this replay would not have asked for: a live session would not have them."""
    if not any(window.role is Role.RERUN for window in session.windows):
        return session
    unasked = {id(window) for start in group_starts(session) for window in start.settle(policy.limits.rules).spare}
    kept = tuple(window for window in session.windows if id(window) not in unasked)
    return replace(session, windows=kept)


def judge_alone(session: Session, policy: Policy) -> dict[str, Outcome]:
    """What the rule says of each metric if no other one moves: Holm's first step, the strictest that it may have to pass.

    A metric that only informs is judged as if it gated beside the others.
    """
    found = {}
    for reading in read_series(session, policy):
        family = len(policy.gated) + (reading.metric in policy.not_gating)
        plan = LookPlan(alpha=policy.plan.alpha / family, looks=policy.plan.looks)
        found[reading.metric] = decide([replace(reading.series, gating=True)], plan).outcome
    return found


def walk(composer: Composer, length: int, shelf: Shelf | None) -> Iterator[Replayed]:
    """Verdicts that share no block: each takes the next blocks of its session that keep the turns until it is decided.

    One that runs out of blocks before it is decided, or before its last look, is no verdict.
    """
    case = composer.case
    for session in dict.fromkeys(block.session for block in case.blocks):
        left = [index for index, block in enumerate(case.blocks) if block.session == session]
        while left:
            chosen = take_turns(case, left)[:length]
            pick = tuple((index, False) for index in chosen)
            found = replay(composer, pick, find_stored(shelf, case, pick))
            if found.outcome is Outcome.INCONCLUSIVE and len(pick) < length:
                break
            yield found
            used = chosen[: found.blocks if found.outcome is not Outcome.INCONCLUSIVE else length]
            left = [index for index in left if index not in used]


def take_turns(case: Case, left: Sequence[int]) -> list[int]:
    """From the first block on, each next one that the other arm began."""
    chosen: list[int] = []
    for index in left:
        if not chosen or case.leads[index] is not case.leads[chosen[-1]]:
            chosen.append(index)
    return chosen


def find_stored(shelf: Shelf | None, case: Case, pick: Pick) -> Baseline | None:
    """The stored noise that a replay may lean on; None for a replay by its own noise alone."""
    if shelf is None:
        return None
    without = frozenset(case.blocks[index].key for index, _ in pick) if case.kind == "aa" else frozenset()
    return shelf.take(without, case.label if case.kind != "aa" else "", case.rigs[pick[0][0]])
