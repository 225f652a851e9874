"""Raw samples of the machine, of which a crash may have torn a window's."""

import gzip

import orjson
import pytest

from perfgate.cli import main
from perfgate.errors import EvidenceError
from perfgate.results.machine_samples import TELEMETRY_FILE, read_machine_samples
from tests.fakes.sessions import make_scenario, make_session, write_folder


def pack(index, ticks=50, engine=2):
    line = {
        "index": index,
        "ticks": [{"at_s": number / 5, "run_queue": (number * 7919 + index) % 97 / 10} for number in range(ticks)],
        "engine": [{"at_s": number * 5.0, "took_s": 0.01} for number in range(engine)],
    }
    return gzip.compress(orjson.dumps(line) + b"\n", compresslevel=6, mtime=0)


def write(folder, *members):
    (folder / TELEMETRY_FILE).write_bytes(b"".join(members))
    return read_machine_samples(folder)


def test_read_machine_samples__whole(tmp_path):
    found = write(tmp_path, pack(0), pack(1, ticks=3, engine=0))

    assert [window["index"] for window in found.windows] == [0, 1]
    assert (found.count, found.torn, found.lost) == (55, 0, 0)


def test_read_machine_samples__torn_at_any_byte_in_the_middle(tmp_path):
    """A crash tears the last member, and the session that goes on appends behind it."""
    whole = pack(1)
    lost = []
    for end in range(10, len(whole), 7):
        found = write(tmp_path, pack(0), whole[:end], pack(2))

        assert [window["index"] for window in found.windows] == [0, 2]
        assert (found.count, found.torn) == (104, 1)
        lost.append(found.lost)

    assert lost == sorted(lost)
    assert lost[0] == 0
    assert 40 < lost[-1] <= 52


def test_read_machine_samples__damaged_bytes(tmp_path):
    whole = pack(1)
    middle = len(whole) // 2
    found = write(tmp_path, b"noise", pack(0), whole[:middle] + b"\xff\xff\xff" + whole[middle + 3 :], pack(2))

    assert [window["index"] for window in found.windows] == [0, 2]
    assert found.torn == 2
    assert 0 < found.lost < 52


def test_read_machine_samples__no_window_yet(tmp_path):
    found = write(tmp_path)

    assert (found.windows, found.torn) == ((), 0)


def test_read_machine_samples__not_kept(tmp_path):
    with pytest.raises(EvidenceError, match=r"telemetry\.jsonl\.gz: no such file, so this session's samples were not kept"):
        read_machine_samples(tmp_path)


def test_export__samples_of_a_torn_folder(tmp_path, capsys):
    folder, target = tmp_path / "run", tmp_path / "samples.jsonl"
    write_folder(folder, make_session(make_scenario()))
    write(folder, pack(0), pack(1)[:-9], pack(2))
    code = main(["export", str(folder), "--samples", str(target)])
    err = capsys.readouterr().err

    assert code == 0
    assert [orjson.loads(line)["index"] for line in target.read_bytes().splitlines()] == [0, 2]
    assert err.splitlines()[0] == f"{target}: 104 samples of 2 windows"
    assert "1 windows are torn, at least 5" in err.splitlines()[1]


def test_export__samples_of_two_folders(tmp_path, capsys):
    code = main(["export", str(tmp_path / "a"), str(tmp_path / "b"), "--samples", str(tmp_path / "out")])

    assert code == 2
    assert "--samples: takes one result folder at a time" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
