"""A result folder one of whose files was changed says another thing than the others, and that voids it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from perfgate.cli import main
from perfgate.core import Outcome
from perfgate.errors import EvidenceError
from perfgate.gate.case import load_case
from perfgate.results.matrix import TEXT_FILE, load_matrix, read_entries, read_settled
from perfgate.results.records import EVENTS_FILE, INDEX_FILE, SCENARIO_FILE, SESSION_FILE
from perfgate.results.records import read_entries as read_windows
from perfgate.results.results import read_served
from perfgate.scenario.schema import parse_scenario
from perfgate.verdict.cells import CellResult, judge_cells
from tests.fakes.folders import write_matrix
from tests.fakes.recorded import SLOWER
from tests.fakes.sessions import SCENARIO_TEXT, make_scenario, make_session, write_folder

OTHER = {"base": "candidate", "candidate": "base", "plain": "slowed", "slowed": "plain"}


@pytest.fixture
def slower(tmp_path):
    return Path(shutil.copytree(SLOWER, tmp_path / "slower"))


def edit(path: Path, change: Callable[[list[dict[str, Any]]], Iterable[dict[str, Any]]]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def exchange_files(first: dict[str, Any], second: dict[str, Any]) -> None:
    for name in ("file", "sha256"):
        first[name], second[name] = second[name], first[name]


def leave_checks_out(folder: Path) -> None:
    """As in a session that asks no prompts, whose answers would tell the arm of a start, too."""
    record = json.loads((folder / SESSION_FILE).read_text())
    (folder / SESSION_FILE).write_text(json.dumps(record | {"checks": []}))
    (folder / "answers.jsonl").unlink()


def test_load_results__arms_exchanged_in_the_index(slower):
    leave_checks_out(slower)
    assert load_case(slower).verdict.outcome is Outcome.REGRESSION
    edit(slower / INDEX_FILE, lambda lines: [line | {"arm": OTHER[line["arm"]]} for line in lines])

    verdict = load_case(slower).verdict

    assert verdict.outcome is Outcome.INVALID
    assert any("windows.jsonl counts start 1 for another arm than its server" in reason for reason in verdict.reasons)


def test_load_results__files_of_the_arms_exchanged(slower):
    def exchange(lines):
        measured = [line for line in lines if line["role"] == "measured"]
        for base, candidate in zip(
            *([line for line in measured if line["arm"] == arm] for arm in ("base", "candidate")), strict=True
        ):
            exchange_files(base, candidate)
        return lines

    edit(slower / INDEX_FILE, exchange)

    verdict = load_case(slower).verdict

    assert verdict.outcome is Outcome.INVALID
    assert any("is numbered against the order of time: the folder was changed" in reason for reason in verdict.reasons)


def test_load_results__looks_other_than_fixed(slower):
    scenario = slower / SCENARIO_FILE
    record = json.loads((slower / SESSION_FILE).read_text())
    (slower / SESSION_FILE).write_text(json.dumps(record | {"looks": [2, 4, 6]}))
    assert load_case(slower).verdict.outcome is Outcome.REGRESSION
    scenario.write_text(scenario.read_text().replace("looks = [2, 4, 6]", "looks = [4, 6]"))

    verdict = load_case(slower).verdict

    assert verdict.outcome is Outcome.INVALID
    assert any(
        "scenario.toml is not the one that was fixed before the first window (its looks were 2, 4, 6)" in reason
        for reason in verdict.reasons
    )


def test_load_results__margins_other_than_fixed(tmp_path):
    folder = write_folder(tmp_path / "made", make_session(make_scenario(), worse={"median_itl_ms": 0.08}, blocks=3))
    assert load_case(folder).verdict.outcome is Outcome.REGRESSION
    with (folder / SCENARIO_FILE).open("a") as file:
        file.write("margin = 0.5\n")

    verdict = load_case(folder).verdict

    assert verdict.outcome is Outcome.INVALID
    assert "scenario.toml is not the one that was fixed before the first window (its digest differs); put its text back" in (
        verdict.reasons
    )


def test_load_results__a_slowed_arm_that_is_called_equal(slower, tmp_path):
    record = json.loads((slower / SESSION_FILE).read_text())
    record["arms"]["candidate"] = record["arms"]["base"]
    (slower / SESSION_FILE).write_text(json.dumps(record))

    assert any("equal arms, of which the candidate alone was slowed down" in one for one in load_case(slower).verdict.reasons)
    assert main(["baseline", "add", str(slower), "--to", str(tmp_path / "noise")]) == 2
    assert main(["power", "--from", str(slower)]) == 3
    assert not (tmp_path / "noise").exists()


def test_read_served__events_that_name_no_start():
    events = [{"event": "server_started", "start": start, "arm": "base"} for start in (None, [1], {}, "1", 2)]

    assert read_served([*events, {"event": "server_started", "start": 3}], "arm") == {2: "base"}


def write_slow_starts(folder: Path) -> Path:
    """One server at a time, and the candidate's takes 1.6 times as long to get ready, which gates."""
    text = SCENARIO_TEXT + '[gates.ready_s]\n[blocks]\nresident = "one"\n'
    write_folder(folder, make_session(parse_scenario(text, "text"), blocks=3), text)
    arms = {entry.start: entry.arm.value for entry in read_windows(folder)}
    told = [
        {"event": event, "at_s": 0.0, "start": start, "arm": arm, "ready_s": (10.0 if arm == "base" else 16.0) + start / 10}
        for start, arm in arms.items()
        for event in ("server_started", "server_ready")
    ]
    edit(folder / EVENTS_FILE, lambda lines: [*told, *lines])
    return folder


