"""A copy of a recorded result folder that can be doctored window by window; digests follow unless they are the fault."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from perfgate.gate.case import KEPT
from perfgate.results.raw.pack import PACK_FILE, read_raw
from tests.fakes.recorded import ROOT, ROUTED, bring_back

BASELINES = ROOT / "perfgate" / "baselines"
MS = 1000.0
BY_START = ("answers.jsonl", "expert_use.jsonl")
"""Indexes of what was asked of each start, beside its windows."""

Line = dict[str, Any]


class Recording:
    """A doctored copy. Change `index`, `events`, `session` and `scenario` in place, then `save`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = read_lines(folder / "windows.jsonl")
        self.events = read_lines(folder / "events.jsonl")
        self.session: Line = json.loads((folder / "session.json").read_text())
        self.scenario = (folder / "scenario.toml").read_text()

    def save(self) -> None:
        write_lines(self.folder / "windows.jsonl", self.index)
        write_lines(self.folder / "events.jsonl", self.events)
        (self.folder / "session.json").write_text(json.dumps(self.session))
        (self.folder / "scenario.toml").write_text(self.scenario)

    def read(self, entry: Line) -> Line:
        """The load generator's line of one window."""
        line: Line = json.loads(gzip.decompress((self.folder / entry["file"]).read_bytes()))
        return line

    def write(self, entry: Line, line: Line) -> None:
        self.write_raw(entry, json.dumps(line).encode() + b"\n")

    def write_raw(self, entry: Line, raw: bytes) -> None:
        self.write_packed(entry, gzip.compress(raw, compresslevel=1, mtime=0))

    def write_packed(self, entry: Line, packed: bytes) -> None:
        (self.folder / entry["file"]).write_bytes(packed)
        entry["sha256"] = hashlib.sha256(packed).hexdigest()

    def change(self, entry: Line, **fields: Any) -> None:
        """Set fields of what the load generator wrote of one window."""
        self.write(entry, {**self.read(entry), **fields})

    def pick(self, arm: str = "candidate", role: str | None = None) -> Iterator[Line]:
        return (entry for entry in self.index if entry["arm"] == arm and role in (None, entry["role"]))

    def first(self, arm: str = "candidate", role: str = "measured") -> Line:
        return next(self.pick(arm, role))

    def copy_file(self, entry: Line) -> Line:
        """A second file with the same content and an index entry of its own."""
        name = f"windows/{len(list((self.folder / 'windows').iterdir())):04d}.jsonl.gz"
        shutil.copyfile(self.folder / entry["file"], self.folder / name)
        return {**entry, "file": name}

    def keep_blocks(self, *blocks: int) -> None:
        """Leave these blocks alone, numbered anew from 1, as a session that ended after them."""
        numbers = {block: place for place, block in enumerate(blocks, start=1)}
        self.index = [{**entry, "block": numbers[entry["block"]]} for entry in self.index if entry["block"] in numbers]
        starts = {entry["start"] for entry in self.index}
        ended = [event for event in self.events if event["event"] == "block_ended"]
        events = [event for event in self.events if event.get("start") in starts]
        marks = [{**event, "block": numbers[event["block"]]} for event in ended if event["block"] in numbers]
        last_s = max(entry["ended_s"] for entry in self.index)
        self.events = [*events, *marks, {"event": "session_ended", "at_s": max(last_s, *(m["at_s"] for m in marks))}]
        self._keep_answers(starts)

    def _keep_answers(self, starts: set[int]) -> None:
        path = self.folder / "answers.jsonl"
        if path.exists():
            write_lines(path, [line for line in read_lines(path) if line["start"] in starts])

    def swap_arms(self, block: int) -> None:
        """Call the base candidate and the candidate base in one block; equal builds lose nothing by it."""
        other = {"base": "candidate", "candidate": "base"}
        swapped = {entry["start"] for entry in self.index if entry["block"] == block}
        asked = {name: read_lines(self.folder / name) for name in BY_START}
        for line in (*self.index, *self.events, *(line for lines in asked.values() for line in lines)):
            if line.get("start") in swapped and "arm" in line:
                line["arm"] = other[line["arm"]]
        for name, lines in asked.items():
            write_lines(self.folder / name, lines)

    def change_answers(self, change: Callable[[int, Line], None], arm: str = "candidate") -> None:
        """Change every reply of an arm's servers to the fixed prompts."""
        lines = read_lines(self.folder / "answers.jsonl")
        for line in lines:
            if line["arm"] != arm:
                continue
            replies = json.loads(gzip.decompress((self.folder / line["file"]).read_bytes()))
            for number, reply in enumerate(replies):
                change(number, reply)
            packed = gzip.compress(json.dumps(replies).encode(), compresslevel=1, mtime=0)
            (self.folder / line["file"]).write_bytes(packed)
            line["sha256"] = hashlib.sha256(packed).hexdigest()
        write_lines(self.folder / "answers.jsonl", lines)

    def slow(self, delay: Callable[[np.ndarray], np.ndarray], arm: str = "candidate", wait_s: float = 0.0) -> None:
        """Lengthen an arm's requests: `delay` maps gaps (requests x tokens, in s) to slower ones, `wait_s` is more TTFT.

        Behind the last token of a request its gaps are NaN, for requests are of several lengths.

        In a closed loop what every request takes longer, the window takes longer; later windows begin later. Warm-up windows
        are recorded without single requests: their sums are stretched as those of the arm's first measured window.
        """
        stretch = 1.0
        for entry in self.pick(arm, "measured"):
            line = self.read(entry)
            before = measure_e2e(line)
            gaps = delay(read_gaps(line))
            line |= {"itls": list_gaps(gaps), "ttfts": (np.array(line["ttfts"]) + wait_s).tolist()}
            stretch = float(measure_e2e(line).mean() / before.mean())
            self.stretch(entry, line, stretch)
        for entry in self.pick(arm, "warmup"):
            self.stretch(entry, self.read(entry), stretch)

    def stretch(self, entry: Line, line: Line, factor: float) -> None:
        longer_s = line["duration"] * (factor - 1)
        for name in list(line):
            if name == "duration" or name.endswith(("_latency_ms", "_itl_ms", "_tpot_ms")):
                line[name] *= factor
            elif name.endswith("_throughput"):
                line[name] /= factor
        self.write(entry, line)
        for other in self.index:
            if other["begun_s"] >= entry["ended_s"]:
                other["begun_s"] += longer_s
                other["ended_s"] += longer_s
        entry["ended_s"] += longer_s


