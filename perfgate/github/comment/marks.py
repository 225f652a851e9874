"""A record in the first line of a comment or issue of perfgate's own, hidden from readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from perfgate.github.events import find_number
from perfgate.storage.schema import adapt, find

_END = " -->"
T = TypeVar("T")


def write_mark(mark: str, record: object) -> str:
    """The line that keeps `record`; nothing in it can end the HTML comment early."""
    kept = orjson.dumps(record).decode().replace("--", "-\\u002d").replace("<", "\\u003c").replace(">", "\\u003e")
    return f"{mark}{kept}{_END}"


def read_mark(mark: str, body: str, kind: type[T]) -> T | None:
    """The record of the first line; None where that was edited into something else."""
    line = body.partition("\n")[0].strip()
    if not (line.startswith(mark) and line.endswith(_END)):
        return None
    try:
        return adapt(kind).validate_json(line.removeprefix(mark).removesuffix(_END))
    except ValidationError:
        return None


def find_address(written: Any) -> str:
    """Where a comment or issue can be read; empty where GitHub does not say."""
    return str(find(written, "html_url") or "")


def is_own(comment: Mapping[str, Any], bot: str, mark: str) -> bool:
    """Whether the bot wrote a comment or issue that begins with `mark`; a mark alone proves nothing."""
    is_bot = find(comment, "user.login") == bot and find(comment, "user.type") == "Bot"
    return is_bot and str(comment.get("body") or "").startswith(mark)


def list_own(written: Iterable[Mapping[str, Any]], bot: str, mark: str, number: str) -> list[Mapping[str, Any]]:
    """The bot's comments or issues that begin with `mark`, oldest first, by the field that numbers them.

    One that stands on two pages, as a list that changes while it is read has it, is no second one.
    """
    own = {find_number(one, number): one for one in written if is_own(one, bot, mark)}
    return [own[found] for found in sorted(own)]
