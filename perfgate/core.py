"""The nouns of a performance verdict, as immutable values that know no files, processes or clocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

TROUBLESHOOTING = "docs/troubleshooting.md"
"""The page with the remedies for each message."""

PUBLISHED = "https://github.com/perfgate/sglang-perfgate/blob/main/"
"""Where the files of this repository can be read without a clone."""


class Outcome(StrEnum):
    """What a verdict, or one metric of it, says."""

    IMPROVED = "IMPROVED"
    PASS = "PASS"  # noqa: S105 - an outcome, not a password
    INCONCLUSIVE = "INCONCLUSIVE"
    REGRESSION = "REGRESSION"
    INVALID = "INVALID"

    @property
    def order(self) -> int:
        """The place among outcomes that are shown together: 0 for the worst."""
        return _OUTCOMES[self].order

    @property
    def icon(self) -> str:
        """One character for a heading."""
        return _OUTCOMES[self].icon

    @property
    def sentence(self) -> str:
        """What it means for the reader, as a clause without a full stop."""
        return _OUTCOMES[self].sentence

    @property
    def remedies(self) -> str:
        """The address of the remedies for its messages; empty for an outcome that decides."""
        return _OUTCOMES[self].remedies

    @property
    def exit_code(self) -> int:
        """0 when the change may merge, 1 when it made something slower, 3 when the evidence does not tell."""
        return _OUTCOMES[self].exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutcomeRow:
    order: int
    icon: str
    sentence: str
    exit_code: int
    remedies: str = ""


_OUTCOMES = {
    Outcome.REGRESSION: _OutcomeRow(order=0, icon="\N{CROSS MARK}", sentence="slower", exit_code=1),
    Outcome.INVALID: _OutcomeRow(
        order=1,
        icon="\N{NO ENTRY SIGN}",
        sentence="the measurement cannot be trusted, so it says nothing about speed",
        exit_code=3,
        remedies=f"{PUBLISHED}{TROUBLESHOOTING}#invalid",
    ),
    Outcome.INCONCLUSIVE: _OutcomeRow(
        order=2,
        icon="\N{WHITE QUESTION MARK ORNAMENT}",
        sentence="too little evidence to call it slower or not slower",
        exit_code=3,
        remedies=f"{PUBLISHED}{TROUBLESHOOTING}#inconclusive",
    ),
    Outcome.PASS: _OutcomeRow(
        order=3, icon="\N{WHITE HEAVY CHECK MARK}", sentence="a loss as large as the margin is excluded", exit_code=0
    ),
    Outcome.IMPROVED: _OutcomeRow(
        order=4, icon="\N{WHITE HEAVY CHECK MARK}", sentence="faster, and nothing slower", exit_code=0
    ),
}


def combine_outcomes(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the one outcome that stands for several: the worst, but a gain where all the others pass.

    Metrics of a verdict, workloads of a comparison and scenarios of a machine are combined alike. Without any outcome nothing
    is known, which is INCONCLUSIVE.
    """
    found = set(outcomes)
    if not found:
        return Outcome.INCONCLUSIVE
    worst = min(found, key=lambda outcome: outcome.order)
    return Outcome.IMPROVED if worst is Outcome.PASS and Outcome.IMPROVED in found else worst


class Better(StrEnum):
    """The direction in which a metric improves."""

    HIGHER = "higher"
    LOWER = "lower"


class Arm(StrEnum):
    """One side of a comparison."""

    BASE = "base"
    CANDIDATE = "candidate"

    @property
    def other(self) -> Arm:
        """The arm that this one is compared with."""
        return Arm.CANDIDATE if self is Arm.BASE else Arm.BASE


class Role(StrEnum):
    """Why a window was measured, and so whether it may be judged."""

    WARMUP = "warmup"
    MEASURED = "measured"
    RERUN = "rerun"