@cache
def read_unpacked(session: Path) -> dict[str, bytes]:
    """All files of a packed session in the layout in which it was measured, by name; many tests begin with the same one."""
    files = {path.relative_to(session).as_posix(): path.read_bytes() for path in session.rglob("*") if path.is_file()}
    files.pop(PACK_FILE, None)
    for index in ("windows.jsonl", *BY_START):
        lines = read_lines(session / index)
        for line in lines:
            files[line["file"]] = packed = gzip.compress(read_raw(session / line["file"]), compresslevel=1, mtime=0)
            line["sha256"] = hashlib.sha256(packed).hexdigest()
        if lines:
            files[index] = join_lines(lines).encode()
    return files


def copy_unpacked(session: Path, folder: Path, left_out: tuple[str, ...] = ()) -> None:
    """Copy a packed session in the layout in which it was measured, without what `left_out` names at its top."""
    for name, content in read_unpacked(session).items():
        if name.split("/")[0] not in left_out:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def copy_recording(name: str, folder: Path, blocks: tuple[int, ...] = (1, 2)) -> Recording:
    """Copy blocks of a recorded session to `folder`, without the noise that it kept: the shipped noise judges the copy."""
    stored = ROUTED / name if (ROUTED / name).exists() else bring_back(ROUTED) / name
    copy_unpacked(stored, folder, left_out=("logs", "telemetry.jsonl.gz", "profiles", KEPT))
    recording = Recording(folder)
    recording.keep_blocks(*blocks)
    return recording


def read_gaps(line: Line) -> np.ndarray:
    """The gaps of a window, requests x tokens, in seconds; NaN behind a request's last token."""
    lists = line["itls"]
    gaps = np.full((len(lists), max(map(len, lists))), np.nan)
    for row, found in zip(gaps, lists, strict=True):
        row[: len(found)] = found
    return gaps


def list_gaps(gaps: np.ndarray) -> list[list[float]]:
    """What `read_gaps` read, as the load generator writes it."""
    return [row[~np.isnan(row)].tolist() for row in gaps]


def measure_e2e(line: Line) -> np.ndarray:
    """How long each request took, in seconds."""
    total: np.ndarray = np.array(line["ttfts"]) + np.nansum(read_gaps(line), axis=1)
    return total


def read_lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_lines(path: Path, lines: list[Line]) -> None:
    path.write_text(join_lines(lines))


def join_lines(lines: list[Line]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
