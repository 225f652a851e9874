"""JSON of our own, checked against a type: what is wrong is one line that names the file, the field and what to do."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from perfgate.errors import EvidenceError, PerfgateError

T = TypeVar("T")

# Built when first used: what only judges needs no schema for writing.
STRICT = ConfigDict(extra="forbid", defer_build=True)
FOREIGN = ConfigDict(extra="forbid", strict=True, defer_build=True)
"""Of what a job that ran foreign code may have written: nothing is converted or passed over on reading."""
LOOSE = ConfigDict(extra="ignore", defer_build=True)
Number = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Identifier = Annotated[int, Field(gt=0, lt=2**53)]
Amount = Annotated[float, Field(ge=0, lt=1e15, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

_GROWS = {"unexpected_keyword_argument", "extra_forbidden", "literal_error", "enum"}
"""What pydantic calls a field or a word that is not known: newer versions add some."""


def adapt(kind: type[T]) -> TypeAdapter[T]:
    """What reads and writes values of a type; built once, when it is first asked for."""
    key: Any = kind
    return _build(key)


@cache
def _build(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def find(value: Any, path: str) -> Any:
    """Follow a dotted path through plain values; None where a step is missing."""
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def dump(record: object) -> dict[str, Any]:
    """The plain values that a record is stored as."""
    content: dict[str, Any] = adapt(type(record)).dump_python(record, mode="json")
    return content


def parse_json(content: bytes, kind: type[T], source: object, hint: str, error: type[PerfgateError] = EvidenceError) -> T:
    """Turn the content of `source` into a `kind`. Raise `error`, which ends with `hint`, where it is not."""
    return check_value(parse_any(content, source, hint, error), kind, source, hint, error)


def parse_any(content: bytes, source: object, hint: str, error: type[PerfgateError] = EvidenceError) -> Any:
    """Turn the content of `source` into plain values. Raise `error`, which ends with `hint`, where it is no JSON."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as broken:
        raise error(f"{source}: not valid JSON ({broken}); {hint}") from None


def check_value(value: object, kind: type[T], source: object, hint: str, error: type[PerfgateError] = EvidenceError) -> T:
    """Turn plain values of `source` into a `kind`. Raise `error` naming the first field that is wrong."""
    try:
        return adapt(kind).validate_python(value)
    except ValidationError as broken:
        raise error(f"{source}: {describe_first(broken)}; {hint}{advise_newer(broken)}") from None


def advise_newer(error: ValidationError) -> str:
    """What else to do where the first of pydantic's complaints is of a field or a word that a newer perfgate may have."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ", or upgrade perfgate if a newer one wrote it" if first["type"] in _GROWS else ""


def describe_first(error: ValidationError, whole: str = "content") -> str:
    """Turn the first of pydantic's complaints into `field: reason`; `whole` stands for a field where all is wrong."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or whole
    return f"{field}: {first['msg']}"
