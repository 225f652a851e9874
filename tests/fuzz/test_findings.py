"""What fuzzing found, each in its smallest form: once a traceback, now one line that says what to do."""

from __future__ import annotations

import gzip
import io
import json
import zipfile

import orjson
import pytest

from perfgate.errors import EvidenceError
from perfgate.readers.matrix_log import FIRST_DONE
from perfgate.readers.run_checks import as_number
from perfgate.storage.journal import cut_torn_member
from tests.fuzz import seeds
from tests.fuzz.targets import TARGETS, list_files, probe, sign

BY_NAME = {target.name: target for target in TARGETS}


def edit(content, *path, value):
    """Put `value` at `path` of a JSON document."""
    whole = here = json.loads(content)
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return json.dumps(whole).encode()


def edit_folder(name, content):
    """The input that puts `content` into the file of that name of a result folder."""
    index = [path.name for path in list_files(seeds.make_folder(name[1]))].index(name[0])
    return bytes([index]) + content


def endless_clock():
    """A matrix log whose first request was done after a time of 5,000 digits."""
    content = (seeds.RUNS / "matrix.log").read_bytes()
    found = FIRST_DONE.search(content.decode())
    return content.replace(found[0].encode(), b"1/9 [" + b"1" * 5000 + b":00<", 1)


def point_outside():
    """A zip file whose directory claims to begin before the file does."""
    packed = bytearray(seeds.make_artifact(b"{}"))
    end = packed.rindex(b"PK\x05\x06")
    packed[end + 16 : end + 20] = (2**31).to_bytes(4, "little")
    packed[end + 12 : end + 16] = (5).to_bytes(4, "little")
    return bytes(packed)


EMPTY_STARTS = edit(seeds.make_baseline_file(), "metrics", "median_itl_ms", "values", value=[[]] * 8)
RESPONSE = {"injected_ratio": 0.0, "measured_ratio": 0.1, "low": 0.1, "high": 0.2}
NO_CAUSE = edit(seeds.make_baseline_file(), "metrics", "median_itl_ms", "sensitivity", value=[RESPONSE])
SAMPLES = ("benchmarks", 0, "extra_info", "perfgate", "samples_us", "base")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("scenario", b"a = " + b"[" * 3000, "not readable TOML: nested too deeply"),
        ("scenario", b"a = " + b"1" * 5000, "not readable TOML: Exceeds the limit (4300 digits)"),
        ("matrix", b"a = " + b"[" * 3000, "not readable TOML: nested too deeply"),
        ("settings", b"a = " + b"[" * 3000, "not readable TOML (nested too deeply)"),
        ("runner_settings", b"a = " + b"1" * 5000, "not readable TOML (Exceeds the limit"),
        ("scenario", seeds.SCENARIO_TEXT.encode() + b'\n["\\n::error::forged"]', "forged"),
        ("matrix_log", endless_clock(), None),
        ("trace", edit(seeds.make_trace(), "traceEvents", 0, "cat", value=[]), None),
        ("trace", edit(seeds.make_trace("cpu_op"), "traceEvents", 0, "pid", value={}), None),
        ("artifact", point_outside(), "no sound zip file"),
        ("layer_timings", edit(seeds.make_timings(), "machine_info", value=[1]), "machine_info.perfgate"),
        ("layer_timings", edit(seeds.make_timings(), "benchmarks", 0, "extra_info", value="x"), "machine_info.perfgate"),
        ("layer_timings", edit(seeds.make_timings(), *SAMPLES, value=[1e-320] * 10), "greater than"),
        ("handoff", edit(seeds.make_handoff(), "windows", 0, "block", value=0), "windows.0.block"),
        ("handoff", edit(seeds.make_handoff(), "answers", 0, "start", value=0), "answers.0.start"),
        ("handoff", edit(seeds.make_handoff(), "windows", 2, "record", "median_itl_ms", value=5e-324), None),
        ("baseline", sign(EMPTY_STARTS), "tells no level"),
        ("baseline", sign(NO_CAUSE), "injected_ratio must be above zero"),
    ],
    ids=lambda value: value if isinstance(value, str) else "content",
)
def test_probe__a_finding_is_one_line_now(name, content, words, tmp_path):
    refusal = probe(BY_NAME[name], content, tmp_path / "f")

    assert refusal is None if words is None else words in refusal
    assert refusal is None or refusal.isprintable()


def test_probe__timings_of_one_layer_twice(tmp_path):
    timings = json.loads(seeds.make_timings())
    timings["benchmarks"] *= 2

    assert "is timed twice" in probe(BY_NAME["layer_timings"], orjson.dumps(timings), tmp_path / "f")


def test_probe__an_event_with_a_list_for_a_pattern(tmp_path):
    events = b'{"event":"block_ended","block":1,"at_s":1}\n{"event":"log_expected","pattern":[1],"line":"x","at_s":2}\n'

    assert probe(BY_NAME["result_folder"], edit_folder(("events.jsonl", tmp_path / "r"), events), tmp_path / "f") is None


def test_probe__telemetry_that_is_no_number_voids_the_folder(tmp_path):
    index = (seeds.make_folder(tmp_path / "seed") / "windows.jsonl").read_bytes()
    index = index.replace(b'"telemetry":{}', b'"telemetry":{"throttled_share":"nan"}', 1)

    refusal = probe(BY_NAME["result_folder"], edit_folder(("windows.jsonl", tmp_path / "r"), index), tmp_path / "f")

    assert "telemetry.throttled_share" in refusal


@pytest.mark.parametrize("value", [1e300, 2e18, float("inf")])
def test_as_number__beyond_any_clock(value):
    with pytest.raises(EvidenceError, match="is no measurement"):
        as_number(value, "file", "duration")


def test_cut_torn_member__every_cut_leaves_the_whole_members_and_room_for_the_next(tmp_path):
    members = [gzip.compress(f"window {number}\n".encode(), mtime=0) for number in range(3)]
    path = tmp_path / "telemetry.jsonl.gz"
    for length in range(sum(map(len, members[:2])) + 1):
        path.write_bytes(b"".join(members[:2])[:length])
        whole = sum(length >= end for end in (len(members[0]), sum(map(len, members[:2]))))

        assert cut_torn_member(path) == length - sum(map(len, members[:whole]))
        with path.open("ab") as file:
            file.write(members[2])
        assert gzip.decompress(path.read_bytes()).count(b"\n") == whole + 1


@pytest.mark.parametrize("content", [b"no gzip at all", gzip.compress(b"x", mtime=0) + b"\x00\x00"])
def test_cut_torn_member__what_is_damaged_otherwise_is_left(content, tmp_path):
    path = tmp_path / "telemetry.jsonl.gz"
    path.write_bytes(content)

    assert (cut_torn_member(path), path.read_bytes()) == (0, content)
    assert cut_torn_member(tmp_path / "absent") == 0


def test_make_artifact__is_a_zip_file_that_others_read():
    assert zipfile.ZipFile(io.BytesIO(seeds.make_artifact(b"{}"))).namelist() == ["handoff-unit.json"]


@pytest.mark.parametrize("value", [b"9" * 400, b"9" * 400 + b" 1", b"1 " + b"9" * 400])
def test_probe__metrics_beyond_the_range_of_doubles_are_no_metrics(value, tmp_path):
    content = seeds.METRICS + b"sglang:num_queue_reqs " + value + b"\n"

    assert probe(BY_NAME["metrics"], content, tmp_path / "f") is None
