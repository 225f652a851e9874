"""Read the log of a server x client matrix: every combination's command, argument line, result table and progress bar.

A combination begins with the lines `SERVER: name`, `CLIENT: name` and `COMMAND: ...`. Everything else around it, in whatever
language, is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from perfgate.core import Remark, RemarkKind, Run
from perfgate.readers.printed_table import ANSI_CODES, has_table, parse_tables

SERVER = re.compile(r"^\s*SERVER:\s*(\S.*?)\s*$")
CLIENT = re.compile(r"^\s*CLIENT:\s*(\S.*?)\s*$")
COMMAND = re.compile(r"^\s*COMMAND:\s*(\S.*?)\s*$")
# tqdm: "1/256 [00:34<2:28:11, 34.87s/it]"; the elapsed time has two or three fields.
# As many digits as a clock has: an endless number is no time.
FIRST_DONE = re.compile(r"\b1/\d+ \[((?:\d{1,4}:)?\d{1,4}:\d\d)<(?:[^\]]*?(?<![\d.])(\d{1,9}(?:\.\d{1,9})?)s/it)?")
# A first request this much slower than the mean one is worth a word.
COLD_RATIO = 1.05
HEADER_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination of the matrix. `first_request_s` is when its first request ended, absent without a progress bar."""

    server: str
    client: str
    command: str
    run: Run
    first_request_s: float | None

    @property
    def cold_note(self) -> Remark | None:
        """Say that the first request took longer than the mean one; None when it did not, or when that is unknown."""
        mean_ms = self.run.values.get("mean_e2e_ms")
        if self.first_request_s is None or mean_ms is None or self.first_request_s <= COLD_RATIO * mean_ms / 1e3:
            return None
        return Remark(kind=RemarkKind.COLD, found=self.first_request_s, due=mean_ms / 1e3)


def is_matrix_log(text: str) -> bool:
    """Tell whether a text holds at least one combination of servers and clients."""
    return next(_find_starts(text.split("\n")), None) is not None


def parse_matrix_log(text: str, source: str) -> tuple[Cell, ...]:
    """Read every combination in order. One without a result table has a run with that problem and no values."""
    lines = text.split("\n")
    starts = [*_find_starts(lines), len(lines)]
    return tuple(cell for start, end in pairwise(starts) for cell in _parse_block(lines[start:end], start + 1, source))


def _find_starts(lines: list[str]) -> Iterator[int]:
    for index, line in enumerate(lines):
        if SERVER.match(line) and any(CLIENT.match(other) for other in lines[index + 1 : index + HEADER_LINES]):
            yield index


def _parse_block(lines: list[str], line: int, source: str) -> Iterator[Cell]:
    names = [_first(pattern, lines) for pattern in (SERVER, CLIENT, COMMAND)]
    text = "\n".join(lines)
    # Empty lines in front keep the line numbers of errors those of the file.
    runs = parse_tables("\n" * (line - 1) + text, source) if has_table(text) else (_no_run(line),)
    for run in runs:
        cell = Cell(
            server=names[0],
            client=names[1],
            command=names[2],
            run=replace(run, source=f"{source}:{line} ({names[0]} x {names[1]})"),
            first_request_s=_first_request_s(text) if len(runs) == 1 else None,
        )
        note = cell.cold_note
        yield replace(cell, run=replace(cell.run, notes=(*cell.run.notes, note))) if note else cell


def _first(pattern: re.Pattern[str], lines: list[str]) -> str:
    return next((match[1] for line in lines if (match := pattern.match(line))), "")


def _no_run(line: int) -> Run:
    return Run(
        source="",
        values={},
        workload={},
        requested=None,
        completed=0,
        input_tokens=None,
        output_tokens=None,
        duration_s=None,
        problems=(Remark(kind=RemarkKind.NO_TABLE, found=line),),
    )


def _first_request_s(text: str) -> float | None:
    """Elapsed time when the bar first shows one request done; carriage returns separate its redraws."""
    match = FIRST_DONE.search(ANSI_CODES.sub("", text))
    if match is None:
        return None
    if match[2]:
        # After one request the pace is the elapsed time, with more digits.
        return float(match[2])
    seconds = 0
    for part in match[1].split(":"):
        seconds = 60 * seconds + int(part)
    return float(seconds)
