"""What a step tells its workflow: outputs, the summary page, annotations. Each is read by lines, so no value may hold two."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from perfgate.errors import InputError

MAX_SUMMARY_BYTES = 1_000_000
"""GitHub drops a step's summary of more than 1 MiB whole, however many writes made it."""

CUT = "\n\n*The rest is in the artifact.*\n"

MAX_MESSAGE = 4000
MAX_VALUE = 100_000
"""The matrix of the largest settings has some 70,000 characters; Linux passes a program no argument of more than 131,071."""

_VALUE = re.compile(rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{0,{MAX_VALUE}}}")


def write_outputs(values: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Append outputs of this step. Raise InputError for a value that would add a line of its own."""
    for name, value in values.items():
        if not re.fullmatch(r"[a-z_]{1,40}", name) or not _VALUE.fullmatch(value):
            raise InputError(f"output {name[:40]!r}: holds a line break or is too long; nothing was written")
    _append(environment.get("GITHUB_OUTPUT"), "".join(f"{name}={value}\n" for name, value in values.items()))


def add_summary(markdown: str, environment: Mapping[str, str] = os.environ) -> None:
    """Append to the run's summary page, cut where the file would become so long that GitHub drops all of it.

    Earlier calls of the same step wrote to the same file. After a cut nothing more is added.
    """
    path = environment.get("GITHUB_STEP_SUMMARY")
    room = MAX_SUMMARY_BYTES - _measure(path)
    if room <= 0:
        return
    raw = markdown.encode() + b"\n"
    if len(raw) > room:
        # The cut fills the file, so that the next call finds no room.
        kept = raw[: max(room - len(CUT), 0)].rpartition(b"\n")[0].decode("utf-8", "ignore") + CUT
        _append(path, kept + " " * (room - len(kept.encode())))
        return
    _append(path, raw.decode("utf-8", "ignore"))


def _measure(path: str | None) -> int:
    """How many bytes are there already; an absent file has none."""
    try:
        return Path(path).stat().st_size if path else 0
    except OSError:
        return 0


def _append(path: str | None, text: str) -> None:
    """Outside of a workflow there is no such file, and nothing is written."""
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def format_annotation(level: str, title: str, message: str) -> str:
    """Write a workflow command that shows `message` on the run: no text in it can begin another command."""
    return f"::{level} title={_escape(title, is_property=True)}::{_escape(message[:MAX_MESSAGE], is_property=False)}"


def _escape(text: str, *, is_property: bool) -> str:
    """Escape as the runner's own library does; its parser undoes it."""
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return escaped.replace(":", "%3A").replace(",", "%2C") if is_property else escaped
