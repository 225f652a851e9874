"""Packed sessions: nothing is lost, every verdict stays, and damage is named file by file."""

import gzip
import hashlib
import json
import lzma
import shutil

import pytest

from perfgate.cli import main
from perfgate.core import Arm
from perfgate.errors import EvidenceError
from perfgate.evidence import Answers, DamageKind, Question
from perfgate.results.answers import load_answers, store_answers
from perfgate.results.folders import require_cut_off
from perfgate.results.machine_samples import TELEMETRY_FILE, read_machine_samples
from perfgate.results.raw.gap_columns import Columns, restore_gaps, shorten_gaps
from perfgate.results.raw.pack import PACK_FILE, build_pack, list_raw, read_pack, read_raw
from perfgate.results.raw.packer import pack_folder
from perfgate.results.results import load_results
from perfgate.results.server_info import ServerInfo, load_infos, store_info
from tests.fakes.requests import list_problems
from tests.fakes.sessions import make_scenario, make_session, write_folder

QUESTION = Question(prompts=1, input_len=2, output_len=2, vocab=100, seed=1)


@pytest.fixture
def folder(tmp_path):
    """A session of every kind of raw file, in the layout in which it was measured; only its event says that it ended."""
    path = write_folder(tmp_path / "run", make_session(make_scenario(), worse=0.08, blocks=3))
    for start, arm in enumerate(Arm, 1):
        store_answers(path, b'[{"text": "none"}]', Answers(arm=arm, block=1, start=start, question=QUESTION))
        store_info(path, ServerInfo(arm=arm, start=start, settings={"page_size": str(start)}))
    lines = (json.dumps({"index": index, "ticks": [{"at_s": 1.0}]}).encode() + b"\n" for index in range(3))
    (path / TELEMETRY_FILE).write_bytes(b"".join(gzip.compress(line, mtime=0) for line in lines))
    return path


def check(capsysbinary, folder):
    code = main(["check", str(folder), "--format", "json"])
    return code, capsysbinary.readouterr()


def unpack_by_hand(folder):
    """The archive of a packed folder, not compressed, to be changed."""
    return bytearray(lzma.decompress((folder / PACK_FILE).read_bytes()))


def test_pack__every_reader_reads_the_same(folder, capsysbinary):
    before = check(capsysbinary, folder)
    was = load_results(folder), load_answers(folder), load_infos(folder), read_machine_samples(folder)
    code = main(["pack", str(folder)])
    told = capsysbinary.readouterr().err.decode()

    assert code == 0
    assert told.startswith(f"{folder}: ")
    assert not any((folder / name).exists() for name in ("windows", "answers", "servers", TELEMETRY_FILE))
    assert check(capsysbinary, folder) == before
    assert (load_results(folder), load_answers(folder), load_infos(folder), read_machine_samples(folder)) == was
    assert [info.settings["page_size"] for info in was[2]] == ["1", "2"]
    assert [window["index"] for window in was[3].windows] == [0, 1, 2]


def test_pack__gives_every_file_back(folder):
    names = list_raw(folder, "windows/*.jsonl.gz")
    was = {name: read_raw(folder / name) for name in names}
    packed = pack_folder(folder)

    assert list_raw(folder, "windows/*.jsonl.gz") == names
    assert {name: read_raw(folder / name) for name in names} == was
    assert packed.files == len(names) + 5
    assert packed.after_bytes == (folder / PACK_FILE).stat().st_size < packed.before_bytes


def test_pack__equal_folders_make_equal_bytes(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "twin")
    for path in (folder, tmp_path / "twin"):
        pack_folder(path)

    assert (folder / PACK_FILE).read_bytes() == (tmp_path / "twin" / PACK_FILE).read_bytes()


def test_pack__after_a_crash_removes_what_was_left(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "whole")
    pack_folder(folder)
    shutil.copytree(tmp_path / "whole" / "windows", folder / "windows")
    pack_folder(folder)

    assert not (folder / "windows").exists()


def test_pack__a_file_that_differs_from_the_packed_one(folder):
    pack_folder(folder)
    (folder / "windows").mkdir()
    (folder / "windows" / "0001.jsonl.gz").write_bytes(gzip.compress(b"other", mtime=0))

    with pytest.raises(EvidenceError, match=r"raw\.tar\.xz and windows/0001\.jsonl\.gz differ"):
        pack_folder(folder)
    assert (folder / "windows" / "0001.jsonl.gz").exists()


def test_pack__twice(folder):
    pack_folder(folder)

    with pytest.raises(EvidenceError, match="holds no raw files beside"):
        pack_folder(folder)


def cut_off(folder):
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join(line for line in lines if "session_ended" not in line))


def test_pack__an_unfinished_session(folder, capsys):
    cut_off(folder)
    code = main(["pack", str(folder)])

    assert code == 2
    assert "its session has not ended" in capsys.readouterr().err
    assert not (folder / PACK_FILE).exists()


def test_pack__a_cut_off_session_is_not_gone_on_with(folder):
    cut_off(folder)
    require_cut_off(folder)
    pack_folder(folder, is_cut_off=True)

    with pytest.raises(EvidenceError, match="its raw files were packed, so nothing is added"):
        require_cut_off(folder)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(b"edited"), "windows/0001.jsonl.gz does not match its digest"),
        (lambda path: path.unlink(), "windows/0001.jsonl.gz is missing although the index names it"),
    ],
)
def test_pack__a_damaged_session(folder, damage, words):
    damage(folder / "windows" / "0001.jsonl.gz")

    with pytest.raises(EvidenceError, match=words):
        pack_folder(folder)
    assert (folder / "windows" / "0000.jsonl.gz").exists()
    assert not (folder / PACK_FILE).exists()