def test_load_results__starts_exchanged_between_the_arms_when_ready(tmp_path):
    folder = write_slow_starts(tmp_path / "made")
    assert load_case(folder).verdict.outcome is Outcome.REGRESSION
    # In each block the base has the odd start and the candidate the one after it, or the other way round.
    edit(
        folder / EVENTS_FILE,
        lambda lines: [
            line | {"start": (line["start"] - 1 ^ 1) + 1} if line["event"] == "server_ready" else line for line in lines
        ],
    )

    verdict = load_case(folder).verdict

    assert verdict.outcome is Outcome.INVALID
    assert "events.jsonl is numbered against the order of time: the folder was changed; measure again" in verdict.reasons


def test_load_matrix__servers_exchanged_in_the_index(tmp_path):
    folder = write_matrix(tmp_path)
    started = {entry.start: entry.server for entry in read_entries(folder)}
    with (folder / EVENTS_FILE).open("a") as file:
        for start, server in started.items():
            file.write(json.dumps({"event": "server_started", "at_s": 0.0, "start": start, "server": server}) + "\n")
    load_matrix(folder)
    edit(folder / INDEX_FILE, lambda lines: [line | {"server": OTHER[line["server"]]} for line in lines])

    for read in (load_matrix, read_settled):
        with pytest.raises(EvidenceError, match=r"windows\.jsonl:1: server: start 1 is of server 'plain', not 'slowed'"):
            read(folder)


def test_load_matrix__files_of_two_cells_exchanged(tmp_path):
    folder = write_matrix(tmp_path)

    def exchange(lines):
        exchange_files(lines[2], lines[3])
        return lines

    edit(folder / INDEX_FILE, exchange)

    with pytest.raises(EvidenceError, match=r"file: windows/0003\.jsonl\.gz is numbered against the order of time"):
        load_matrix(folder)


def exchange_loads(text: str) -> str:
    return text.replace("[loads.closed]", "[loads.later]").replace("[loads.paced]", "[loads.closed]").replace("later", "paced")


def raise_concurrency(text: str) -> str:
    return text.replace("max_concurrency = 4", "max_concurrency = 8")


@pytest.mark.parametrize("change", [exchange_loads, raise_concurrency])
def test_read_matrix__text_other_than_fixed(tmp_path, change):
    folder = write_matrix(tmp_path)
    load_matrix(folder)
    (folder / TEXT_FILE).write_text(change((folder / TEXT_FILE).read_text()))

    for read in (load_matrix, read_settled):
        with pytest.raises(EvidenceError, match=r"matrix\.toml is not the one that was fixed before the first window"):
            read(folder)


def test_load_matrix__last_round_of_a_cell_that_was_taken_out_of_the_index(tmp_path):
    folder = write_matrix(tmp_path)
    edit(folder / INDEX_FILE, lambda lines: [line for line in lines if (line["round"], line["load"]) != (2, "closed")])

    cells = {(cell.server, cell.load): cell for cell in judge_cells(*load_matrix(folder))}

    assert_lost(cells)


def test_load_matrix__last_round_that_was_taken_out_though_what_it_superseded_is_left(tmp_path):
    folder = write_matrix(tmp_path)
    files = [line.file for line in read_entries(folder) if line.key == (2, "plain", "closed")]
    edit(folder / INDEX_FILE, lambda lines: [line for line in lines if line["file"] not in files[1:]])
    with (folder / EVENTS_FILE).open("a") as file:
        file.write(json.dumps({"event": "resumed", "at_s": 0.0, "superseded": files[:1]}) + "\n")

    assert_lost({(cell.server, cell.load): cell for cell in judge_cells(*load_matrix(folder))})


def assert_lost(cells: dict[tuple[str, str], CellResult]) -> None:
    lost = "windows.jsonl has no window of block 2, which ended: the folder was changed; measure again"
    assert lost in cells["plain", "closed"].problems
    assert not cells["plain", "closed"].windows
    assert not cells["plain", "paced"].problems