class RemarkKind(Enum):
    """What was noticed of a run."""

    NO_REQUEST = auto()
    """None completed."""
    INCOMPLETE = auto()
    """`found` of `due` requests completed."""
    FAILED = auto()
    """`found` of `due` requests did; `detail` is the error of the first."""
    NO_FIRST_TOKEN = auto()
    """`found` of `due` requests never saw one."""
    NO_OUTPUT = auto()
    """`found` of `due` requests have no output token."""
    NO_TEXT = auto()
    """`found` of `due` requests have none."""
    UNCOUNTED = auto()
    """No output token of any request was counted."""
    LOST_TEXT = auto()
    """What was received makes `found` tokens, `due` were counted."""
    ZERO_TTFT = auto()
    """The mean time to a first token is zero."""
    ZERO_ITL = auto()
    """No token came after a first one."""
    FEW_GAPS = auto()
    """There are `found` inter-token times where `due` are expected: too few to be evidence."""
    SHARED_EVENT = auto()
    """The same of a few tokens."""
    SPECULATIVE = auto()
    """Several tokens come at once by design, so that their gaps are not used."""
    NO_DURATION = auto()
    """Without it throughput cannot be checked."""
    OTHER_RATE = auto()
    """The metric `detail` is `found`, its count over the duration is `due`."""
    CUT_OFF = auto()
    """`found` requests were still running at the end."""
    CANCELLED = auto()
    """The run was, by its user."""
    OPEN_TABLE = auto()
    """A printed table has no closing line."""
    NO_TABLE = auto()
    """There is none after line `found`."""
    COLD = auto()
    """The first request took `found` seconds, the mean one `due`."""
    OF_SESSION = auto()
    """It belongs to a session with a problem, whose words are `detail`."""


UNANSWERED = frozenset({RemarkKind.FAILED, RemarkKind.NO_FIRST_TOKEN, RemarkKind.NO_OUTPUT})
"""What is wrong with a request that got no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something that was noticed of a run, with the numbers that its kind names. `detail` is a name or text of others."""

    kind: RemarkKind
    found: float = 0
    due: float = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation of a load generator, as its own output reports it.

    `values` maps names of `perfgate.metrics.METRICS` to numbers in the unit given there; a metric that the output does not
    carry is absent, never zero. `workload` holds the facts that two runs must share to be comparable. `problems` says why the
    run is no evidence; it is empty for a run that can be trusted as far as its own output shows. `notes` are facts that a
    reader should know and that void nothing. `estimators` names, for a value that is not the load generator's own, how it was
    made from raw samples; two values of one metric are comparable only when it agrees.
    """

    source: str
    values: Mapping[str, float]
    workload: Mapping[str, str | int | float]
    requested: int | None
    completed: int
    input_tokens: int | None
    output_tokens: int | None
    duration_s: float | None
    problems: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()
    estimators: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_unanswered(self) -> bool:
        """Whether no request got an answer: what was asked for cannot be served, and no window counts."""
        return any(problem.kind in UNANSWERED and problem.found >= problem.due for problem in self.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A run with its place in a session.

    `block` counts comparisons from 1, `start` counts server starts of the whole session from 1, `index` counts windows of one
    start from 0. Times are seconds since the session began, on a clock that cannot go back.
    """

    run: Run
    arm: Arm
    block: int
    start: int
    index: int
    role: Role
    begun_s: float
    ended_s: float
    telemetry: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Say where the window stands."""
        return f"block {self.block}, {self.arm.value}, start {self.start}, window {self.index}"


ABSENT = "absent"
"""The value of a fact that a machine has not."""

FactDifference = tuple[str, str, str]
"""A fact of two fingerprints that differs: its key, the value of the one that was asked, the value of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The hardware and software that decide whether two measurements may be compared, as flat text facts.

    `facts` has keys such as gpu, gpu_memory_gib, clock_policy, driver, cuda, torch, triton, sglang, cpu, cores, os, python.
    """

    facts: Mapping[str, str]

    @property
    def hardware(self) -> str:
        """The folder name under `baselines/` that holds baselines for this hardware."""
        return self.facts["hardware"]

    @property
    def gpus(self) -> int:
        """Over how many GPUs the server was spread: the fact `gpus`, which is missing where it was one, or none."""
        told = self.facts.get("gpus", "")
        return int(told) if re.fullmatch(r"[1-9]\d{0,3}", told, re.ASCII) else 1

    def differences(self, other: Fingerprint) -> tuple[FactDifference, ...]:
        """Return each fact that differs, in the order of the keys; "absent" stands for a value that one of the two lacks."""
        keys = sorted(self.facts.keys() | other.facts.keys())
        pairs = ((key, self.facts.get(key, ABSENT), other.facts.get(key, ABSENT)) for key in keys)
        return tuple(pair for pair in pairs if pair[1] != pair[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the evidence says of one metric.

    `change` is candidate over base minus one, signed so that the reader's sense of the metric holds (+0.03 throughput is more
    throughput); `low` and `high` bound it (two-sided, 90 %). `worse` is the same change on the log scale with positive meaning
    worse. `margin_ratio` is the practical margin Delta as a positive ratio. `band` is the stored noise band as a positive
    ratio, absent without a baseline. `smallest_effect` is what this run could have found, as a positive ratio; `fails_from` is
    the smallest estimate that this look calls a REGRESSION. `excluded` is the loss that is ruled out with 95 % confidence over
    all planned looks together, below Delta for a PASS; a negative one says that a gain is sure. Both are ratios of the metric
    as `margin_ratio` is, positive for a loss.
    """

    metric: str
    outcome: Outcome
    gating: bool
    base: float | None = None
    candidate: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    worse: float | None = None
    margin_ratio: float
    band: float | None = None
    p_value: float | None = None
    smallest_effect: float | None = None
    fails_from: float | None = None
    excluded: float | None = None
    notes: tuple[str, ...] = ()


