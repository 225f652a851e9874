"""What was measured, as values: a session with everything that its folder tells, and timings of layers.

A reader fills them and concludes nothing; `perfgate.verdict` judges them. They know no files, processes or clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass as checked

from perfgate.core import Arm, Fingerprint, Window
from perfgate.scenario.safeguards import Check, Expect
from perfgate.stats.expert_use import ExpertUse
from perfgate.storage.schema import FOREIGN, LOOSE, Count
from perfgate_moe.proof.values import KernelProof


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a start was asked, in the dialect of its engine: `prompts` times `input_len` tokens of a vocabulary of `vocab`, each
    for `output_len` more.
    """

    prompts: int
    input_len: int
    output_len: int
    vocab: int
    seed: int
    dialect: Literal["sglang", "openai"] = "sglang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to one prompt: generated tokens, their log-probs, and those of the prompt's own tokens from the second on.

    `text` is what the server's tokenizer made of the generated tokens; empty where the engine's form has none.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_logprobs: tuple[float, ...]
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfStart:
    """Evidence on one start of a server, besides its windows."""

    arm: Arm
    block: int
    start: int

    @property
    def name(self) -> str:
        """Say which start it is of."""
        return f"block {self.block}, {self.arm.value}, start {self.start}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(OfStart):
    """What one start answered. `problem` is what a reader found to be wrong with the answer; then there are no replies."""

    question: Question
    replies: tuple[Reply, ...] = ()
    problem: str | None = None


TraceKind = Literal["kernel", "operator"]

TracedLayer = Literal["MoE", "attention", "norms", "dense products", "communication", "the rest"]
"""What a step's time was spent in; "the rest" is sampling, copies and what no layer is known of."""


