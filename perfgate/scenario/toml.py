"""What is wrong with a scenario or matrix file, in one line: the file, the line, the key, and what to write instead."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from perfgate.errors import ScenarioError
from perfgate.storage.schema import adapt

_UNKNOWN = "unexpected_keyword_argument"
_PHRASES = {
    "missing": "is missing; add it",
    "dataclass_type": "must be a table",
    "mapping_type": "must be a table",
    "tuple_type": "must be a list",
}
_SHOWN = 60
T = TypeVar("T")


def parse_toml(text: str, source: str, root: type[T]) -> T:
    """Turn TOML text into a `root`. `source` names the text in errors. Raise ScenarioError with line and key."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(explain_syntax(error, text, source)) from None
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{source}: not readable TOML: {name_excess(error)}") from None
    try:
        return adapt(root).validate_python(data)
    except ValidationError as error:
        raise ScenarioError(explain(error.errors(include_url=False), root, text, source)) from None


def explain(errors: Sequence[ErrorDetails], root: type, text: str, source: str) -> str:
    """Put the most telling of pydantic's errors about `root` into one line.

    An unknown key comes first: where a key is misspelt, its right name is missing too, and that is the same mistake.
    """
    first = min(errors, key=lambda error: error["type"] != _UNKNOWN)
    keys = [str(part) for part in first["loc"] if not isinstance(part, int)]
    message = _phrase(first, keys, root)
    # Our own checks name the key below the table that they check: "looks: must be ...".
    if own := re.match(r"([\w.-]+): (.+)", message):
        keys, message = [*keys, *own[1].split(".")], own[2]
    line = find_line(text, keys)
    where = f"{source}:{line}" if line else source
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {'.'.join(keys) or 'scenario'}: {message}{more}"


def explain_syntax(error: ValueError, text: str, source: str) -> str:
    """Put a TOML error into one line, with the key that the broken line begins with."""
    lines = text.splitlines() or [""]
    message, _, place = str(error).partition(" (at ")
    found = re.match(r"line (\d+)", place)
    number = min(int(found[1]), len(lines)) if found else len(lines)
    key = re.match(r"\s*([\w.\-\"']+)\s*=", lines[number - 1])
    return f"{source}:{number}: {f'{key[1]}: ' if key else ''}not valid TOML: {message}"


def _phrase(error: ErrorDetails, keys: Sequence[str], root: type) -> str:
    if error["type"] == _UNKNOWN:
        return f"no such key; {suggest(keys[-1], find_keys(root, keys[:-1]))}"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        return _PHRASES["missing"]
    message = _PHRASES.get(error["type"]) or error["msg"].replace("Input should", "must", 1)
    shown = repr(error["input"])
    return f"{message}, not {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'}"


def suggest(word: str, known: Iterable[str]) -> str:
    """Offer the nearest of the known words, or all of them when none is near."""
    known = list(known)
    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"


def find_keys(root: type, path: Sequence[str]) -> list[str]:
    """List the keys that the table at `path` of a dataclass `root` may hold; none where it is no table of ours."""
    here: Any = root
    for part in path:
        here = _step(here, part)
    return [field.name for field in fields(here)] if is_dataclass(here) else []


def _step(here: Any, part: str) -> Any:
    if is_dataclass(here):
        return get_type_hints(here).get(part)
    values = get_args(here)
    return values[-1] if values else None


def find_line(text: str, keys: Sequence[str]) -> int | None:
    """Find the line of a dotted key in TOML text, or of its nearest table that the text names; None when neither is there."""
    table: list[str] = []
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([\w.\-\"' ]+?)\s*\]+", line):
            table = [part.strip(" \"'") for part in header[1].split(".")]
            path = table
        elif assignment := re.match(r"\s*([\w\-\"'.]+)\s*=", line):
            path = [*table, *(part.strip("\"'") for part in assignment[1].split("."))]
        else:
            continue
        if path == list(keys[: len(path)]) and (best is None or len(path) > best[0]):
            best = (len(path), number)
    return best[1] if best else None


def name_unknown(given: Iterable[str], known: Mapping[str, object], prefix: str, what: str) -> str | None:
    """Say which key under `prefix` is unknown as a `what`; None when all are known."""
    unknown = sorted(set(given) - known.keys())
    return f"{prefix}.{unknown[0]}: no such {what}; {suggest(unknown[0], known)}" if unknown else None


def name_excess(error: Exception) -> str:
    """Say what is too large for the TOML reader, which lets Python's own errors out: a nesting, or a number's digits."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(";")[0]
