"""What must hold besides speed: the candidate's answers are the base's, and the path under test is the one that ran."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import ConfigDict, Field, StrictBool

from perfgate.load import Positive, Seconds

Ratio = Annotated[float, Field(gt=0, lt=10, allow_inf_nan=False, strict=True)]

# A misspelt key must not silently become a default.
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """Whether the candidate still gives the base's answers, and how far they may differ.

    Each server start is asked `prompts` prompts of `input_len` tokens drawn from `seed`, greedily, for `output_len` more. Drift
    is the absolute difference of log-probs in units of their spread within one answer; unrelated answers drift by about 1.1.
    `max_mean_drift` bounds it over all prompts, `max_prompt_drift` within the worst one; both give way to `noise_factor` times
    what base starts differ by among themselves. `min_agreement` is the share of prompts whose tokens must all be the same.
    """

    enabled: StrictBool = True
    prompts: Positive = 16
    input_len: Annotated[int, Field(ge=8, strict=True)] = 48
    output_len: Positive = 32
    seed: Annotated[int, Field(ge=0, strict=True)] = 1
    max_mean_drift: Ratio = 0.1
    max_prompt_drift: Ratio = 0.3
    noise_factor: Annotated[float, Field(ge=1, allow_inf_nan=False, strict=True)] = 3.0
    min_agreement: Annotated[float, Field(ge=0, le=1, strict=True)] = 0.0
    timeout_s: Seconds = 120.0
    __pydantic_config__ = _STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What must be seen of the candidate, so that the path under test is known to have run; regular expressions, all of them.

    A kernel (an operator on a CPU) must match each of `kernels` and none may match one of `absent`, in a profile taken after
    the first block; a line of the server's log must match each of `log`.
    """

    kernels: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        """A pattern that cannot match anything would fail late, after the first block."""
        for name in ("kernels", "absent", "log"):
            for pattern in getattr(self, name):
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise ValueError(f"{name}: {pattern!r} is no regular expression ({error})") from None

    @property
    def needs_profile(self) -> bool:
        """Whether a profile of the candidate has to be taken."""
        return bool(self.kernels or self.absent)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is expected."""
        return not (self.needs_profile or self.log)

    def extend(self, other: Expect) -> Expect:
        """Expect all of both."""
        return Expect(
            kernels=(*self.kernels, *other.kernels), absent=(*self.absent, *other.absent), log=(*self.log, *other.log)
        )
