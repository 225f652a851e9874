"""Files that survive: torn lines, full disks."""

import json
import subprocess
import sys

import pytest

from perfgate.errors import EvidenceError
from perfgate.storage.journal import (
    WindowFiles,
    append_line,
    cut_torn_line,
    read_lines,
    read_utc,
    write_utc,
)

# No file of the process may grow beyond 64 bytes: what a full disk does, at a place of our choice.
FULL = """
import resource, sys
from pathlib import Path
from perfgate.storage.journal import append_line, write_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
folder = Path(sys.argv[1])
def attempt(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        print(error.strerror)
"""


def run_on_full_disk(folder, *lines):
    code = FULL + "\n".join(lines)
    return subprocess.run([sys.executable, "-c", code, folder], check=True, capture_output=True, text=True).stdout


def test_append_line__lines_come_back_in_order(tmp_path):
    append_line(tmp_path / "log", {"a": 1})
    append_line(tmp_path / "log", {"a": 2})

    assert list(read_lines(tmp_path / "log")) == [{"a": 1}, {"a": 2}]


def test_append_line__a_full_disk_leaves_no_half_line(tmp_path):
    told = run_on_full_disk(
        tmp_path,
        "attempt(append_line, folder / 'log', {'a': 1})",
        "attempt(append_line, folder / 'log', {'a': 'x' * 200})",
        "attempt(append_line, folder / 'log', {'a': 2})",
    )

    assert told == "File too large\n"
    assert list(read_lines(tmp_path / "log")) == [{"a": 1}, {"a": 2}]


def test_append_line__an_interruption_leaves_no_half_line(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    append_line(tmp_path / "log", {"a": 1})
    monkeypatch.setattr("perfgate.storage.journal.os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        append_line(tmp_path / "log", {"a": 2})
    monkeypatch.undo()
    append_line(tmp_path / "log", {"a": 3})

    assert list(read_lines(tmp_path / "log")) == [{"a": 1}, {"a": 3}]


def test_write_atomically__a_full_disk_keeps_the_old_content(tmp_path):
    told = run_on_full_disk(
        tmp_path,
        "attempt(write_atomically, folder / 'file', b'old')",
        "attempt(write_atomically, folder / 'file', b'x' * 200)",
    )

    assert told == "File too large\n"
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_cut_torn_line__the_next_line_stands_alone(tmp_path):
    (tmp_path / "log").write_bytes(b'{"a":1}\n{"a":\0\0')
    cut = cut_torn_line(tmp_path / "log")
    append_line(tmp_path / "log", {"a": 2})

    assert cut == 7
    assert list(read_lines(tmp_path / "log")) == [{"a": 1}, {"a": 2}]


def test_cut_torn_line__nothing_to_cut(tmp_path):
    (tmp_path / "log").write_bytes(b'{"a":1}\n')

    assert cut_torn_line(tmp_path / "log") == 0
    assert cut_torn_line(tmp_path / "none") == 0
    assert (tmp_path / "log").read_bytes() == b'{"a":1}\n'


def test_window_files__never_give_a_number_twice(tmp_path):
    first, _ = WindowFiles(tmp_path).add(b"one")
    (tmp_path / "windows" / "0007.jsonl.gz").write_bytes(b"a window whose line was never written")
    (tmp_path / "windows" / "0007 (copy).jsonl.gz").write_bytes(b"what a file manager left")
    later, _ = WindowFiles(tmp_path).add(b"two")

    assert (first, later) == ("windows/0000.jsonl.gz", "windows/0008.jsonl.gz")


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-01T00:00:00Z", "2026-1-31T09:30:00Z", "2026-01-31T09:30:00Z\n", "9999-12-31T23:59:59Z"]
)
def test_read_utc__another_text(text):
    assert write_utc(read_utc("2026-01-31T09:30:00Z")) == "2026-01-31T09:30:00Z"
    with pytest.raises(ValueError, match="is no time such as 2026-01-31T09:30:00Z"):
        read_utc(text)


def test_read_lines__damage(tmp_path):
    (tmp_path / "log").write_text(json.dumps([1]) + "\n")

    with pytest.raises(EvidenceError, match="log:1: expected a JSON object"):
        list(read_lines(tmp_path / "log"))