def test_pack__torn_samples_stay(folder):
    path = folder / TELEMETRY_FILE
    path.write_bytes(path.read_bytes()[:-9])
    pack_folder(folder)

    assert read_machine_samples(folder).torn == 1


def test_load_results__a_window_that_was_changed_in_the_packed_file(folder):
    pack_folder(folder)
    archive = unpack_by_hand(folder)
    place = archive.index(b'"duration":', archive.index(b"windows/0002.jsonl\0")) + len(b'"duration":')
    place += archive[place:].index(b".") + 1
    archive[place] = ord("1") if archive[place] != ord("1") else ord("2")
    (folder / PACK_FILE).write_bytes(lzma.compress(bytes(archive)))
    _, session = load_results(folder)

    assert [problem.partition(":")[0] for problem in list_problems(session) if "windows/" in problem] == [
        "windows/0002.jsonl.gz does not match its digest"
    ]


def test_load_results__a_packed_window_of_another_session(folder, tmp_path):
    other = write_folder(tmp_path / "other", make_session(make_scenario(), worse=-0.08, blocks=3))
    for path in (folder, other):
        pack_folder(path)
    shutil.copyfile(other / PACK_FILE, folder / PACK_FILE)
    _, session = load_results(folder)

    assert any("does not match its digest" in problem for problem in list_problems(session))


def test_load_results__a_torn_packed_file_names_what_is_lost(folder):
    raw = {name: read_raw(folder / name) for name in list_raw(folder, "windows/*.jsonl.gz")}
    pack_folder(folder)
    archive = unpack_by_hand(folder)
    end = archive.index(b"windows/0003.jsonl\0") + 600
    (folder / PACK_FILE).write_bytes(lzma.compress(bytes(archive[:end]))[:-12])
    _, session = load_results(folder)
    lost = [problem for problem in list_problems(session) if "raw.tar.xz is damaged before its end" in problem]

    assert [problem.partition(" ")[0] for problem in lost if problem.startswith("windows/")] == list(raw)[3:]
    assert read_raw(folder / "windows" / "0002.jsonl.gz") == raw["windows/0002.jsonl.gz"]


@pytest.mark.parametrize("content", [b"", b"no archive", lzma.compress(b"no archive")])
def test_check__a_packed_file_that_is_none(folder, content, capsys):
    pack_folder(folder)
    (folder / PACK_FILE).write_bytes(content)
    code = main(["check", str(folder)])

    assert code == 2
    assert "raw.tar.xz: damaged or no packed session" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"), [("{", "not valid JSON"), ('{"file": "x", "sha256": "0"}', "files.jsonl: sha256: ")]
)
def test_read_pack__an_index_that_was_edited(folder, line, words):
    pack_folder(folder)
    archive = unpack_by_hand(folder)
    archive[512 : 512 + len(line) + 1] = line.encode() + b"\n"
    (folder / PACK_FILE).write_bytes(lzma.compress(bytes(archive)))

    with pytest.raises(EvidenceError, match=words):
        read_pack(folder)


def test_read_pack__a_member_that_the_index_does_not_name_as_missing(folder):
    pack_folder(folder)
    pack = read_pack(folder)

    assert pack.find_damage("windows/9999.jsonl.gz").kind is DamageKind.MISSING
    with pytest.raises(EvidenceError, match=r"windows/9999\.jsonl\.gz is missing"):
        pack.read("windows/9999.jsonl.gz")


def test_build_pack__gaps_that_cannot_be_restored(tmp_path):
    raw = b'{"itls": [[0.001]]}\n'
    content = build_pack([("windows/0000.jsonl.gz", hashlib.sha256(b"x").hexdigest(), raw)])
    archive = lzma.decompress(content).replace(b"[[1000]]", b"[{1000]]")
    (tmp_path / PACK_FILE).write_bytes(lzma.compress(archive))

    assert read_pack(tmp_path).find_damage("windows/0000.jsonl.gz").kind is DamageKind.CHANGED


@pytest.mark.parametrize(
    ("gaps", "separator"),
    [
        ([[0.003928, 0.003685], [0.003942, 0.00367, 5e-06], [0.004], [], [0.1]], ","),
        ([[0.003928, 0.0], [1.5, 0.00367]], ", "),
        ([], ","),
    ],
)
def test_shorten_gaps__comes_back_byte_by_byte(gaps, separator):
    raw = json.dumps({"a": "itls", "itls": gaps, "b": [0.1]}, separators=(separator, ":")).encode() + b"\n"
    columns = shorten_gaps(raw)

    assert restore_gaps(columns) == raw


def test_shorten_gaps__writes_differences_between_requests():
    columns = shorten_gaps(b'{"itls":[[0.003,0.004],[0.003002,0.003999,0.001]]}')

    assert columns == Columns(content=b'{"itls":[[3000,4000],[2,-1,1000]]}', at=8, separator=",")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"duration":1.5}',
        b'{"itls":[[0.0031234567]]}',
        b'{"itls":[[3e-3]]}',
        b'{"itls":[[1]]}',
        b'{"itls":[[NaN]]}',
        b'{"itls":[["x"]]}',
        b'{"itls":null}',
        b'{"itls":{"a":1}}',
        b'{"itls":[[0.1],',
        b'{"itls": [[0.1,0.2], [0.1]]}',
    ],
)
def test_shorten_gaps__leaves_what_would_not_come_back(raw):
    assert shorten_gaps(raw) is None
