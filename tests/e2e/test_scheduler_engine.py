"""The installed engine's own scheduler, driven without a forward pass."""

import sys

from benchmarks.museum.exhibits import load_exhibit
from benchmarks.museum.host import write_arm
from benchmarks.scheduler.run import SEEDS, find_engine, plant
from perfgate.resolution.arms import find_source
from perfgate.scheduler.ask import drive, gather, prepare

LOAD = {"batch": 4, "steps": 8, "windows": 1, "requests": 6, "output": 4, "words": 12, "queued": 32}


def measure(folder, *arms):
    sources = [find_source(str(arm), sys.executable, option="--base") for arm in arms]
    told = drive(sources, prepare(folder), ("cpu", "events"), load=LOAD)
    return [gather(source, one.sglang, [one.readings]) for source, one in zip(sources, told, strict=True)]


def test_drive__the_engine_serves_all_requests_and_one_more_wait_a_step_is_counted(tmp_path):
    (tmp_path / "seeded").mkdir()
    arms = {}
    for name, exhibit in (("token-counts", load_exhibit("token-counts")), ("patient", load_exhibit("decode-fragmented"))):
        told = exhibit.exhibit.reenactment
        arms[name] = write_arm(tmp_path / name, find_engine(), exhibit, told.broken if name == "token-counts" else told.base)

    base, seeded, plugged_in, patient = measure(
        tmp_path, sys.executable, plant(SEEDS["sync"], tmp_path / "seeded"), *arms.values()
    )

    key = "scheduler.decode_step.host_reads"
    assert seeded.find_value(key) == base.find_value(key) + 1
    same = {name for name in base.runs if "cpu_us" not in name and "host_reads" not in name}
    assert {name: base.runs[name] for name in same} == {name: seeded.runs[name] for name in same}
    assert base.find_value("scheduler.decode_step.cpu_us") > 0
    assert base.find_value("scheduler.round.steps") >= 2 * 4  # six requests of four tokens over four clients: two rounds
    # Of 32 requests 16 wait. An engine that waits for three free places before it prefills needs fewer steps for them.
    key = "scheduler.queue.steps"
    assert 36 < patient.find_value(key) < 0.95 * base.find_value(key)
    # A plug-in of an arm is served with, as the engine's launcher does it: this one counts each token of each answer anew.
    key = "scheduler.decode_step.operators"
    assert plugged_in.find_value(key) > base.find_value(key) + 1