CodeChange = Literal["", "same", "other"]
"""Whether a kernel's machine code is the same in both arms; empty where no compiler left it on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """How a kernel was launched: blocks of the grid and threads of a block along x, y and z, and what a block takes of a GPU.

    `registers` are those of a thread. They and the shared memory follow from the machine code, which itself stands in no trace.
    """

    grid: tuple[Count, Count, Count]
    block: tuple[Count, Count, Count]
    registers: Count
    shared_bytes: Count
    __pydantic_config__ = FOREIGN


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """What all calls under one name took together, and how often each launch is among them, where the trace tells that."""

    time_us: float
    count: int
    launches: Mapping[LaunchShape, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTrace:
    """Time by name. `kind` is "kernel" where anything ran on a GPU: the operators that launched it are then left out.

    `layers` are the same microseconds by the kind of layer that they were spent in.
    """

    kind: TraceKind
    spent: Mapping[str, KernelTime]
    layers: Mapping[TracedLayer, float] = field(default_factory=dict)

    @property
    def total_us(self) -> float:
        """All names together."""
        return sum(spent.time_us for spent in self.spent.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile(OfStart):
    """Where the time of `steps` forward steps of one start went. `problem` says why there is no trace."""

    steps: int
    trace: KernelTrace | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of the arms after the first block, for the expectations to be held against.

    `log` are the patterns that a line of the candidate's log matched. `profiles` are the profiles that were asked for, the last
    of each arm; `problem` says why they cannot be read.
    """

    log: frozenset[str] = frozenset()
    profiles: tuple[KernelProfile, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How a session spent its machine time, in seconds.

    That is in all, starting servers, in windows that warm up, and in windows that count or replace one that stalled. What is
    missing from the sum went between them, and into blocks that were cut off.
    """

    took_s: float
    starting_s: float
    warming_s: float
    measuring_s: float


class DamageKind(Enum):
    """What became of a file of a result folder."""

    MISSING = auto()
    """The index names it."""
    CHANGED = auto()
    """It does not match its digest."""
    TORN_PACK = auto()
    """The pack `detail`, in which it lies, is damaged before it."""
    NO_RESULT = auto()
    """It is no output of a load generator."""
    NO_CHOICES = auto()
    """The server does not report which experts were chosen."""
    NO_WINDOWS = auto()
    """It is the index, which has no window of the block `detail`, although that block was measured to its end."""
    NO_EVENTS = auto()
    """It is the log of events, which is missing although windows were measured."""
    OTHER_ARM = auto()
    """It is the index, which counts the windows of start `detail` for another arm than the one that the events started."""
    DISORDERED = auto()
    """It is a window's and has a higher number than that of a later one, or the log of events and has a start ready before it
    began: windows and starts are numbered as they come.
    """
    OTHER_TEXT = auto()
    """It is the scenario or the matrix, and `detail` says how it is not the one that was fixed before the first window."""
    ONE_SLOWED = auto()
    """It is the session's, which has equal arms, though the server of arm `detail` alone slowed itself down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file of a result folder that is missing or not as it was written. `detail` is what a reader of its content found."""

    kind: DamageKind
    file: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProblem:
    """What voids a whole session, as its driver wrote it down: the message of the error that ended it.

    `round` is that of a matrix, None in a session.
    """

    message: str
    round: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Everything that one `perfgate run` measured, in the order in which it happened.

    `problems` are what its driver wrote down while it ran, facts that void the whole session (a refused model, a server that
    died); each says what to do. `damage` names each file that is missing or was changed.
    `is_complete` is False while a session runs or when it was cut off. `is_aa` says that both arms ran the same build with the
    same settings, so that their difference is noise by construction. `has_base` is False when no base can be built at all, so
    that a candidate measured alone is the last word. `scenarios_in_pr` share one error budget. `source` is the folder that a
    reader finds it in, empty where he cannot have it; `reproduce` are the words after `perfgate gate` that measure the same
    again. `noise` is the folder of stored noise to name to a reader, empty where none is known; `window_noise` are the
    deviations of a window, by metric, that decided what was measured again, absent where those of the noise that judges it
    did. `superseded` are windows of blocks that were cut off by a break and measured anew: they are kept, and not judged.
    `timing` is absent where nothing but windows is known.

    Besides windows: `checks` names what servers were to be put to, `expect` what was to be seen of the candidate. `answers` are
    those to the fixed prompts, in the order of the starts. `marks` has for each arm a digit for each GSM8K question, 1 where
    the answer is right. `kernels` is what was found out of both arms' kernels beforehand. `seen` is absent until a whole block
    was measured. `expert_use` tells how each arm's router uses the experts; an arm that is missing was never asked.
    `is_handed_over` says that another job measured it. `notes` were written down before the first window and void nothing.
    """

    source: str
    scenario: str
    workload_hash: str
    fingerprints: Mapping[Arm, Fingerprint]
    windows: tuple[Window, ...]
    problems: tuple[DriverProblem, ...] = ()
    damage: tuple[Damage, ...] = ()
    is_complete: bool = True
    is_aa: bool = False
    has_base: bool = True
    scenarios_in_pr: int = 1
    reproduce: tuple[str, ...] = ()
    noise: str = ""
    window_noise: Mapping[str, float] | None = None
    superseded: tuple[Window, ...] = ()
    timing: Timing | None = None
    checks: tuple[Check, ...] = ()
    expect: Expect = field(default_factory=Expect)
    answers: tuple[Answers, ...] = ()
    marks: Mapping[Arm, str] = field(default_factory=dict)
    kernels: KernelProof | None = None
    seen: Seen | None = None
    expert_use: Mapping[Arm, ExpertUse] = field(default_factory=dict)
    is_handed_over: bool = False
    notes: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """By how many its machine time is multiplied: the GPUs that it held, 1 on a CPU."""
        return max((fingerprint.gpus for fingerprint in self.fingerprints.values()), default=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEvidence:
    """A server of a matrix under one load, as a session of one arm in which a round is a block.

    The first server of a matrix is a base, each other one a candidate, whose session has the base's answers too.
    """

    server: str
    load: str
    session: Session


# Beyond these no layer was timed, and ratios of two leave the range of doubles.
Microseconds = Annotated[float, Field(ge=1e-6, le=1e12)]
MIN_ROUNDS = 10


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class LayerSamples:
    """Microseconds of one layer per round: candidate, base, and base once more as the control."""

    base: Annotated[tuple[Microseconds, ...], Field(min_length=MIN_ROUNDS)]
    again: tuple[Microseconds, ...]
    candidate: tuple[Microseconds, ...]


@checked(frozen=True, slots=True, kw_only=True, config=LOOSE)
class Layer:
    """One shape at one number of tokens. `floor_us` is its roofline; absent where the card's ceilings were not measured."""

    format: Literal[1]
    shape: str
    tokens: Annotated[int, Field(ge=1)]
    samples_us: LayerSamples
    floor_us: Microseconds | None = None

    @property
    def name(self) -> str:
        """How reports call it."""
        return f"{self.shape} M={self.tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlock:
    """One process: its layers by name, and the facts (device, versions, both sides) that blocks judged together must share."""

    source: str
    digest: str
    begun: str
    facts: Mapping[str, str]
    layers: Mapping[str, Layer]
