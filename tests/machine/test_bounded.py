"""What a folder that a person received may do to who reads it: nothing beyond its own files, and a limit."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from perfgate.cli import main
from perfgate.errors import EvidenceError
from perfgate.results.machine_samples import read_machine_samples
from perfgate.storage import bounded, stream
from perfgate.storage.bounded import MOST_BYTES, unpack_gzip
from perfgate.storage.stream import read_written
from tests.fakes.sessions import make_scenario, make_session, write_folder

MIB = 2**20


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "r", make_session(make_scenario()))


def put(folder, name, content):
    """Put a window file into a session, with the digest that its index wants."""
    path = folder / name
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(content)
    journal = folder / "windows.jsonl"
    journal.write_text(journal.read_text().replace(before, hashlib.sha256(content).hexdigest()))


def pack_zeros(size_bytes):
    """A gzip file of zeros, made a piece at a time: a thousandth of them, a few times over, as members."""
    member = gzip.compress(bytes(64 * MIB), compresslevel=9, mtime=0)
    return member * (size_bytes // (64 * MIB))


def test_attack__a_window_that_unpacks_without_an_end(folder):
    """2 GiB of zeros, checked in a process that may not have two: without the limit it took 4.1 GiB."""
    put(folder, "windows/0003.jsonl.gz", pack_zeros(2**31))
    limit = 3 * 2**30

    done = subprocess.run(
        [sys.executable, "-m", "perfgate.check", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        check=False,
    )

    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("INVALID")
    assert f"holds more than {MOST_BYTES // MIB} MiB" in done.stdout


def test_attack__a_packed_session_that_unpacks_without_an_end(folder, capsys, monkeypatch):
    monkeypatch.setattr(bounded, "MOST_BYTES", MIB)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        member = tarfile.TarInfo("files.jsonl")
        member.size = 4 * MIB
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    (folder / "raw.tar.xz").write_bytes(lzma.compress(archive.getvalue()))
    (folder / "windows" / "0003.jsonl.gz").unlink()

    assert main(["check", str(folder)]) == 2
    told = capsys.readouterr().err
    assert "raw.tar.xz: holds more than 1 MiB" in told
    assert len(told.splitlines()) == 1


def test_attack__a_sparse_member_of_a_packed_session(folder, capsys):
    """An archive of 10 KiB with a member that says it has 64 GiB, nearly all of them a hole."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("files.jsonl")
        member.size = 512
        sizes = {"major": 1, "minor": 0, "name": member.name, "realsize": 64 * 1024 * MIB}
        member.pax_headers = {f"GNU.sparse.{key}": str(value) for key, value in sizes.items()}
        tar.addfile(member, io.BytesIO(b"1\n0\n0\n".ljust(512, b"\0")))
    (folder / "raw.tar.xz").write_bytes(lzma.compress(archive.getvalue()))
    (folder / "windows" / "0003.jsonl.gz").unlink()

    assert main(["check", str(folder)]) == 2
    assert "raw.tar.xz: holds more than" in capsys.readouterr().err


def test_attack__a_window_of_empty_lists(folder, capsys, monkeypatch):
    """A list of two letters takes over thirty bytes a letter once it is read: 64 MiB of them took 2 GiB."""
    monkeypatch.setattr(bounded, "MOST_LISTS", 1000)
    put(folder, "windows/0003.jsonl.gz", gzip.compress(b'{"completed": [' + b"[]," * 1000 + b"[]]}\n", mtime=0))

    assert main(["check", str(folder)]) == 3
    assert "has more than 1,000 lists and objects" in capsys.readouterr().out


def test_attack__samples_that_unpack_without_an_end(folder, monkeypatch):
    monkeypatch.setattr(bounded, "MOST_BYTES", MIB)
    (folder / "telemetry.jsonl.gz").write_bytes(gzip.compress(bytes(4 * MIB), mtime=0))

    with pytest.raises(EvidenceError, match="holds more than 1 MiB"):
        read_machine_samples(folder)


@pytest.mark.parametrize(
    "words",
    [
        ["scenarios", "show", "big.toml"],
        ["matrix", "big.toml", "--out", "out"],
        ["plan", "--table", "big.toml", "--changed", "a"],
        ["github", "jobs", "--settings", "big.toml"],
        ["power", "--baseline", "big.toml"],
        ["deps", "big.toml", "big.toml", "--scenario", "cpu-moe", "--budget", "3", "--out", "out"],
        ["run", "cpu-moe", "--kernel-proof", "big.toml", "--out", "out"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("file", ["of 2 GiB", "without an end"])
def test_read_written__a_file_that_is_too_long(words, file, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if file == "of 2 GiB":
        Path("big.toml").touch()
        os.truncate("big.toml", 2**31)
    else:
        Path("big.toml").symlink_to("/dev/zero")

    assert main(words) == 2
    told = capsys.readouterr().err
    assert "big.toml: holds more than 16 MiB, which is not read" in told
    assert len(told.splitlines()) == 1


def test_read_written__a_file_up_to_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "MOST_WRITTEN_BYTES", 3)
    (tmp_path / "file").write_bytes(b"a=1")

    assert read_written(tmp_path / "file") == b"a=1"


def _link_window(folder):
    """To a file with the same content, so that its digest is right."""
    path = folder / "windows" / "0003.jsonl.gz"
    path.rename(folder.parent / "elsewhere.gz")
    path.symlink_to(folder.parent / "elsewhere.gz")


def _link_folder(folder):
    (folder / "windows").rename(folder.parent / "elsewhere")
    (folder / "windows").symlink_to(folder.parent / "elsewhere")


def _link_zeros(folder):
    (folder / "events.jsonl").unlink()
    (folder / "events.jsonl").symlink_to("/dev/zero")


def _put_pipe(folder):
    (folder / "events.jsonl").unlink()
    os.mkfifo(folder / "events.jsonl")


@pytest.mark.parametrize("attack", [_link_window, _link_folder, _link_zeros, _put_pipe])
@pytest.mark.parametrize("command", [["check"], ["export", "--csv", "x.csv"], ["pack"]])
def test_attack__a_folder_that_leads_out_of_itself(folder, capsys, attack, command):
    attack(folder)

    assert main([*command[:1], str(folder), *command[1:]]) == 2
    told = capsys.readouterr().err
    assert "a result folder has files alone" in told
    assert len(told.splitlines()) == 1


def test_unpack_gzip__several_members_and_zeros_behind_them():
    content = gzip.compress(b"one", mtime=0) + gzip.compress(b"two", mtime=0) + bytes(8)

    assert unpack_gzip(content, "x") == b"onetwo"


def test_read_record__a_folder_that_is_reached_by_a_link(folder, capsys):
    """The link is the reader's own."""
    link = Path(f"{folder}-link")
    link.symlink_to(folder)

    assert main(["check", str(link)]) in {0, 3}
    assert capsys.readouterr().err == ""
