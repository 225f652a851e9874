"""A matrix's folder: written, read and gone on with by what a session's folder is."""

from __future__ import annotations

import json

import pytest

from perfgate.errors import EvidenceError
from perfgate.results.matrix import load_matrix, read_entries, read_settled
from perfgate.results.records import EVENTS_FILE, INDEX_FILE
from tests.fakes.folders import write_matrix


def test_read_settled__windows_of_a_cell_that_was_cut_off_are_named(tmp_path):
    folder = write_matrix(tmp_path)
    path = folder / EVENTS_FILE
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:-3]))

    settled, found = read_settled(folder)

    last = [entry for entry in read_entries(folder) if entry.key == read_entries(folder)[-1].key]
    assert last[0].key not in settled
    assert found.cut == tuple(entry.file for entry in last)
    assert (found.starts, found.unindexed) == (4, ())


def test_read_settled__a_raw_file_whose_line_was_never_written(tmp_path):
    folder = write_matrix(tmp_path)
    index = folder / INDEX_FILE
    *lines, lost = index.read_text().splitlines(keepends=True)
    index.write_text("".join(lines))

    assert read_settled(folder)[1].unindexed == (json.loads(lost)["file"],)


def test_read_entries__lines_as_they_were_ordered_before(tmp_path):
    folder = write_matrix(tmp_path)
    index = folder / INDEX_FILE
    before = read_entries(folder)
    index.write_text(
        "".join(json.dumps(dict(sorted(json.loads(line).items()))) + "\n" for line in index.read_text().splitlines())
    )

    assert read_entries(folder) == before


@pytest.mark.parametrize(
    ("event", "key"),
    [
        ({"event": "cell_ended", "round": "x"}, "round"),
        ({"event": "cell_failed", "round": 1.5}, "round"),
        ({"event": "server_started", "start": None}, "start"),
    ],
)
def test_read_settled__an_event_that_was_edited(event, key, tmp_path):
    folder = write_matrix(tmp_path)
    with (folder / EVENTS_FILE).open("a") as file:
        file.write(json.dumps({"at_s": 1.0, "server": "plain", "load": "closed", **event}) + "\n")

    with pytest.raises(EvidenceError, match=rf"{key}: .* is no number; the folder was damaged"):
        read_settled(folder)


def test_load_matrix__a_start_that_was_edited(tmp_path):
    folder = write_matrix(tmp_path)
    with (folder / EVENTS_FILE).open("a") as file:
        file.write(json.dumps({"event": "server_started", "at_s": 1.0, "server": "plain", "start": "x"}) + "\n")

    with pytest.raises(EvidenceError, match="start: 'x' is no number"):
        load_matrix(folder)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        (INDEX_FILE, {"server": "another"}),
        (INDEX_FILE, {"load": "another"}),
        (INDEX_FILE, {"round": 3}),
        (EVENTS_FILE, {"server": "another"}),
        (EVENTS_FILE, {"load": None}),
    ],
)
@pytest.mark.parametrize("read", [load_matrix, read_settled])
def test_load_matrix__a_line_about_no_cell(file, change, read, tmp_path):
    """What is told of no cell would be left out without a word: a window, or the reason why there is none."""
    folder = write_matrix(tmp_path)
    first, *lines = (folder / file).read_text().splitlines()
    (folder / file).write_text("\n".join([json.dumps(json.loads(first) | change), *lines]) + "\n")

    with pytest.raises(
        EvidenceError, match=rf"{file}:1: round \d, server '.*', load '.*': no cell of matrix.toml; the folder was"
    ):
        read(folder)