class CountState(StrEnum):
    """What became of a counter: `lost` fails the change, all others only inform."""

    LOST = "lost"
    CHANGED = "changed"
    SAME = "same"
    SCATTERED = "scattered"
    UNTOLD = "untold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What the judged windows say of one counter of `perfgate.verdict.counters`, without statistics.

    `base` and `candidate` are in the counter's unit: the nearest two readings where all of one arm lie beyond all of the
    other's, else the medians; None in an arm whose server does not tell it. `change` is candidate over base minus one; from a
    base of 0 it is the candidate's count itself. A change beyond `fails_beyond`, signed like it, is `lost`.
    """

    counter: str
    state: CountState
    base: float | None
    candidate: float | None
    change: float | None
    fails_beyond: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to "may this change merge?", with everything that was fixed before looking.

    `uncalibrated` says that too few A/A blocks are stored for this kind of machine to vouch for the rate of false alarms. A
    REGRESSION fails all the same, unless a setting has such a one only reported. `counts` are the counters that the windows
    tell; none where they tell none.
    """

    outcome: Outcome
    scenario: str
    hardware: str
    judgements: tuple[Judgement, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    uncalibrated: bool
    blocks: int
    windows: int
    policy: Mapping[str, str | int | float]
    counts: tuple[Count, ...] = ()

    @property
    def lost_counts(self) -> tuple[Count, ...]:
        """The counters whose loss fails the change."""
        return tuple(count for count in self.counts if count.state is CountState.LOST)

    def is_only_reported(self, uncalibrated: str) -> bool:
        """Whether it is a REGRESSION that the setting `uncalibrated`, "fail" or "report", keeps from failing the change.

        A lost counter needs no stored noise, so it fails all the same.
        """
        may_pass = uncalibrated == "report" and self.uncalibrated and not self.lost_counts
        return may_pass and self.outcome is Outcome.REGRESSION

    def find_exit_code(self, uncalibrated: str = "fail") -> int:
        """The exit code of a command that judges, under the setting `uncalibrated`."""
        return 0 if self.is_only_reported(uncalibrated) else self.outcome.exit_code
