"""The hand-off: what a job that ran a pull request's code may say to a job that holds a token.

One JSON document of numbers and short words. It carries no verdict and no scenario text, for both would be the pull request's
own say: the reader takes the scenario from its own checkout and judges the windows itself. The job that wrote the samples
can still forge them; `SECURITY.md` says what follows from that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, Literal, get_args

import orjson
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.dataclasses import dataclass

from perfgate.core import Arm, Role
from perfgate.errors import HandoffError
from perfgate.evidence import CodeChange, TracedLayer
from perfgate.github.handoff.choices import ChoicesEntry
from perfgate.github.handoff.packages import PackagesEntry
from perfgate.github.handoff.subject import FactName, HandoffSubject, Label, SmallCount
from perfgate.readers.bench_serving import COUNT_FIELDS, VALUE_FIELDS
from perfgate.results.expert_use import RawTrace
from perfgate.results.profiling.attribution import TOP, LaunchDifference, LayerDifference
from perfgate.results.profiling.host_counts import HostCount
from perfgate.results.records import Seconds
from perfgate.stats.expert_use import Unknown
from perfgate.storage.journal import Time
from perfgate.storage.schema import FOREIGN, Amount, Count, Sha256, adapt, advise_newer
from perfgate_moe.proof.values import MAX_LINE, KernelProof, Line

MAX_DOCUMENT_BYTES = 64 * 2**20
"""Of one document. Two blocks of the largest shipped scenario, `soak`, hand over 21 MB."""

MAX_NAMES = 250_000
"""Of all fields of one document, counted by its colons. A field that is not known costs 3 kB of complaint."""

MAX_VALUES = 6_000_000
"""Of one document, counted by its commas. Two blocks of the largest shipped scenario have 2.3 million."""

MAX_WINDOWS = 1000
MAX_REQUESTS = 20_000
MAX_TOKENS = 100_000
MAX_PROBLEMS = 50
MAX_PROMPTS = 64
MAX_ANSWER = 4096
MAX_TEXT = MAX_LINE
MAX_LAUNCHES = 8

Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]*$", max_length=64)]
Fact = Annotated[str, Field(pattern=r"^[A-Za-z0-9 _.,:()+/@#~-]*$", max_length=120)]
Text = Line
Ordinal = Annotated[int, Field(ge=1, lt=100_000)]
Logprob = Annotated[float, Field(ge=-1e6, le=1e-3, allow_inf_nan=False)]
Rate = Amount | Literal["Infinity", "inf", "trace"]


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class ArmFacts:
    """One arm: its fingerprint, and a digest of how it was started, so that equal starts stay recognisable."""

    facts: Mapping[FactName, Fact]
    start_sha256: Sha256


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class WindowEntry:
    """One window: its place in the session and the load generator's numbers, without a word that a model generated."""

    arm: Arm
    block: Ordinal
    start: Ordinal
    index: SmallCount
    role: Role
    begun_s: Seconds
    ended_s: Seconds
    telemetry: Mapping[FactName, Amount]
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class ReplyEntry:
    """The answer to one fixed prompt: generated tokens as numbers, and log-probs."""

    tokens: Annotated[tuple[Count, ...], Field(fail_fast=True, max_length=MAX_ANSWER)]
    logprobs: Annotated[tuple[Logprob, ...], Field(fail_fast=True, max_length=MAX_ANSWER)]
    prompt_logprobs: Annotated[tuple[Logprob, ...], Field(fail_fast=True, max_length=MAX_ANSWER)]


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class AnswerEntry:
    """What one server start answered to the fixed prompts, which the reader draws again from the seed."""

    arm: Arm
    block: Ordinal
    start: Ordinal
    prompts: Annotated[int, Field(gt=0, le=MAX_PROMPTS)]
    input_len: Annotated[int, Field(gt=0, le=MAX_ANSWER)]
    output_len: Annotated[int, Field(gt=0, le=MAX_ANSWER)]
    vocab: Annotated[int, Field(gt=0, lt=2**31)]
    seed: Count
    replies: Annotated[tuple[ReplyEntry, ...], Field(max_length=MAX_PROMPTS, fail_fast=True)]


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class KernelEntry:
    """One kernel in both arms, a forward step: `name` is the base's own, empty for one that only the candidate calls.

    Such a one crosses as the digest of its name alone: no text that a change chose is shown.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_:.~]{0,72}$")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    base_us: Amount
    candidate_us: Amount
    base_count: Amount
    candidate_count: Amount
    launches: Annotated[tuple[LaunchDifference, ...], Field(fail_fast=True, max_length=MAX_LAUNCHES)] = ()
    code: CodeChange = ""


def _check_kinds(layers: tuple[LayerDifference, ...]) -> tuple[LayerDifference, ...]:
    """A kind told twice would stand twice among the few that a comment shows."""
    if len({one.layer for one in layers}) < len(layers):
        raise ValueError("a kind of layer that is listed twice")
    return layers


def _check_parts(counts: tuple[HostCount, ...]) -> tuple[HostCount, ...]:
    if len({one.part for one in counts}) < len(counts):
        raise ValueError("a part of the host that is listed twice")
    return counts


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class ProfileEntry:
    """What profiles of both arms said: sums over all kernels or operators, those that differ most, and kinds of layer."""

    kind: Literal["kernel", "operator"]
    base_us: Amount
    candidate_us: Amount
    parts: Annotated[tuple[KernelEntry, ...], Field(fail_fast=True, max_length=4 * TOP)]
    base_calls: Amount = 0.0
    candidate_calls: Amount = 0.0
    layers: Annotated[
        tuple[LayerDifference, ...], Field(fail_fast=True, max_length=len(get_args(TracedLayer))), AfterValidator(_check_kinds)
    ] = ()
    has_launches: bool = False
    same_code: SmallCount = 0
    host: Annotated[tuple[HostCount, ...], AfterValidator(_check_parts)] = ()


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class UseEntry:
    """The expert use of one arm: what its server chose, or why that is not known."""

    arm: Arm
    block: Ordinal
    start: Ordinal
    found: RawTrace | Unknown


@dataclass(frozen=True, slots=True, kw_only=True, config=FOREIGN)
class Handoff:
    """A whole session as it crosses the border. `problems` are facts that void it; the reader judges `kernels` and `expert_use`
    itself. `measures_expert_use` says that it was asked for: where it is missing then, the session is void.

    `ended_s` is the last moment that its folder knows of, as `WindowEntry.ended_s` counts: servers stop after the last window.
    `choices` are not the session's: another job of the run asked both arms what they choose, and its words are handed on.
    `packages` are those by which the arms' environments differ, None where the trees pin the same.
    """

    schema: Literal[1]
    subject: HandoffSubject
    perfgate: Word
    scenario: Label
    workload_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    purpose: Literal["ab", "calibration"]
    begun_utc: Time
    is_complete: bool
    arms: Mapping[Arm, ArmFacts]
    problems: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=MAX_PROBLEMS)]
    windows: Annotated[tuple[WindowEntry, ...], Field(max_length=MAX_WINDOWS, fail_fast=True)]
    answers: Annotated[tuple[AnswerEntry, ...], Field(max_length=MAX_WINDOWS, fail_fast=True)]
    kernels: KernelProof | None = None
    profile: ProfileEntry | None = None
    measures_expert_use: bool = False
    expert_use: Annotated[tuple[UseEntry, ...], Field(fail_fast=True, max_length=len(Arm))] = ()
    ended_s: Seconds = 0.0
    choices: ChoicesEntry | None = None
    packages: PackagesEntry | None = None


_NUMBERS = {name for names in VALUE_FIELDS.values() for name in names} | {"duration", "random_range_ratio"}
_COUNTS = {name for names in COUNT_FIELDS.values() for name in names} | {
    "max_concurrency",
    "random_input_len",
    "random_output_len",
    "sharegpt_output_len",
}
_WORDS = {"backend", "dataset_name", "model_id"}
_Gaps = Annotated[list[Amount], Field(max_length=MAX_TOKENS, fail_fast=True)]
_Mark = Literal["", "x"]
_LISTS: dict[str, Any] = {"ttfts": Amount, "output_lens": Count, "itls": _Gaps, "errors": Text, "generated_texts": _Mark}


RECORD_FIELDS = tuple(sorted({*_NUMBERS, *_COUNTS, *_WORDS, *_LISTS, "request_rate", "accept_length"}))


@cache
def _record_adapter() -> TypeAdapter[Any]:
    """The fields of one line of the load generator that a verdict reads, each with its bounds; any other field is refused."""
    kinds: dict[str, Any] = dict.fromkeys(_NUMBERS, Amount) | dict.fromkeys(_COUNTS, Count) | dict.fromkeys(_WORDS, Word)
    kinds |= {name: Annotated[list[kind], Field(max_length=MAX_REQUESTS, fail_fast=True)] for name, kind in _LISTS.items()}  # type: ignore[valid-type]
    kinds |= {"request_rate": Rate, "accept_length": Amount}
    fields: dict[str, Any] = {name: (kind | None, None) for name, kind in kinds.items()}
    return TypeAdapter(create_model("Record", __config__=ConfigDict(extra="forbid", strict=True), **fields))


def parse_handoff(content: bytes, source: str) -> Handoff:
    """Read and check a document from an untrusted job. Raise HandoffError naming the first field that is wrong."""
    if len(content) > MAX_DOCUMENT_BYTES:
        raise HandoffError(f"{source}: {len(content)} bytes where at most {MAX_DOCUMENT_BYTES} are read")
    if content.count(b":") > MAX_NAMES:
        raise HandoffError(f"{source}: more fields than the {MAX_NAMES} that are read; refused")
    if content.count(b",") > MAX_VALUES:
        raise HandoffError(f"{source}: more values than the {MAX_VALUES} that are read; refused")
    _require_fields(content, source)
    try:
        handoff = adapt(Handoff).validate_json(content)
    except ValidationError as error:
        raise HandoffError(f"{source}: {describe(error)}; measure again{advise_newer(error)}") from None
    for number, window in enumerate(handoff.windows):
        _check_record(window.record, f"{source}: windows.{number}.record")
    for arm, found in handoff.arms.items():
        _check_hardware(found.facts, f"{source}: arms.{arm.value}")
    return handoff


def _require_fields(content: bytes, source: str) -> None:
    """Raise HandoffError for the first field that is missing. The model would keep a copy of all others for each that is."""
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError:
        # The model says where it is no JSON.
        return
    needed = (field.name for field in fields(Handoff) if field.default is MISSING)
    if isinstance(found, dict) and (missing := next((name for name in needed if name not in found), None)):
        raise HandoffError(f"{source}: {missing}: Field required; measure again")


def _check_record(record: Mapping[str, Any], where: str) -> None:
    try:
        _record_adapter().validate_python(dict(record))
    except ValidationError as error:
        raise HandoffError(f"{where}.{describe(error)}; measure again{advise_newer(error)}") from None


def _check_hardware(facts: Mapping[str, str], where: str) -> None:
    """The hardware's name is the only fact that becomes part of a path."""
    try:
        TypeAdapter(Label).validate_python(facts.get("hardware"))
    except ValidationError as error:
        raise HandoffError(f"{where}.facts.hardware: {error.errors(include_url=False)[0]['msg']}") from None


def describe(error: ValidationError) -> str:
    """Name the first field that is wrong and the rule it broke, without repeating a value that an attacker may have chosen."""
    return ": ".join(find_fault(error))


def find_fault(error: ValidationError) -> tuple[str, str]:
    """Return the first field that is wrong, as a dotted path, and the rule it broke."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = [str(part)[:40] if str(part)[:40].replace("_", "").isalnum() else "?" for part in first["loc"]]
    return ".".join(place) or "content", first["msg"]


def dump_handoff(handoff: Handoff) -> bytes:
    """Write the document: one line, keys sorted, the same bytes for the same session."""
    return orjson.dumps(handoff, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)
