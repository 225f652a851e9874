"""What must hold besides speed: the candidate's answers are the base's, and the path under test is the one that ran."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, StrictBool

from perfgate.scenario.load import Positive, Seconds
from perfgate.storage.schema import STRICT, Sha256

Deviation = Annotated[float, Field(gt=0, lt=10, allow_inf_nan=False, strict=True)]
"""How far two values may lie apart, in units that the field names; above 1 is no slip of a percent."""

# What a server start, or for GSM8K and expert use each arm once, is put to besides its windows.
Check = Literal["equivalence", "gsm8k", "expert_use"]

# A misspelt key must not silently become a default.


@dataclass(frozen=True, slots=True, kw_only=True)
class Gsm8k:
    """Whether the candidate solves as many of GSM8K's questions as the base, asked through SGLang's own evaluation.

    `path` is a local file in GSM8K's format, whose digest is `sha256`; without it nothing is asked. Its first `shots` questions
    are the examples, the next `questions` are asked, `parallel` at a time, for at most `max_tokens` each. The candidate may get
    `max_loss` of them less right.
    """

    path: str | None = None
    sha256: Sha256 | None = None
    questions: Positive = 200
    shots: Positive = 5
    max_tokens: Positive = 512
    parallel: Positive = 64
    max_loss: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.02
    timeout_s: Seconds = 900.0
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        """Other questions give other answers: a path without a digest could mean any."""
        if (self.path is None) != (self.sha256 is None):
            given, missing = ("path", "sha256") if self.sha256 is None else ("sha256", "path")
            raise ValueError(f"{missing}: is missing; {given} needs it (`sha256sum FILE` prints the digest)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Whether the candidate still gives the base's answers, and how far they may differ.

    Each server start is asked `prompts` prompts of `input_len` tokens drawn from `seed`, greedily, for `output_len` more. Drift
    is the absolute difference of log-probs in units of their spread within one answer; unrelated answers drift by about 1.1.
    `max_mean_drift` bounds it over all prompts, `max_prompt_drift` within the worst one; both give way to `noise_factor` times
    what base starts differ by among themselves. `min_agreement` is the share of prompts whose tokens must all be the same.
    `gsm8k` asks questions, too.
    """

    enabled: StrictBool = True
    prompts: Positive = 16
    input_len: Annotated[int, Field(ge=8, strict=True)] = 48
    output_len: Positive = 32
    seed: Annotated[int, Field(ge=0, strict=True)] = 1
    max_mean_drift: Deviation = 0.1
    max_prompt_drift: Deviation = 0.3
    noise_factor: Annotated[float, Field(ge=1, allow_inf_nan=False, strict=True)] = 3.0
    min_agreement: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.0
    timeout_s: Seconds = 120.0
    gsm8k: Gsm8k = field(default_factory=Gsm8k)
    __pydantic_config__ = STRICT

    def list_checks(self, purpose: Literal["ab", "calibration"]) -> tuple[Check, ...]:
        """What servers of a session are put to; equal arms, as in a calibration, need no GSM8K questions."""
        if not self.enabled:
            return ()
        return ("equivalence", "gsm8k") if self.gsm8k.path is not None and purpose == "ab" else ("equivalence",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What must be seen of the candidate, so that the path under test is known to have run; regular expressions, all of them.

    A kernel (an operator on a CPU) must match each of `kernels` and none may match one of `absent`, in a profile taken after
    the first block; a line of the server's log must match each of `log`. Two more hold the arms' profiles against each other:
    what matches `removed` must run in the base and not in the candidate, and what matches `added` must run at least half as
    often again in the candidate, for each step. A kernel that both arms run proves nothing.
    """

    kernels: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        """A pattern that is none would fail late, after the first block; an empty one would never fail."""
        for name in ("kernels", "absent", "removed", "added", "log"):
            for pattern in getattr(self, name):
                if not pattern:
                    raise ValueError(f"{name}: is empty, which anything matches; write what must be seen, or leave it out")
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise ValueError(f"{name}: {pattern!r} is no regular expression ({error})") from None

    @property
    def needs_profile(self) -> bool:
        """Whether profiles have to be taken."""
        return bool(self.kernels or self.absent or self.is_difference)

    @property
    def is_difference(self) -> bool:
        """Whether the base's profile is needed, too."""
        return bool(self.removed or self.added)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is expected."""
        return not (self.needs_profile or self.log)

    def extend(self, other: Expect) -> Expect:
        """Expect all of both."""
        return Expect(
            kernels=(*self.kernels, *other.kernels),
            absent=(*self.absent, *other.absent),
            removed=(*self.removed, *other.removed),
            added=(*self.added, *other.added),
            log=(*self.log, *other.log),
        )
